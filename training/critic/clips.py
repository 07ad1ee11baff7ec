"""Recorded episodes as a critic sees them: frames at a stride in seconds, and the truth."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from reward_models.truth import level_of
from sim.layout import COLOURS
from vla.contracts.types import Example, Frames
from vla.data.decode import FrameChoice, decode_views
from vla.data.info import DatasetInfo
from vla.data.reader import open_dataset, read_columns, table_files

COLOUR = re.compile(rf"\b({'|'.join(COLOURS)})\b")
"""A colour that instructions name."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Clips:
    """F frames of N episodes, in order of episode and time."""

    images: np.ndarray
    """u8 [f, v, h, w, 3]."""
    time_s: np.ndarray
    """f64 [f], since the episode began."""
    progress: np.ndarray
    """f32 [f], simulator truth."""
    success: np.ndarray
    """bool [f], simulator truth."""
    proprio: np.ndarray
    """f32 [f, s]; no critic sees it: it is foretold in training, and a control sees only it."""
    offsets: np.ndarray
    """i64 [n + 1]: frames of episode e are offsets[e] to offsets[e + 1]."""
    instruction: np.ndarray
    """str [n]."""
    task: np.ndarray
    """str [n], the task's registry key."""
    behaviour: np.ndarray
    """str [n], who acted."""

    @property
    def episodes(self) -> int:
        """N."""
        return len(self.instruction)

    @property
    def episode(self) -> np.ndarray:
        """Episode of each frame, i64 [f]."""
        return np.repeat(np.arange(self.episodes), np.diff(self.offsets))

    @property
    def level(self) -> np.ndarray:
        """How each episode ended, i64 [n]: 2 success, 1 partial, 0 failure."""
        last = self.offsets[1:] - 1
        return level_of(self.success[last], self.progress[last])

    @cached_property
    def goal(self) -> np.ndarray:
        """State of the arm where most was done, f32 [n, s], standardised over those of its task.

        NaN in episodes in which too little was ever done: they do not show where it leads.
        """
        ends = zip(self.offsets[:-1], self.offsets[1:], strict=True)
        best = np.array([b + self.progress[b:e].argmax() for b, e in ends])
        goal = np.full((self.episodes, self.proprio.shape[1]), np.nan, np.float32)
        for task in np.unique(self.task):
            known = np.flatnonzero((self.task == task) & (self.progress[best] >= MOSTLY))
            state = self.proprio[best[known]]
            if len(known):
                goal[known] = (state - state.mean(0)) / np.maximum(state.std(0), STILL)
        return goal

    def frames(self) -> Frames:
        """Return everything a critic (and the controls) may see."""
        length_s = self.time_s[self.offsets[1:] - 1]
        return Frames(
            images=self.images,
            image_ok=np.ones(self.images.shape[:2], np.bool_),
            time_s=self.time_s,
            row=self.episode,
            end_s=length_s[self.episode],
            truth=np.stack([self.progress, self.success.astype(np.float32)], 1),
        )

    def pick(self, episodes: np.ndarray) -> "Clips":
        """Return some of the episodes."""
        rows = np.concatenate(
            [np.arange(self.offsets[e], self.offsets[e + 1]) for e in episodes]
            or [np.zeros(0, np.int64)]
        )
        lengths = np.diff(self.offsets)[episodes]
        kept = {name: getattr(self, name)[rows] for name in PER_FRAME}
        kept |= {name: getattr(self, name)[episodes] for name in PER_EPISODE}
        return Clips(offsets=np.concatenate([[0], np.cumsum(lengths)]), **kept)

    def example(self, episode: int) -> Example:
        """Return one episode as a reference, with the progress that was recorded."""
        one = self.pick(np.array([episode]))
        return Example(frames=one.frames(), progress=one.progress, task=str(one.instruction[0]))


MOSTLY = 0.6
"""Progress from which an episode shows where the work leads."""
STILL = 1e-3
"""Least standard deviation of the arm's state that is scaled by: an idle joint tells nothing."""
PER_FRAME = ("images", "time_s", "progress", "success", "proprio")
PER_EPISODE = ("instruction", "task", "behaviour")
Wanted = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Tasks and instructions of episodes to which of them are kept."""


def load_clips(
    paths: Sequence[Path], cameras: Sequence[str], stride_s: float, side_px: int,
    wanted: Wanted | None = None,
) -> Clips:  # fmt: skip
    """Read data sets that `vla demos` recorded; the last frame of each episode is always there.

    Pictures are the largest thing there is: one array holds those of all sets, and they are
    decoded into it.

    Args:
        paths: Data sets.
        cameras: Names, in view order.
        stride_s: Time between frames.
        side_px: Side of the square pictures.
        wanted: Returns, for tasks and instructions (str [n] each), which episodes to keep, bool
            [n]; all if not given.

    Raises:
        ValueError: a set is damaged, lacks a camera, or lacks the simulator's truth.
    """
    sets = [_choose(path, stride_s, wanted) for path in paths]
    ends = np.cumsum([len(chosen.frames.step) for chosen in sets])
    images = np.zeros((ends[-1], len(cameras), side_px, side_px, 3), np.uint8)
    parts = []
    for chosen, end in zip(sets, ends, strict=True):
        info, frames = chosen.info, chosen.frames
        views = tuple(info.camera(name) for name in cameras)
        own = images[end - len(frames.step) : end]
        decode_views(info, views, frames, (side_px, side_px), out=own)
        columns = read_columns(info)
        rows = info.offsets[frames.episode] + frames.step
        parts.append({
            "time_s": frames.step / info.fps,
            "progress": columns.scalars["progress"][rows],
            "success": columns.scalars["success"][rows] > 0,
            "proprio": columns.state[rows],
            "instruction": np.array(info.tasks)[chosen.episodes],
            "task": chosen.task,
            "behaviour": _behaviours(info)[chosen.episodes],
        })  # fmt: skip
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    lengths = np.concatenate([chosen.lengths for chosen in sets])
    return Clips(images=images, offsets=np.concatenate([[0], np.cumsum(lengths)]), **joined)


class _Chosen(NamedTuple):
    """What is read of a data set."""

    info: DatasetInfo
    episodes: np.ndarray
    lengths: np.ndarray
    frames: FrameChoice
    task: np.ndarray


def _choose(path: Path, stride_s: float, wanted: Wanted | None) -> _Chosen:
    info = open_dataset(path)
    if info.recording is None or not {"progress", "success"} <= set(info.scalars):
        raise ValueError(
            f"{path}: lacks the simulator's progress and success, which a critic learns from; "
            "record it with `vla demos`"
        )
    stride = max(1, round(stride_s * info.fps))
    task = np.full(info.num_episodes, info.recording["task"]["type"])
    kept = np.ones(len(task), np.bool_) if wanted is None else wanted(task, np.array(info.tasks))
    episodes = np.flatnonzero(kept)
    steps = [_steps(length, stride) for length in info.lengths[episodes].tolist()]
    counts = np.array([len(s) for s in steps], np.int64)
    frames = FrameChoice(
        episode=np.repeat(episodes, counts), step=np.concatenate(steps or [np.zeros(0, np.int64)])
    )
    return _Chosen(info, episodes, counts, frames, task[episodes])


def colour_of(instruction: str) -> str | None:
    """Return the colour an instruction names, if any."""
    found = COLOUR.search(instruction)
    return found.group(1) if found else None


def composed(task: np.ndarray, instruction: np.ndarray, held_out: Sequence[str]) -> np.ndarray:
    """Return, bool [n], which episodes combine a task and a colour that `held_out` lists.

    Args:
        task: str [n].
        instruction: str [n].
        held_out: Pairs such as "reach:blue".
    """
    pairs = [f"{t}:{colour_of(str(i))}" for t, i in zip(task, instruction, strict=True)]
    return np.isin(pairs, list(held_out))


def _steps(length: int, stride: int) -> np.ndarray:
    """Return every `stride`-th step and the last."""
    steps = np.arange(0, length, stride)
    return steps if steps[-1] == length - 1 else np.append(steps, length - 1)


def _behaviours(info: DatasetInfo) -> np.ndarray:
    """Return who acted in each episode."""
    found: dict[int, str] = {}
    for file in table_files(info.path, "data"):
        table = pq.read_table(file, columns=["episode_index", "behaviour"])
        found.update(
            zip(table["episode_index"].to_pylist(), table["behaviour"].to_pylist(), strict=True)
        )
    return np.array([found[e] for e in sorted(found)])
