"""Recorded episodes for reward models: frames at a stride in seconds, and the simulator's truth."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow.parquet as pq

from reward_models.core.truth import level_of
from sim.core.layout import COLOURS
from vla.contracts import referents
from vla.contracts.types import Example, Frames
from vla.data.decode import FrameChoice, decode_views
from vla.data.info import DatasetInfo
from vla.data.reader import open_dataset, read_columns, table_files

COLOUR = re.compile(rf"\b({'|'.join(COLOURS)})\b")
"""A colour in an instruction."""


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
    """f32 [f, s]; target of the goal loss and input of a control, never of a reward model."""
    referents: np.ndarray
    """f32 [f, v, r, 2], where in the images the things are that the instruction names
    (`vla.contracts.referents`); NaN where no column says it. A label, never an input."""
    offsets: np.ndarray
    """i64 [n + 1]: frames of episode e are offsets[e] to offsets[e + 1]."""
    instruction: np.ndarray
    """str [n]."""
    task: np.ndarray
    """str [n], the task's registry key."""
    behaviour: np.ndarray
    """str [n], behaviour that acted."""

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
        """State of the arm at the largest progress, f32 [n, s], standardised within its task.

        NaN in episodes whose progress never reaches `GOAL_PROGRESS`.
        """
        ends = zip(self.offsets[:-1], self.offsets[1:], strict=True)
        best = np.array([b + self.progress[b:e].argmax() for b, e in ends])
        goal = np.full((self.episodes, self.proprio.shape[1]), np.nan, np.float32)
        for task in np.unique(self.task):
            rows = np.flatnonzero((self.task == task) & (self.progress[best] >= GOAL_PROGRESS))
            state = self.proprio[best[rows]]
            if len(rows):
                goal[rows] = (state - state.mean(0)) / np.maximum(state.std(0), MIN_STD)
        return goal

    def frames(self) -> Frames:
        """Return the input of reward models and controls."""
        length_s = self.time_s[self.offsets[1:] - 1]
        return Frames(
            images=self.images,
            image_ok=np.ones(self.images.shape[:2], np.bool_),
            time_s=self.time_s,
            episode_index=self.episode,
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
        arrays = {name: getattr(self, name)[rows] for name in PER_FRAME}
        arrays |= {name: getattr(self, name)[episodes] for name in PER_EPISODE}
        return Clips(offsets=np.concatenate([[0], np.cumsum(lengths)]), **arrays)

    def example(self, episode: int) -> Example:
        """Return one episode as a reference, with the progress that was recorded."""
        clip = self.pick(np.array([episode]))
        return Example(frames=clip.frames(), progress=clip.progress, task=str(clip.instruction[0]))


GOAL_PROGRESS = 0.6
"""Progress from which an episode has a goal."""
MIN_STD = 1e-3
"""Lower bound of the standard deviations that scale goals: for joints that do not move."""
PER_FRAME = ("images", "time_s", "progress", "success", "proprio", "referents")
PER_EPISODE = ("instruction", "task", "behaviour")
Filter = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""From tasks and instructions (str [n] each) to the episodes to keep, bool [n]."""


def load_clips(
    paths: Sequence[Path], cameras: Sequence[str], stride_s: float, side_px: int,
    keep: Filter | None = None,
) -> Clips:  # fmt: skip
    """Read episodes of data sets of `vla demos` at a stride in seconds, and the last frame of each.

    Views are in the order of `cameras`. All images are decoded into one array, to save memory.

    Raises:
        ValueError: a set is damaged, lacks a camera, or lacks the simulator's truth.
    """
    sets = [_choose(path, stride_s, keep) for path in paths]
    ends = np.cumsum([len(chosen.frames.step) for chosen in sets])
    images = np.zeros((ends[-1], len(cameras), side_px, side_px, 3), np.uint8)
    parts = []
    for chosen, end in zip(sets, ends, strict=True):
        info, frames = chosen.info, chosen.frames
        views = tuple(info.camera(name) for name in cameras)
        part = images[end - len(frames.step) : end]
        decode_views(info, views, frames, (side_px, side_px), out=part)
        columns = read_columns(info)
        rows = info.offsets[frames.episode] + frames.step
        where = referents.read(columns.scalars, rows, cameras)
        unknown = np.full((len(rows), len(cameras), len(referents.KINDS), 2), np.nan, np.float32)
        parts.append({
            "time_s": frames.step / info.fps,
            "progress": columns.scalars["progress"][rows],
            "success": columns.scalars["success"][rows] > 0,
            "proprio": columns.state[rows],
            "referents": unknown if where is None else where,
            "instruction": np.array(info.tasks)[chosen.episodes],
            "task": chosen.task,
            "behaviour": _behaviours(info)[chosen.episodes],
        })  # fmt: skip
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    lengths = np.concatenate([chosen.lengths for chosen in sets])
    return Clips(images=images, offsets=np.concatenate([[0], np.cumsum(lengths)]), **joined)


class _Chosen(NamedTuple):
    """The selected episodes and frames of a data set."""

    info: DatasetInfo
    episodes: np.ndarray
    lengths: np.ndarray
    frames: FrameChoice
    task: np.ndarray


def _choose(path: Path, stride_s: float, keep: Filter | None) -> _Chosen:
    info = open_dataset(path)
    if info.recording is None or not {"progress", "success"} <= set(info.scalars):
        raise ValueError(
            f"{path}: lacks the simulator's progress and success, expected both; record it with "
            "`vla demos`"
        )
    stride = max(1, round(stride_s * info.fps))
    task = np.full(info.num_episodes, info.recording["task"]["type"])
    chosen = np.ones(len(task), np.bool_) if keep is None else keep(task, np.array(info.tasks))
    episodes = np.flatnonzero(chosen)
    steps = [_steps(length, stride) for length in info.lengths[episodes].tolist()]
    counts = np.array([len(s) for s in steps], np.int64)
    frames = FrameChoice(
        episode=np.repeat(episodes, counts), step=np.concatenate(steps or [np.zeros(0, np.int64)])
    )
    return _Chosen(info, episodes, counts, frames, task[episodes])


def colour_of(instruction: str) -> str | None:
    """Return the colour an instruction names, if any."""
    match = COLOUR.search(instruction)
    return match.group(1) if match else None


def composed(task: np.ndarray, instruction: np.ndarray, held_out: Sequence[str]) -> np.ndarray:
    """Return, bool [n], which episodes, of tasks and instructions str [n], combine a task and a
    colour that `held_out` lists, such as "reach:blue".
    """
    pairs = [f"{t}:{colour_of(str(i))}" for t, i in zip(task, instruction, strict=True)]
    return np.isin(pairs, list(held_out))


def _steps(length: int, stride: int) -> np.ndarray:
    """Return every `stride`-th step and the last."""
    steps = np.arange(0, length, stride)
    return steps if steps[-1] == length - 1 else np.append(steps, length - 1)


def _behaviours(info: DatasetInfo) -> np.ndarray:
    """Return the behaviour of each episode."""
    behaviours: dict[int, str] = {}
    for file in table_files(info.path, "data"):
        table = pq.read_table(file, columns=["episode_index", "behaviour"])
        behaviours.update(
            zip(table["episode_index"].to_pylist(), table["behaviour"].to_pylist(), strict=True)
        )
    return np.array([behaviours[e] for e in sorted(behaviours)])
