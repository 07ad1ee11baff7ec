"""Writes episodes as LeRobotDataset v3 shards that are whole or absent, and merges shards.

A shard is an ordinary LeRobotDataset of a few episodes: written under a temporary name, finalised,
checked, flushed to disk and only then renamed. Merging links the shards' videos and rewrites their
tables, so it decodes and encodes nothing. What to record is decided in `training.demos`.
"""

import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla.contracts.specs import RobotSpec
from vla.data.info import DatasetInfo
from vla.data.video_writer import VideoWriter, image_statistics
from vla.data.whole import check_whole, publish

RECORDING_FILE = "meta/recording.json"
"""What was asked for when the data set was recorded; LeRobot ignores the file."""

_DATA_FILE = "data/chunk-000/file-000.parquet"
_VIDEO_FILE = "videos/{}/chunk-{:03d}/file-{:03d}.mp4"
_EPISODES_FILE = "meta/episodes/chunk-000/file-000.parquet"
_FILES_PER_CHUNK = 1000


@runtime_checkable
class Episode(Protocol):
    """What a recorded episode offers (`sim.episode.EpisodeRecord`); frame t precedes action t."""

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
        """What the arm was told."""

    @property
    def behaviour(self) -> str:
        """Who acted."""


def dataset_features(robot: RobotSpec) -> dict[str, dict[str, Any]]:
    """Return LeRobot's feature table for demonstrations of `robot`.

    No key but the action's own starts with "action" and none but cameras and state with
    "observation": LeRobot feeds such columns to policies.
    """
    names = list(robot.names)
    vector = {"dtype": "float32", "shape": (len(names),), "names": names}
    scalar = {"shape": (1,), "names": None}
    cameras = {
        f"observation.images.{camera.name}": {
            "dtype": "video",
            "shape": (camera.height_px, camera.width_px, 3),
            "names": ["height", "width", "channels"],
        }
        for camera in robot.cameras
    }
    return {
        **cameras,
        "observation.state": dict(vector),
        "action": dict(vector),
        "success": {"dtype": "bool", **scalar},
        "progress": {"dtype": "float32", **scalar},
        "behaviour": {"dtype": "string", **scalar},
    }


def write_shard(
    path: Path, robot: RobotSpec, episodes: Iterable[Episode], recording: Mapping[str, Any]
) -> int:
    """Write episodes as one LeRobotDataset at `path`, which appears only once it is complete.

    Args:
        path: Directory to create; it must not exist.
        robot: Names, cameras and control rate.
        episodes: At least one, in order.
        recording: JSON-able description, stored as `meta/recording.json`.

    Returns:
        Number of episodes written.

    Raises:
        ValueError: `robot.control_hz` is not a whole number, or an episode has another shape.
        OSError: the disk is full or not writable; nothing is left at `path`.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    if temporary.exists():
        shutil.rmtree(temporary)
    try:
        count = _record(temporary, robot, episodes)
        (temporary / RECORDING_FILE).write_text(json.dumps(dict(recording), indent=1))
        check_whole(temporary, count)
        publish(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return count


def _record(root: Path, robot: RobotSpec, episodes: Iterable[Episode]) -> int:
    """Write tables, videos and metadata of a shard; return the number of episodes.

    LeRobot's metadata class writes everything under `meta`. Frames and videos are written here: its
    recorder spends 0.2 s per episode re-embedding absent images and rewriting the video file, and
    drops frames when its encoder queue is full.
    """
    from lerobot.datasets.lerobot_dataset import LeRobotDatasetMetadata
    from lerobot.datasets.utils import get_hf_features_from_features, write_info

    fps = int(robot.control_hz)
    if fps != robot.control_hz:
        raise ValueError(f"LeRobot wants a whole control rate, got {robot.control_hz} Hz; round it")
    meta = LeRobotDatasetMetadata.create(
        f"local/{robot.name}", fps, dataset_features(robot), robot.name, root
    )
    schema = get_hf_features_from_features(meta.features).arrow_schema
    videos = {
        key: VideoWriter(root / _VIDEO_FILE.format(key, 0, 0), meta.features[key]["shape"], fps)
        for key in meta.video_keys
    }
    (root / _DATA_FILE).parent.mkdir(parents=True)
    writer = pq.ParquetWriter(root / _DATA_FILE, schema, compression="snappy")
    try:
        for index, episode in enumerate(episodes):
            _record_episode(meta, writer, videos, index, episode)
    finally:
        writer.close()
        for video in videos.values():
            video.close()
        meta._close_writer()  # noqa: SLF001 (LeRobot 0.4.4 has no public name for it)
    meta.update_video_info()
    write_info(meta.info, root)
    return meta.total_episodes


def _record_episode(
    meta: Any,
    writer: pq.ParquetWriter,
    videos: Mapping[str, VideoWriter],
    index: int,
    episode: Episode,
) -> None:
    from lerobot.datasets.compute_stats import compute_episode_stats

    columns = _episode_columns(episode, index, meta.total_frames, meta.fps)
    meta.save_episode_tasks([episode.instruction])
    columns["task_index"] = np.full(len(episode.action), meta.get_task_index(episode.instruction))
    numeric = {k: v for k, v in columns.items() if meta.features[k]["dtype"] != "string"}
    numeric["success"] = columns["success"].astype(np.float32)
    stats = compute_episode_stats(numeric, meta.features)
    first, last = meta.total_frames, meta.total_frames + len(episode.action)
    place: dict[str, Any] = {"data/chunk_index": 0, "data/file_index": 0}
    # LeRobot computes these two itself, but unless given, in an order of columns that varies
    place |= {"dataset_from_index": first, "dataset_to_index": last}
    expected = [tuple(meta.features[key]["shape"]) for key in videos]
    views = np.moveaxis(episode.images, 1, 0)
    if [view.shape[1:] for view in views] != expected:
        raise ValueError(f"expected images `t v h w 3` of {expected}, got {episode.images.shape}")
    for (key, video), frames in zip(videos.items(), views, strict=True):
        place[f"videos/{key}/chunk_index"] = place[f"videos/{key}/file_index"] = 0
        place[f"videos/{key}/from_timestamp"] = video.frames / meta.fps
        video.write(frames)
        place[f"videos/{key}/to_timestamp"] = video.frames / meta.fps
        stats[key] = image_statistics(frames)
    arrays = {
        name: pa.array(list(values) if values.ndim == 2 else values, writer.schema.field(name).type)
        for name, values in columns.items()
    }
    writer.write_table(pa.table(arrays).select(writer.schema.names).cast(writer.schema))
    meta.save_episode(index, len(episode.action), [episode.instruction], stats, place)


def _episode_columns(
    episode: Episode, index: int, first_frame: int, fps: int
) -> dict[str, np.ndarray]:
    frame = np.arange(len(episode.action))
    return {
        "observation.state": episode.proprio.astype(np.float32),
        "action": episode.action.astype(np.float32),
        "success": episode.success.astype(bool),
        "progress": episode.progress.astype(np.float32),
        "behaviour": np.full(len(frame), episode.behaviour),
        "timestamp": (frame / fps).astype(np.float32),
        "frame_index": frame,
        "index": first_frame + frame,
        "episode_index": np.full(len(frame), index),
    }


def merge_shards(shards: Sequence[Path], path: Path, recording: Mapping[str, Any]) -> DatasetInfo:
    """Join shards, in order, into one LeRobotDataset at `path`, which appears only when complete.

    The shards stay. Their video files are linked (copied where the file system has no links), one
    file of the result for each; the tables are rewritten with running indices.
    """
    from lerobot.datasets.compute_stats import aggregate_stats
    from lerobot.datasets.utils import load_info, load_stats, load_tasks, write_info, write_stats

    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        info = load_info(shards[0])
        video_keys = [key for key, f in info["features"].items() if f["dtype"] == "video"]
        tasks = list(dict.fromkeys(t for shard in shards for t in load_tasks(shard).index))
        totals = _merge_tables(shards, temporary, video_keys, tasks, load_tasks)
        info |= {
            "total_episodes": totals[0],
            "total_frames": totals[1],
            "total_tasks": len(tasks),
            "splits": {"train": f"0:{totals[0]}"},
        }
        write_info(info, temporary)
        write_stats(aggregate_stats([load_stats(shard) for shard in shards]), temporary)
        (temporary / RECORDING_FILE).write_text(json.dumps(dict(recording), indent=1))
        merged = check_whole(temporary, totals[0])
        publish(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return merged.moved_to(path)


def _merge_tables(
    shards: Sequence[Path], out: Path, video_keys: list[str], tasks: list[str], load_tasks: Any
) -> tuple[int, int]:
    """Write data, episode and task tables and link the videos; return (episodes, frames)."""
    from lerobot.datasets.utils import write_tasks

    for name in (_DATA_FILE, _EPISODES_FILE):
        (out / name).parent.mkdir(parents=True)
    number = {task: i for i, task in enumerate(tasks)}
    episode_tables, first_episode, first_frame = [], 0, 0
    writer = None
    try:
        for k, shard in enumerate(shards):
            local = load_tasks(shard)
            to_global = np.zeros(len(local), np.int64)
            to_global[local["task_index"].to_numpy()] = [number[task] for task in local.index]
            data = pq.read_table(shard / _DATA_FILE)
            data = _shift(data, {"episode_index": first_episode, "index": first_frame})
            task_index = to_global[data["task_index"].to_numpy()]
            data = _replace(data, "task_index", task_index)
            writer = writer or pq.ParquetWriter(out / _DATA_FILE, data.schema, compression="snappy")
            writer.write_table(data)
            episodes = pq.read_table(shard / _EPISODES_FILE)
            episode_tables.append(_renumber(episodes, k, video_keys, first_episode, first_frame))
            _link_videos(shard, out, k, video_keys)
            first_episode += len(episodes)
            first_frame += len(data)
    finally:
        if writer is not None:
            writer.close()
    table = pa.concat_tables(episode_tables, promote_options="permissive")
    pq.write_table(table, out / _EPISODES_FILE)
    frame = load_tasks(shards[0]).iloc[:0].reindex(tasks)
    frame["task_index"] = np.arange(len(tasks))
    write_tasks(frame, out)
    return first_episode, first_frame


def _renumber(
    episodes: pa.Table, file: int, video_keys: list[str], first_episode: int, first_frame: int
) -> pa.Table:
    offsets = {
        "episode_index": first_episode,
        "dataset_from_index": first_frame,
        "dataset_to_index": first_frame,
    }
    episodes = _shift(episodes, offsets)
    for key in video_keys:
        chunk, within = divmod(file, _FILES_PER_CHUNK)
        episodes = _replace(episodes, f"videos/{key}/chunk_index", np.full(len(episodes), chunk))
        episodes = _replace(episodes, f"videos/{key}/file_index", np.full(len(episodes), within))
    return episodes


def _link_videos(shard: Path, out: Path, file: int, video_keys: list[str]) -> None:
    chunk, within = divmod(file, _FILES_PER_CHUNK)
    for key in video_keys:
        source = shard / _VIDEO_FILE.format(key, 0, 0)
        target = out / _VIDEO_FILE.format(key, chunk, within)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, target)
        except OSError:  # no hard links on this file system
            shutil.copyfile(source, target)


def _shift(table: pa.Table, offsets: Mapping[str, int]) -> pa.Table:
    for name, offset in offsets.items():
        table = _replace(table, name, table[name].to_numpy() + offset)
    return table


def _replace(table: pa.Table, name: str, values: np.ndarray) -> pa.Table:
    column = table.schema.get_field_index(name)
    kind = table.schema.field(column)
    return table.set_column(column, kind, pa.array(values, kind.type))
