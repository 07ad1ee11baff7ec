"""Reads a data set to label: segments of one instruction each, frames to score, checksums."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from reward_models.label_report.read import LABELS_FILE, frame_table
from vla.data.info import Camera, DatasetInfo
from vla.data.reader import open_dataset, read_columns

TRUTH = ("progress", "success")
"""Columns of the simulator's truth in data sets that `vla demos` recorded."""
DARK = "-"


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """Consecutive frames of an episode with one instruction: scored like an episode."""

    episode: int
    first: int
    """Its first frame, counted in the episode."""
    frames: int
    task: str
    steps: np.ndarray
    """i64 [k], frames to score, counted in the episode; they include the last one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A data set to label."""

    info: DatasetInfo
    segments: tuple[tuple[Segment, ...], ...]
    """Of each episode."""
    index: np.ndarray
    """i64 [n], column `index` of every frame, in order of episode and time."""
    truth: np.ndarray | None
    """f32 [n, 2], the simulator's progress and success; None if it was not recorded."""

    @property
    def scored_frames(self) -> np.ndarray:
        """i64 [episodes], number of frames to score of each."""
        return np.array([sum(len(s.steps) for s in parts) for parts in self.segments], np.int64)


def read(path: Path, *, stride_s: float, instruction: str = "") -> Source:
    """Check a LeRobotDataset v3 and cut its episodes into segments.

    An instruction that is not empty replaces those of the data set.

    Raises:
        ValueError: it is damaged (see `open_dataset`), or labelled already.
    """
    info = open_dataset(path)
    if (path / LABELS_FILE).exists():
        raise ValueError(f"{path}: holds labels already, expected a data set without")
    table = frame_table(path, ("task_index", "index"))
    task_index = table["task_index"].to_numpy()
    tasks = _tasks(path)
    missing = sorted(set(task_index.tolist()) - set(tasks))
    if missing:
        raise ValueError(
            f"{path}: task_index {missing[0]} is not in meta/tasks.parquet; record it again"
        )
    segments = []
    for episode, (begin, end) in enumerate(zip(info.offsets[:-1], info.offsets[1:], strict=True)):
        index = np.zeros(end - begin, np.int64) if instruction else task_index[begin:end]
        texts = {0: instruction} if instruction else tasks
        segments.append(_segments(episode, index, texts, info.fps, stride_s))
    return Source(
        info=info, segments=tuple(segments), index=table["index"].to_numpy(), truth=_truth(info)
    )


def _tasks(path: Path) -> dict[int, str]:
    table = pq.read_table(path / "meta/tasks.parquet")
    text = next(name for name in table.column_names if name != "task_index")
    return dict(zip(table["task_index"].to_pylist(), table[text].to_pylist(), strict=True))


def _truth(info: DatasetInfo) -> np.ndarray | None:
    if not set(TRUTH) <= set(info.scalars):
        return None
    scalars = read_columns(info).scalars
    return np.stack([scalars[name] for name in TRUTH], 1).astype(np.float32)


def _segments(
    episode: int, task_index: np.ndarray, tasks: dict[int, str], fps: float, stride_s: float
) -> tuple[Segment, ...]:
    cuts = [0, *(np.flatnonzero(np.diff(task_index)) + 1).tolist(), len(task_index)]
    return tuple(
        Segment(
            episode=episode, first=first, frames=end - first, task=tasks[int(task_index[first])],
            steps=first + steps_to_score(end - first, fps, stride_s),
        )
        for first, end in itertools.pairwise(cuts)
    )  # fmt: skip


def steps_to_score(frames: int, fps: float, stride_s: float) -> np.ndarray:
    """Return the frames nearest to every `stride_s` seconds and the last one, i64, each once."""
    count = int((frames - 1) / (stride_s * fps) + 1e-9) + 1 if stride_s > 0 else frames
    every = np.rint(np.arange(count) * max(stride_s * fps, 1.0)).astype(np.int64)
    return np.unique(np.append(every[every < frames], frames - 1))


def match_cameras(
    info: DatasetInfo, views: Sequence[str], cameras: str
) -> tuple[Camera | None, ...]:
    """Return the camera of the data set for each view of a reward model; None is a black view.

    Raises:
        ValueError: the assignment is ambiguous, or a camera does not exist.
    """
    if cameras:
        names = [name.strip() for name in cameras.split(",")]
        if len(names) != len(views):
            raise ValueError(
                f"cameras: got {len(names)} ({cameras}), expected {len(views)}, one for each view "
                f"of the reward model ({', '.join(views) or 'it has none'}); write {DARK} for none"
            )
        return tuple(None if name == DARK else info.camera(name) for name in names)
    by_name = {camera.name: camera for camera in info.cameras}
    if any(view in by_name for view in views):
        return tuple(by_name.get(view) for view in views)
    if len(by_name) == len(views) or not views:
        return info.cameras[: len(views)]
    raise ValueError(
        f"{info.path}: has cameras {', '.join(by_name)}, the reward model {', '.join(views)}; "
        "assign them with --cameras"
    )


def checksums(path: Path) -> dict[str, str]:
    """Return blake2b of every file under a folder, by its relative name."""
    sums = {}
    for file in sorted(path.rglob("*")):
        if file.is_file():
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16))
            sums[file.relative_to(path).as_posix()] = digest.hexdigest()
    return sums


def digest(checksum: dict[str, str]) -> str:
    """Return one hash of many."""
    text = "\n".join(f"{name} {value}" for name, value in sorted(checksum.items()))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
