"""Writes LeRobotDataset v3 without LeRobot and torch; a data set appears only when complete.

`DatasetWriter` owns the layout. Demonstrations are recorded in shards, ordinary data sets of a few
episodes, that are merged without decoding (`training.data.demos`).
"""

import contextlib
import dataclasses
import itertools
import json
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla.contracts.specs import RobotSpec
from vla.data.episode import EpisodeData, VideoSpan, episode_data, feature_table, scalar_feature
from vla.data.info import (
    DATA,
    EPISODES,
    FILES_PER_CHUNK,
    INDEX_COLUMNS,
    RECORDING_FILE,
    VIDEO,
    DatasetInfo,
)
from vla.data.parquet import ParquetWriter, write_table
from vla.data.reader import VERSION, open_dataset, table_files
from vla.data.remux import CameraVideos, VideoPlace
from vla.data.stats import Statistics, as_lists, column_stats, column_values, has_stats, merge_stats
from vla.data.video_writer import CODEC, PIXEL_FORMAT
from vla.utils import files

DATA_FILE_BYTES = 100_000_000
"""Approximate size of a table, as in LeRobot."""
ROWS_AT_ONCE = 500
"""Rows of the episode table that are buffered."""


class DatasetWriter:
    """Writes a data set under a temporary name: `with` it, `add` episodes, and it is published.

    At the end of the `with` block everything is checked, flushed to disk and renamed. After an
    error, or without an episode, nothing is left. Whoever writes has claimed `path`.
    """

    info: DatasetInfo
    """Description of the data set, once it is published."""

    def __init__(
        self, path: Path, *, robot: str | None, fps: int, features: Mapping[str, dict[str, Any]],
        recording: Mapping[str, Any],
    ) -> None:  # fmt: skip
        """Prepare a data set at `path`, which must not exist.

        `features` is LeRobot's feature table without the standard columns; `recording`, JSON types,
        is stored as `meta/recording.json`.
        """
        self._path, self._root = path, files.temporary_of(path)
        self._robot, self._fps, self._recording = robot, fps, recording
        indices = {key: scalar_feature(dtype) for key, dtype in INDEX_COLUMNS.items()}
        self._features = {key: dict(f) for key, f in features.items()} | indices
        self._videos = {
            key: CameraVideos(self._root, key, fps)
            for key, feature in features.items()
            if feature["dtype"] == "video"
        }
        self._tasks: dict[str, int] = {}
        self._data: ParquetWriter | None = None
        self._schema: pa.Schema | None = None
        self._data_file, self._data_bytes = -1, 0
        self._rows: list[dict[str, Any]] = []
        self._table: ParquetWriter | None = None
        self._statistics: Statistics = {}
        self._episodes = self._frames = 0

    def __enter__(self) -> "DatasetWriter":
        self._root.parent.mkdir(parents=True, exist_ok=True)
        files.clear_leftovers(self._path)
        self._root.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        try:
            # After an error, that one is reported, not what it does to the files.
            with contextlib.nullcontext() if error is None else contextlib.suppress(Exception):
                self._close()
            if error is None:
                self._write_meta()
                info = self._checked()
                files.publish(self._root, self._path)
                self.info = dataclasses.replace(info, path=self._path)
        finally:
            shutil.rmtree(self._root, ignore_errors=True)

    def _checked(self) -> DatasetInfo:
        """Read the set back; what it says is about the set, not about its temporary place."""
        try:
            return check_complete(self._root, self._episodes)
        except ValueError as error:
            raise ValueError(str(error).replace(str(self._root), str(self._path))) from error

    def add(self, episode: EpisodeData) -> None:
        """Append an episode; its images are read one by one.

        Raises:
            ValueError: images have another size or are not as many as the frames.
            OSError: the disk is full.
        """
        length = len(episode.timestamp)
        row: dict[str, Any] = {
            "episode_index": self._episodes, "tasks": list(episode.tasks), "length": length,
            "dataset_from_index": self._frames, "dataset_to_index": self._frames + length,
        }  # fmt: skip
        stats = dict(episode.statistics)
        for key in self._videos:
            place = self._write_video(key, episode, stats)
            row |= {
                f"videos/{key}/chunk_index": place.chunk, f"videos/{key}/file_index": place.file,
                f"videos/{key}/from_timestamp": place.begin_s,
                f"videos/{key}/to_timestamp": place.begin_s + length / self._fps,
            }  # fmt: skip
        table = self._with_indices(episode)
        self._write_data(table)
        row["data/chunk_index"], row["data/file_index"] = divmod(self._data_file, FILES_PER_CHUNK)
        stats |= {
            key: column_stats(column_values(table[key]))
            for key, feature in self._features.items()
            if has_stats(feature)
        }
        for key, figures in as_lists(stats).items():
            row |= {f"stats/{key}/{name}": value for name, value in figures.items()}
        self._rows.append(row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        if len(self._rows) == ROWS_AT_ONCE:
            self._write_episodes()
        self._statistics = {
            key: merge_stats([self._statistics[key], s]) if key in self._statistics else s
            for key, s in stats.items()
        }
        self._frames += length
        self._episodes += 1

    def _write_video(self, key: str, episode: EpisodeData, stats: Statistics) -> VideoPlace:
        """Append an episode's frames of one camera; add the statistics of encoded images."""
        videos, images = self._videos[key], episode.images[key]
        if isinstance(images, Path):
            return videos.join(images)
        if isinstance(images, VideoSpan):
            return videos.link(images)
        feature = self._features[key]
        feature["info"] = {
            "video.height": feature["shape"][0], "video.width": feature["shape"][1],
            "video.codec": "h264" if CODEC == "libx264" else CODEC, "video.pix_fmt": PIXEL_FORMAT,
            "video.is_depth_map": False, "video.fps": self._fps, "video.channels": 3,
            "has_audio": False,
        }  # fmt: skip
        place, stats[key] = videos.encode(
            images, feature["shape"], len(episode.timestamp), f"episode {self._episodes}, {key}"
        )
        return place

    def _with_indices(self, episode: EpisodeData) -> pa.Table:
        """Return the rows of an episode with the standard columns."""
        length = len(episode.timestamp)
        frame = np.arange(length)
        task = np.array([self._tasks.setdefault(t, len(self._tasks)) for t in episode.tasks])
        indices = {
            "timestamp": episode.timestamp, "frame_index": frame,
            "episode_index": np.full(length, self._episodes), "index": self._frames + frame,
            "task_index": task[episode.task],
        }  # fmt: skip
        table = episode.columns
        for name, dtype in INDEX_COLUMNS.items():
            table = table.append_column(name, pa.array(indices[name], pa.type_for_alias(dtype)))
        return table.replace_schema_metadata(None)

    def _write_data(self, table: pa.Table) -> None:
        if self._data is None or self._data_bytes > DATA_FILE_BYTES:
            if self._data is not None:
                self._data.close()
            self._schema = self._schema or table.schema
            self._data_file, self._data_bytes = self._data_file + 1, 0
            chunk, within = divmod(self._data_file, FILES_PER_CHUNK)
            path = self._root / DATA.format(chunk_index=chunk, file_index=within)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._data = ParquetWriter(path, self._schema, compression="snappy")
        try:
            table = table.cast(self._schema)
        except pa.ArrowException as error:
            raise ValueError(
                f"{self._path}: columns of episode {self._episodes} have not the first episode's "
                f"types ({error}); record it again, or leave it out"
            ) from error
        self._data.write_table(table)
        self._data_bytes += table.nbytes

    def _write_episodes(self) -> None:
        if self._table is None:
            (self._root / EPISODES).parent.mkdir(parents=True)
            self._table = ParquetWriter(self._root / EPISODES, _row_schema(self._rows[0]))
        self._table.write_table(pa.Table.from_pylist(self._rows, self._table.schema))
        self._rows = []

    def _close(self) -> None:
        """Close all files."""
        if self._rows:
            self._write_episodes()
        for file in (self._data, self._table, *self._videos.values()):
            if file is not None:
                file.close()

    def _write_meta(self) -> None:
        """Write the metadata after the last episode."""
        if not self._episodes:
            raise ValueError("got no episode to write, expected at least one")
        meta = self._root / "meta"
        info = {
            "codebase_version": VERSION, "robot_type": self._robot,
            "total_episodes": self._episodes, "total_frames": self._frames,
            "total_tasks": len(self._tasks), "chunks_size": FILES_PER_CHUNK,
            "data_files_size_in_mb": 100, "video_files_size_in_mb": 200, "fps": self._fps,
            "splits": {"train": f"0:{self._episodes}"}, "data_path": DATA,
            "video_path": VIDEO if self._videos else None, "features": self._features,
        }  # fmt: skip
        write_table(_task_table(self._tasks), meta / "tasks.parquet")
        (meta / "stats.json").write_text(
            json.dumps(as_lists(self._statistics), indent=4, sort_keys=True)
        )
        (meta / "info.json").write_text(json.dumps(info, indent=4))
        (self._root / RECORDING_FILE).write_text(json.dumps(dict(self._recording), indent=1))


def check_complete(path: Path, episodes: int) -> DatasetInfo:
    """Open a data set just written and check that it holds `episodes` episodes."""
    info = open_dataset(path)
    if info.num_episodes != episodes:
        raise ValueError(f"{path}: wrote {episodes} episodes but {info.num_episodes} are readable")
    return info


def _row_schema(row: Mapping[str, Any]) -> pa.Schema:
    """Return the columns of the episode table; statistics are always floats."""
    kinds = {}
    for name, value in row.items():
        kind, inner = pa.infer_type([value]), value
        if name.startswith("stats/") and not name.endswith("/count"):
            kind = pa.float64()
            while isinstance(inner, list):
                kind, inner = pa.list_(kind), inner[0]
        kinds[name] = kind
    return pa.schema(list(kinds.items()))


def _task_table(tasks: Mapping[str, int]) -> pa.Table:
    """Return the instructions in the layout of pandas: LeRobot reads them by their index."""
    index = "__index_level_0__"
    pandas = {
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
    return table.replace_schema_metadata({"pandas": json.dumps(pandas)})


# --- demonstrations: shards and their merge ------------------------------------------------------


@runtime_checkable
class Episode(Protocol):
    """A recorded episode (`sim.experts.episode.EpisodeRecord`); frame t precedes
    action t.
    """

    @property
    def images(self) -> np.ndarray:
        """RGB u8 `t v h w 3`."""

    @property
    def proprio(self) -> np.ndarray:
        """Measured positions f32 `t s`."""

    @property
    def action(self) -> np.ndarray:
        """Position targets f32 `t u`."""

    @property
    def success(self) -> np.ndarray:
        """Whether the task is solved, bool `t`."""

    @property
    def progress(self) -> np.ndarray:
        """Simulator truth in [0, 1], f32 `t`."""

    @property
    def instruction(self) -> str:
        """Instruction, at the first step."""

    @property
    def instructions(self) -> Sequence[str]:
        """Instruction at every step, where it changes; else nothing."""

    @property
    def behaviour(self) -> str:
        """Name of the acting behaviour."""

    @property
    def labels(self) -> Mapping[str, np.ndarray]:
        """Further columns f32 `t` by name."""


def dataset_features(robot: RobotSpec, labels: Iterable[str] = ()) -> dict[str, dict[str, Any]]:
    """Return LeRobot's feature table for demonstrations of `robot`, with further columns.

    No key but that of the action starts with "action" and none but cameras and state with
    "observation": LeRobot feeds such columns to policies.
    """
    cameras = {camera.name: (camera.height_px, camera.width_px) for camera in robot.cameras}
    scalars = {"success": "bool", "progress": "float32", "behaviour": "string"}
    scalars |= dict.fromkeys(labels, "float32")
    return feature_table(cameras, robot.names, robot.names, scalars)


def write_shard(
    path: Path, robot: RobotSpec, episodes: Iterable[Episode], recording: Mapping[str, Any]
) -> int:
    """Write episodes, at least one, as one LeRobotDataset at `path`; return their number.

    The directory must not exist, and appears only once it is complete. `recording`, JSON types, is
    stored as `meta/recording.json`.

    Raises:
        ValueError: `robot.control_hz` is not a whole number, or an episode has another shape.
        OSError: the disk is full or not writable; nothing is left at `path`.
    """
    fps = int(robot.control_hz)
    if fps != robot.control_hz:
        raise ValueError(f"LeRobot wants a whole control rate, got {robot.control_hz} Hz; round it")
    rest = iter(episodes)
    first = next(rest, None)
    features = dataset_features(robot, first.labels if first else ())
    with DatasetWriter(
        path, robot=robot.name, fps=fps, features=features, recording=recording
    ) as writer:
        for episode in itertools.chain([first] if first else [], rest):
            writer.add(_demonstration(robot, episode, fps))
    return writer.info.num_episodes


def _demonstration(robot: RobotSpec, episode: Episode, fps: int) -> EpisodeData:
    expected = [(camera.height_px, camera.width_px, 3) for camera in robot.cameras]
    views = np.moveaxis(episode.images, 1, 0)
    if [view.shape[1:] for view in views] != expected:
        raise ValueError(f"expected images `t v h w 3` of {expected}, got {episode.images.shape}")
    values = {
        "observation.state": episode.proprio, "action": episode.action,
        "success": episode.success.astype(bool), "progress": episode.progress.astype(np.float32),
        "behaviour": np.full(len(episode.action), episode.behaviour), **episode.labels,
    }  # fmt: skip
    images = {
        f"observation.images.{camera.name}": iter(view)
        for camera, view in zip(robot.cameras, views, strict=True)
    }
    told = episode.instructions or episode.instruction
    return episode_data(values, told, fps, images)


def merge_shards(shards: Sequence[Path], path: Path, recording: Mapping[str, Any]) -> DatasetInfo:
    """Join shards, in order, into one LeRobotDataset at `path`, which appears only when complete.

    The shards stay. Their video files are linked (copied where the file system has no links), one
    file of the result for each; the tables are rewritten with running indices.
    """
    first = json.loads((shards[0] / "meta/info.json").read_text())
    features = {k: f for k, f in first["features"].items() if k not in INDEX_COLUMNS}
    with DatasetWriter(
        path, robot=first["robot_type"], fps=first["fps"], features=features, recording=recording
    ) as writer:
        for shard in shards:
            for episode in _episodes(shard):
                writer.add(episode)
    return writer.info


def _episodes(shard: Path) -> Iterator[EpisodeData]:
    """Yield the episodes of a shard; their videos are linked."""
    info = open_dataset(shard)
    frames = pa.concat_tables([pq.read_table(file) for file in table_files(shard, "data")])
    rows = pa.concat_tables([pq.read_table(file) for file in table_files(shard, "meta/episodes")])
    figures = [name for name in rows.column_names if name.startswith("stats/observation.images.")]
    for episode, (begin, length) in enumerate(zip(info.offsets, info.lengths, strict=False)):
        table = frames.slice(begin, length)
        statistics: Statistics = {key: {} for key in info.video_file}
        for name in figures:
            _, key, figure = name.split("/")
            statistics[key][figure] = np.array(rows[name][episode].as_py())
        tasks, task = info.episode_instructions(episode)
        yield EpisodeData(
            tasks=tasks,
            task=task,
            columns=table.drop_columns(list(INDEX_COLUMNS)),
            timestamp=table["timestamp"].to_numpy(),
            images={
                key: VideoSpan(
                    path=shard / names[episode],
                    begin_s=float(info.video_start[key][episode] / info.fps),
                )
                for key, names in info.video_file.items()
            },
            statistics=statistics,
        )
