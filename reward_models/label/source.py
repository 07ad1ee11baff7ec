"""Reads what is to be labelled: segments of one instruction each, frames to score, checksums.

Nothing here writes. Pixels are decoded in `reward_models.label.score`.
"""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reward_models.label_report.read import LABELS_FILE
from vla.data.info import Camera, DatasetInfo
from vla.data.reader import open_dataset, read_columns, table_files

TRUTH = ("progress", "success")
"""Columns of the simulator's truth in data sets that `vla demos` recorded."""
DARK = "-"


@dataclass(frozen=True, kw_only=True, eq=False)
class Segment:
    """Frames of an episode that follow one instruction: judged as an episode of its own."""

    episode: int
    first: int
    """Its first frame, from the episode's beginning."""
    frames: int
    task: str
    steps: np.ndarray
    """i64 [k], the frames to score, from the episode's beginning; the last one is among them."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A data set to label."""

    info: DatasetInfo
    segments: tuple[tuple[Segment, ...], ...]
    """Of each episode."""
    index: np.ndarray
    """i64 [n], LeRobot's number of every frame, in order of episode and time."""
    truth: np.ndarray | None
    """f32 [n, 2], the simulator's progress and success; None if it was not recorded."""

    @property
    def scored_frames(self) -> np.ndarray:
        """i64 [episodes], how many frames of each are to be scored."""
        return np.array([sum(len(s.steps) for s in parts) for parts in self.segments], np.int64)


def read(path: Path, *, stride_s: float, instruction: str = "") -> Source:
    """Check a data set and cut its episodes into segments.

    Args:
        path: Directory of a LeRobotDataset v3.
        stride_s: Time between scored frames.
        instruction: Judge everything against this one; the data set's own if empty.

    Raises:
        ValueError: it is damaged (see `open_dataset`), or labelled already.
    """
    info = open_dataset(path)
    if (path / LABELS_FILE).exists():
        raise ValueError(f"{path}: holds labels already; label the data set that it was made from")
    table = _numbers(path)
    task_index = table["task_index"].to_numpy()
    tasks = _tasks(path)
    unknown = sorted(set(task_index.tolist()) - set(tasks))
    if unknown:
        raise ValueError(
            f"{path}: task_index {unknown[0]} is not in meta/tasks.parquet; record it anew"
        )
    segments = []
    for episode, (begin, end) in enumerate(zip(info.offsets[:-1], info.offsets[1:], strict=True)):
        own = np.zeros(end - begin, np.int64) if instruction else task_index[begin:end]
        named = {0: instruction} if instruction else tasks
        segments.append(_segments(episode, own, named, info.fps, stride_s))
    return Source(
        info=info, segments=tuple(segments), index=table["index"].to_numpy(), truth=_truth(info)
    )


def _numbers(path: Path) -> pa.Table:
    names = ["episode_index", "frame_index", "task_index", "index"]
    tables = []
    for file in table_files(path, "data"):
        with pq.ParquetFile(file) as parquet:
            tables.append(parquet.read(columns=names))
    table = pa.concat_tables(tables, promote_options="permissive")
    return table.sort_by([("episode_index", "ascending"), ("frame_index", "ascending")])


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


def match_cameras(info: DatasetInfo, views: Sequence[str], asked: str) -> tuple[Camera | None, ...]:
    """Return the camera of the data set for each view of a critic; None is a dark view.

    Raises:
        ValueError: it is not clear which camera is meant, or there is none of that name.
    """
    if asked:
        names = [name.strip() for name in asked.split(",")]
        if len(names) != len(views):
            raise ValueError(
                f"cameras: got {len(names)} ({asked}), expected {len(views)}, one for each view of "
                f"the critic ({', '.join(views) or 'it has none'}); write {DARK} for a dark one"
            )
        return tuple(None if name == DARK else info.camera(name) for name in names)
    own = {camera.name: camera for camera in info.cameras}
    if any(view in own for view in views):
        return tuple(own.get(view) for view in views)
    if len(own) == len(views) or not views:
        return info.cameras[: len(views)]
    raise ValueError(
        f"{info.path}: has cameras {', '.join(own)}, the critic looks through {', '.join(views)}; "
        "say which is which with --cameras"
    )


def checksums(path: Path) -> dict[str, str]:
    """Return blake2b of every file under a folder, by its relative name."""
    found = {}
    for file in sorted(path.rglob("*")):
        if file.is_file():
            with file.open("rb") as opened:
                digest = hashlib.file_digest(opened, lambda: hashlib.blake2b(digest_size=16))
            found[file.relative_to(path).as_posix()] = digest.hexdigest()
    return found


def digest(checksum: dict[str, str]) -> str:
    """Return one hash of many."""
    text = "\n".join(f"{name} {value}" for name, value in sorted(checksum.items()))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
