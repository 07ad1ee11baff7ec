"""Writes episodes as a LeRobotDataset v3 without LeRobot and torch, for a robot's computer.

Pictures come one by one, so an episode need not fit into memory. Demonstrations from simulation,
in shards that are merged, are written in `vla.data.writer`.
"""

import json
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla.contracts.specs import RobotSpec
from vla.data.info import DatasetInfo
from vla.data.video_writer import (
    CODEC,
    PIXEL_FORMAT,
    QUANTILES,
    SAMPLE,
    VideoWriter,
    sample_statistics,
)
from vla.data.whole import check_whole, publish

FILES_PER_CHUNK = 1000
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
IMPLICIT = {
    "timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64",
    "task_index": "int64",
}  # fmt: skip
"""Columns that every set has beside its own."""

Statistics = dict[str, dict[str, np.ndarray]]


@dataclass(frozen=True, kw_only=True)
class PlainEpisode:
    """One episode of T frames."""

    task: str
    """Instruction."""
    columns: Mapping[str, np.ndarray]
    """By name: `t d`, or `t` for one value per frame."""
    pictures: Mapping[str, Iterable[np.ndarray]]
    """By name of the camera: T pictures, RGB u8 `h w 3`."""


def features(
    robot: RobotSpec, sizes: Mapping[str, tuple[int, int]], scalars: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """Return LeRobot's feature table of a recording.

    Args:
        robot: Names of the joints.
        sizes: Height and width by name of the camera.
        scalars: Further columns with one value per frame: dtype by name.
    """
    names = list(robot.names)
    vector = {"dtype": "float32", "shape": [len(names)], "names": names}
    cameras = {
        f"observation.images.{name}": {
            "dtype": "video", "shape": [*hw, 3], "names": ["height", "width", "channels"],
        }
        for name, hw in sizes.items()
    }  # fmt: skip
    further = {
        name: {"dtype": dtype, "shape": [1], "names": None} for name, dtype in scalars.items()
    }
    return {**cameras, "observation.state": dict(vector), "action": dict(vector), **further}


def write_set(
    path: Path, robot: RobotSpec, fps: int, table: Mapping[str, dict[str, Any]],
    episodes: Iterable[PlainEpisode], recording: Mapping[str, Any],
) -> DatasetInfo:  # fmt: skip
    """Write episodes as one LeRobotDataset at `path`, which appears only once it is complete.

    Args:
        path: Directory to create; it must not exist.
        robot: Whose recording it is.
        fps: Frames per second.
        table: The features.
        episodes: At least one, each with its pictures read as they are written.
        recording: What was recorded, stored as JSON once all episodes were read.

    Raises:
        ValueError: what an episode raises while it is read, or there is none; nothing is left.
        OSError: the disk is full; nothing is left at `path`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        count = _Set(temporary, robot.name, fps, table).write(episodes)
        (temporary / "meta/recording.json").write_text(json.dumps(dict(recording), indent=1))
        info = check_whole(temporary, count)
        publish(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return info.moved_to(path)


class _Set:
    """A set while it is written."""

    def __init__(
        self, root: Path, robot: str, fps: int, table: Mapping[str, dict[str, Any]]
    ) -> None:
        self._root, self._robot, self._fps = root, robot, fps
        self._features = {key: dict(feature) for key, feature in table.items()}
        self._cameras = [key for key, f in self._features.items() if f["dtype"] == "video"]
        for key in self._cameras:
            self._features[key]["info"] = _video_info(self._features[key]["shape"], fps)
        for key, dtype in IMPLICIT.items():
            self._features[key] = {"dtype": dtype, "shape": [1], "names": None}
        self._tasks: dict[str, int] = {}
        self._rows: list[dict[str, Any]] = []
        self._stats: list[Statistics] = []
        self._frames = 0

    def write(self, episodes: Iterable[PlainEpisode]) -> int:
        """Write everything; return the number of episodes."""
        data = self._root / DATA.format(chunk_index=0, file_index=0)
        data.parent.mkdir(parents=True)
        schema = pa.schema([
            (key, _arrow(feature))
            for key, feature in self._features.items()
            if key not in self._cameras
        ])  # fmt: skip
        with pq.ParquetWriter(data, schema, compression="snappy") as writer:
            for episode in episodes:
                self._write_episode(writer, episode)
        if not self._rows:
            raise ValueError("got no episode to write, expected at least one")
        self._write_meta()
        return len(self._rows)

    def _write_episode(self, writer: pq.ParquetWriter, episode: PlainEpisode) -> None:
        index, length = len(self._rows), len(episode.columns["action"])
        task = self._tasks.setdefault(episode.task, len(self._tasks))
        frame = np.arange(length)
        columns = {
            **episode.columns,
            "timestamp": (frame / self._fps).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full(length, index),
            "index": self._frames + frame,
            "task_index": np.full(length, task),
        }
        row: dict[str, Any] = {
            "episode_index": index, "tasks": [episode.task], "length": length,
            "data/chunk_index": 0, "data/file_index": 0, "dataset_from_index": self._frames,
            "dataset_to_index": self._frames + length,
        }  # fmt: skip
        stats: Statistics = {}
        chunk, file = divmod(index, FILES_PER_CHUNK)
        for key in self._cameras:
            name = VIDEO.format(video_key=key, chunk_index=chunk, file_index=file)
            pictures = episode.pictures[key.removeprefix("observation.images.")]
            stats[key] = self._write_video(self._root / name, key, pictures, length)
            row |= {
                f"videos/{key}/chunk_index": chunk, f"videos/{key}/file_index": file,
                f"videos/{key}/from_timestamp": 0.0,
                f"videos/{key}/to_timestamp": length / self._fps,
            }  # fmt: skip
        stats |= {key: statistics(np.asarray(values)) for key, values in columns.items()}
        arrays = [
            pa.array(
                list(columns[f.name]) if columns[f.name].ndim == 2 else columns[f.name], f.type
            )
            for f in writer.schema
        ]
        writer.write_table(pa.Table.from_arrays(arrays, schema=writer.schema))
        self._rows.append(row)
        self._stats.append(stats)
        self._frames += length

    def _write_video(
        self, path: Path, key: str, pictures: Iterable[np.ndarray], length: int
    ) -> dict[str, np.ndarray]:
        """Write one camera's pictures of an episode; return their statistics."""
        shape = tuple(self._features[key]["shape"])
        sample: list[np.ndarray] = []

        def checked() -> Iterator[np.ndarray]:
            for step, pixels in enumerate(pictures):
                if pixels.shape != shape:
                    raise ValueError(f"{key}: got a picture of {pixels.shape}, expected {shape}")
                if step % SAMPLE == 0:
                    sample.append(pixels)
                yield pixels

        video = VideoWriter(path, shape, self._fps)
        try:
            video.write(checked())
        finally:
            video.close()
        assert video.frames == length
        return sample_statistics(np.stack(sample))

    def _write_meta(self) -> None:
        meta = self._root / "meta"
        info = {
            "codebase_version": "v3.0", "robot_type": self._robot,
            "total_episodes": len(self._rows), "total_frames": self._frames,
            "total_tasks": len(self._tasks), "chunks_size": FILES_PER_CHUNK,
            "data_files_size_in_mb": 100, "video_files_size_in_mb": 200, "fps": self._fps,
            "splits": {"train": f"0:{len(self._rows)}"}, "data_path": DATA, "video_path": VIDEO,
            "features": self._features,
        }  # fmt: skip
        (self._root / EPISODES).parent.mkdir(parents=True)
        rows = [
            {
                **row,
                **{
                    f"stats/{k}/{s}": v.tolist() for k, one in stats.items() for s, v in one.items()
                },
                "meta/episodes/chunk_index": 0,
                "meta/episodes/file_index": 0,
            }
            for row, stats in zip(self._rows, self._stats, strict=True)
        ]
        pq.write_table(pa.Table.from_pylist(rows), self._root / EPISODES)
        pq.write_table(task_table(self._tasks), meta / "tasks.parquet")
        joined = {key: joined_statistics([s[key] for s in self._stats]) for key in self._stats[0]}
        said = {k: {name: v.tolist() for name, v in one.items()} for k, one in joined.items()}
        (meta / "stats.json").write_text(json.dumps(said, indent=4))
        (meta / "info.json").write_text(json.dumps(info, indent=4))


def statistics(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return LeRobot's figures of a column `t` or `t d`, per channel."""
    rows = values.reshape(len(values), -1).astype(np.float64)
    found = {"min": rows.min(0), "max": rows.max(0), "mean": rows.mean(0), "std": rows.std(0)}
    quantiles = np.quantile(rows, list(QUANTILES.values()), axis=0)
    return {
        **found, **dict(zip(QUANTILES, quantiles, strict=True)), "count": np.array([len(rows)]),
    }  # fmt: skip


def joined_statistics(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the figures of several episodes together; quantiles as their mean, like LeRobot's.

    What sets of version 2 say of their pictures has no quantiles.
    """
    count = np.array([part["count"][0] for part in parts], np.float64)

    def mean(name: str) -> np.ndarray:
        return np.average(np.stack([part[name] for part in parts]), axis=0, weights=count)

    centre = mean("mean")
    spread = np.stack([part["std"] ** 2 + (part["mean"] - centre) ** 2 for part in parts])
    return {
        "min": np.stack([part["min"] for part in parts]).min(0),
        "max": np.stack([part["max"] for part in parts]).max(0),
        "mean": centre,
        "std": np.sqrt(np.average(spread, axis=0, weights=count)),
        "count": np.array([int(count.sum())]),
        **{name: mean(name) for name in QUANTILES if all(name in part for part in parts)},
    }


def task_table(tasks: Mapping[str, int]) -> pa.Table:
    """Return the instructions as pandas writes them: as the index, by which LeRobot looks."""
    index = "__index_level_0__"
    said = {
        "index_columns": [index], "column_indexes": [],
        "columns": [
            {"name": "task_index", "field_name": "task_index", "pandas_type": "int64",
             "numpy_type": "int64", "metadata": None},
            {"name": None, "field_name": index, "pandas_type": "unicode",
             "numpy_type": "object", "metadata": None},
        ],
    }  # fmt: skip
    table = pa.table({
        "task_index": pa.array(list(tasks.values()), pa.int64()),
        index: pa.array(list(tasks), pa.string()),
    })  # fmt: skip
    return table.replace_schema_metadata({"pandas": json.dumps(said)})


def _arrow(feature: Mapping[str, Any]) -> pa.DataType:
    kind = pa.bool_() if feature["dtype"] == "bool" else pa.type_for_alias(feature["dtype"])
    size = feature["shape"][0]
    return kind if size == 1 else pa.list_(kind, size)


def _video_info(shape: list[int], fps: int) -> dict[str, Any]:
    return {
        "video.height": shape[0], "video.width": shape[1],
        "video.codec": "h264" if CODEC == "libx264" else CODEC, "video.pix_fmt": PIXEL_FORMAT,
        "video.is_depth_map": False, "video.fps": fps, "video.channels": 3, "has_audio": False,
    }  # fmt: skip
