"""Opens any LeRobotDataset v3 without LeRobot and reports damage in one sentence.

Checks everything that could stop a training run. `vla.data.decode` decodes images,
`vla.data.store` caches them.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla.contracts.specs import MAX_IMAGE_PX
from vla.data import mp4, path_pattern
from vla.data.info import RECORDING_FILE, Camera, Columns, DatasetInfo
from vla.data.limits import MAX_CHANNELS
from vla.utils import files

STATE = "observation.state"
ACTION = "action"
VERSION = "v3.0"
MAX_FPS = 100_000
_INFO_KINDS: dict[str, Any] = {
    "fps": (int, float), "features": dict, "total_episodes": int, "total_frames": int,
    "data_path": str, "video_path": (str, type(None)),
}  # fmt: skip
_INDEX_COLUMNS = ("episode_index", "frame_index", "index", "task_index")


ADVICE = "copy the data set again, or record it again"


def open_dataset(path: Path | str, *, content: bool = True) -> DatasetInfo:
    """Check a LeRobotDataset v3 and describe it.

    Every table is checked for completeness and consistency with the others. Pixels are not decoded.

    Args:
        path: Directory of the data set.
        content: Whether videos are checked to hold their frames, states and actions to be finite.

    Raises:
        ValueError: what is wrong, in one sentence with what to do about it.
    """
    path = Path(path)
    with files.parsing(path, ADVICE):
        return _open(path, content)


def _open(path: Path, content: bool) -> DatasetInfo:
    meta = _read_info(path)
    features = meta["features"]
    _check_features(path, features)
    cameras = _cameras(path, features)
    table = _read_tables(path, "data", _wanted_columns(features))
    _check_filled(path, table, (*_INDEX_COLUMNS, STATE, ACTION))
    order, offsets = _episode_order(path, meta, table)
    episodes = _read_episodes(path, cameras, np.diff(offsets))
    task_text = _read_tasks(path)
    every = table["task_index"].to_numpy()[order]
    task_index = every[offsets[:-1]]
    unknown = set(every.tolist()) - set(task_text)
    if unknown:
        raise ValueError(
            f"{path}: task_index {min(unknown)} is not in meta/tasks.parquet; record it again"
        )
    start, videos = _locate_videos(path, meta, cameras, episodes)
    if content:
        for key in start:
            _check_videos(path, float(meta["fps"]), videos[key], start[key] + np.diff(offsets))
    recording = path / RECORDING_FILE
    info = DatasetInfo(
        path=path, fps=float(meta["fps"]), robot=meta.get("robot_type"), cameras=cameras,
        state_names=_names(features, STATE), action_names=_names(features, ACTION),
        scalars=_scalars(features), tasks=tuple(task_text[int(i)] for i in task_index),
        offsets=offsets, video_start=start, video_file=videos,
        recording=_read_json(recording) if recording.is_file() else None,
        **_changing(every, task_index, offsets, task_text),
    )  # fmt: skip
    if content:
        _check_finite(info, _columns(info, table, order))
    return info


def _changing(
    every: np.ndarray, first: np.ndarray, offsets: np.ndarray, text: dict[int, str]
) -> dict[str, Any]:
    """Return instructions and which one each frame has, if they change within an episode."""
    if (every == np.repeat(first, np.diff(offsets))).all():
        return {}
    used, index = np.unique(every, return_inverse=True)
    return {"texts": tuple(text[int(i)] for i in used), "frame_text": index.astype(np.int64)}


def read_columns(info: DatasetInfo) -> Columns:
    """Read state, action and scalar columns of every frame, in order of episode and time."""
    with files.parsing(info.path, ADVICE):
        meta = _read_info(info.path)
        table = _read_tables(info.path, "data", _wanted_columns(meta["features"]))
        order, _ = _episode_order(info.path, meta, table)
        return _columns(info, table, order)


def read_timestamps(info: DatasetInfo) -> np.ndarray:
    """Read when each frame was recorded, f64 `n` seconds, in order of episode and time."""
    with files.parsing(info.path, ADVICE):
        meta = _read_info(info.path)
        table = _read_tables(info.path, "data", [*_INDEX_COLUMNS, "timestamp"])
        order, _ = _episode_order(info.path, meta, table)
        return table["timestamp"].to_numpy()[order].astype(np.float64)


def table_files(path: Path, folder: str) -> list[Path]:
    """Return the parquet files under a folder of a data set in order of chunk and file."""
    return sorted((path / folder).glob("*/*.parquet"))


def _read_info(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        state = "is not a directory" if path.exists() else "does not exist"
        raise ValueError(f"{path}: {state}; expected the directory of a LeRobotDataset {VERSION}")
    file = path / "meta/info.json"
    if not file.is_file():
        raise ValueError(f"{path}: has no meta/info.json; expected a LeRobotDataset {VERSION}")
    meta = _read_json(file)
    version = str(meta.get("codebase_version"))
    if version.startswith("v2"):
        raise ValueError(
            f"{path}: is LeRobotDataset {version}, expected {VERSION}; convert it with vla data "
            f"import {path} --out NEW"
        )
    if version != VERSION:
        raise ValueError(
            f"{path}: is LeRobotDataset {version}, expected {VERSION}; convert it first"
        )
    for key, kind in _INFO_KINDS.items():
        if not isinstance(meta.get(key), kind):
            raise ValueError(f"{file}: {key!r} is {meta.get(key)!r}; copy the data set again")
    for key, feature in meta["features"].items():
        if not isinstance(feature, dict) or not {"dtype", "shape"} <= set(feature):
            raise ValueError(
                f"{file}: column {key!r} has no dtype and shape; copy the data set again"
            )
        shape = feature["shape"]
        if not isinstance(shape, list) or any(type(n) is not int for n in shape):
            raise ValueError(
                f"{file}: column {key!r} has shape {str(shape)[:200]}, expected whole numbers; "
                "correct it there"
            )
    if not 0 < meta["fps"] < MAX_FPS:
        raise ValueError(
            f"{file}: 'fps' is {meta['fps']}, expected more than 0 and less than {MAX_FPS:,}; "
            "correct it there"
        )
    return meta


def _read_json(file: Path) -> dict[str, Any]:
    with files.parsing(file, ADVICE):
        value = json.loads(file.read_text())
        json.dumps(value, ensure_ascii=False).encode()  # half a surrogate is no text
    if not isinstance(value, dict):
        raise ValueError(f"{file}: damaged (no JSON object); copy the data set again")
    return value


def _check_features(path: Path, features: dict[str, Any]) -> None:
    for key in (STATE, ACTION):
        if key not in features:
            raise ValueError(
                f"{path}: has no column {key!r} (it has {', '.join(features)}); rename the column "
                "that holds it, or record the data set with it"
            )
        shape = features[key]["shape"]
        if len(shape) != 1 or not 1 <= shape[0] <= MAX_CHANNELS:
            raise ValueError(
                f"{path}: {key!r} has shape {str(shape)[:200]}, expected one dimension of at most "
                f"{MAX_CHANNELS:,} numbers; flatten it"
            )


def _cameras(path: Path, features: dict[str, Any]) -> tuple[Camera, ...]:
    cameras = []
    for key, feature in features.items():
        if feature["dtype"] not in ("video", "image") or _is_depth(feature):
            continue
        shape = dict(zip(feature.get("names") or (), feature["shape"], strict=False))
        if {"height", "width"} <= set(shape):
            height, width = shape["height"], shape["width"]
        else:
            height, width = sorted(feature["shape"])[-2:]
        if not (min(height, width) >= 1 and height * width <= MAX_IMAGE_PX):
            raise ValueError(
                f"{path}: {key!r} has images of {height} x {width}, expected at most "
                f"{MAX_IMAGE_PX:,} pixels; repair meta/info.json"
            )
        name = key.removeprefix("observation.").removeprefix("images.")
        cameras.append(
            Camera(
                name=name,
                key=key,
                height_px=height,
                width_px=width,
                video=feature["dtype"] == "video",
            )
        )
    if not cameras:
        raise ValueError(
            f"{path}: has no camera (no column of dtype video or image, only "
            f"{', '.join(features)}); record it with at least one, named observation.images.NAME"
        )
    return tuple(cameras)


def _is_depth(feature: dict[str, Any]) -> bool:
    """Return whether a camera sees distances, as LeRobot notes from 0.6 on; no policy reads it."""
    info = feature.get("info") or feature.get("video_info")
    return isinstance(info, dict) and bool(
        info.get("is_depth_map") or info.get("video.is_depth_map")
    )


def _names(features: dict[str, Any], key: str) -> tuple[str, ...]:
    """Return channel names; LeRobot stores a list, a dict of lists, or nothing."""
    size, names = features[key]["shape"][0], features[key].get("names")
    if isinstance(names, dict):
        values = list(names.values())
        names = values[0] if len(values) == 1 and isinstance(values[0], list) else list(names)
    if not names or len(names) != size:
        return tuple(f"{key}[{i}]" for i in range(size))
    return tuple(str(n) for n in names)


def _scalars(features: dict[str, Any]) -> tuple[str, ...]:
    standard = {*_INDEX_COLUMNS, "timestamp", STATE, ACTION}
    numeric = ("float32", "float64", "bool", "int64", "int32")
    return tuple(
        key
        for key, f in features.items()
        if key not in standard and f["dtype"] in numeric and tuple(f["shape"]) == (1,)
    )


def _wanted_columns(features: dict[str, Any]) -> list[str]:
    return [*_INDEX_COLUMNS, STATE, ACTION, *_scalars(features)]


def _read_tables(path: Path, folder: str, columns: list[str]) -> pa.Table:
    found = table_files(path, folder)
    if not found:
        raise ValueError(f"{path}: has no parquet file under {folder}/; copy the data set again")
    tables = []
    for file in found:
        try:
            with pq.ParquetFile(file) as parquet:
                missing = set(columns) - set(parquet.schema_arrow.names)
                if missing:
                    raise ValueError(
                        f"{file}: has no column {sorted(missing)[0]!r}; record it with one"
                    )
                tables.append(parquet.read(columns=columns))
        except (pa.ArrowException, OSError) as error:
            raise ValueError(
                f"{file}: cannot be read ({str(error).splitlines()[0]}); it is truncated, or its "
                "recorder was killed before finalize(): restore it from a copy or record it again"
            ) from error
    return pa.concat_tables(tables, promote_options="permissive")


def _check_filled(path: Path, table: pa.Table, columns: tuple[str, ...]) -> None:
    for name in columns:
        if table[name].null_count:
            row = table[name].is_null().index(True).as_py()
            raise ValueError(f"{path}: row {row} of {name!r} holds no value; record it again")


def _episode_order(
    path: Path, meta: dict[str, Any], table: pa.Table
) -> tuple[np.ndarray, np.ndarray]:
    """Return row order by (episode, frame) and episode offsets `n+1`; checks all counts."""
    episode = table["episode_index"].to_numpy()
    frame = table["frame_index"].to_numpy()
    for what, expected, got in (
        ("frames", meta["total_frames"], len(episode)),
        ("episodes", meta["total_episodes"], len(np.unique(episode))),
    ):
        if expected != got:
            raise ValueError(
                f"{path}: meta/info.json counts {expected} {what} but data/ holds {got}; the "
                "recorder was interrupted or a file is missing: copy it again or record it again"
            )
    if not len(episode):
        raise ValueError(f"{path}: is empty; record at least one episode")
    if episode.min() < 0 or episode.max() >= meta["total_episodes"]:  # before it asks for memory
        raise ValueError(
            f"{path}: episodes are not numbered 0 to {meta['total_episodes'] - 1}; renumber them"
        )
    order = np.lexsort((frame, episode))
    lengths = np.bincount(episode, minlength=meta["total_episodes"])
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    if len(lengths) != meta["total_episodes"] or lengths.min() < 1:
        raise ValueError(
            f"{path}: episodes are not numbered 0 to {meta['total_episodes'] - 1}; renumber them"
        )
    expected_frame = np.arange(len(frame)) - np.repeat(offsets[:-1], lengths)
    wrong = np.flatnonzero(frame[order] != expected_frame)
    if len(wrong):
        e = int(episode[order][wrong[0]])
        raise ValueError(
            f"{path}: frames of episode {e} are not numbered 0 to {lengths[e] - 1}; record it again"
        )
    return order, offsets


def _video_columns(key: str) -> tuple[str, str, str]:
    """Return the columns of meta/episodes that say where the frames of a camera are."""
    return f"videos/{key}/chunk_index", f"videos/{key}/file_index", f"videos/{key}/from_timestamp"


def _read_episodes(path: Path, cameras: tuple[Camera, ...], lengths: np.ndarray) -> pa.Table:
    places = [name for camera in cameras if camera.video for name in _video_columns(camera.key)]
    columns = ("episode_index", "length", *places)
    table = _read_tables(path, "meta/episodes", list(columns))
    _check_filled(path, table, columns)
    if len(table) != len(lengths):
        raise ValueError(
            f"{path}: meta/episodes lists {len(table)} episodes but data/ holds {len(lengths)}; "
            "the recorder was interrupted: delete the surplus or record it again"
        )
    table = table.sort_by("episode_index")
    if table["episode_index"].to_pylist() != list(range(len(table))):
        raise ValueError(
            f"{path}: meta/episodes does not number its episodes 0 to {len(table) - 1}; copy the "
            "data set again"
        )
    wrong = np.flatnonzero(table["length"].to_numpy() != lengths)
    if len(wrong):
        e = int(wrong[0])
        raise ValueError(
            f"{path}: meta/episodes gives episode {e} {table['length'][e]} frames but data/ holds "
            f"{lengths[e]}; copy it again or record it again"
        )
    return table


def _read_tasks(path: Path) -> dict[int, str]:
    file = path / "meta/tasks.parquet"
    if not file.is_file():
        raise ValueError(
            f"{path}: has no meta/tasks.parquet, so no instructions; copy the data set again"
        )
    try:
        table = pq.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(
            f"{file}: cannot be read ({str(error).splitlines()[0]}); copy it again"
        ) from error
    text = [name for name in table.column_names if name != "task_index"]
    if "task_index" not in table.column_names or len(text) != 1:
        raise ValueError(
            f"{file}: expected task_index and one text column, got {table.column_names}"
        )
    texts = table[text[0]].to_pylist()
    for value in texts:
        if not isinstance(value, str | None):
            raise ValueError(f"{file}: task {value!r:.80}, expected a text; correct it there")
    return dict(zip(table["task_index"].to_pylist(), texts, strict=True))


def _locate_videos(
    path: Path, meta: dict[str, Any], cameras: tuple[Camera, ...], episodes: pa.Table
) -> tuple[dict[str, np.ndarray], dict[str, tuple[Path, ...]]]:
    """Return where each episode's frames begin, and in which file."""
    start, videos = {}, {}
    for key in (camera.key for camera in cameras if camera.video):
        chunk, file, from_s = (episodes[name].to_numpy() for name in _video_columns(key))
        start[key] = np.rint(from_s * meta["fps"]).astype(np.int64)
        if meta.get("video_path") is None:
            raise ValueError(f"{path}: meta/info.json has no 'video_path'; copy the data set again")
        where, pattern = f"{path}: video_path of meta/info.json", meta["video_path"]
        known: dict[tuple[int, int], Path] = {}
        for place in zip(chunk.tolist(), file.tolist(), strict=True):
            if place not in known:
                values = {"video_key": key, "chunk_index": place[0], "file_index": place[1]}
                found = path_pattern.file_of(path, where, pattern, values)
                known[place] = found.relative_to(os.path.abspath(path))
        videos[key] = tuple(known[p] for p in zip(chunk.tolist(), file.tolist(), strict=True))
    return start, videos


def _check_videos(path: Path, fps: float, videos: tuple[Path, ...], ends: np.ndarray) -> None:
    """Raise ValueError unless the files of a camera hold the frames of its episodes."""
    needed: dict[Path, int] = {}
    for name, end in zip(videos, ends.tolist(), strict=True):
        needed[name] = max(needed.get(name, 0), end)
    for name, end in needed.items():
        mp4.check_video(path / name, fps, end)


def _columns(info: DatasetInfo, table: pa.Table, order: np.ndarray) -> Columns:
    return Columns(
        state=_matrix(info, table, STATE, info.state_dim)[order],
        action=_matrix(info, table, ACTION, info.action_dim)[order],
        scalars={k: _matrix(info, table, k, 1)[order, 0] for k in info.scalars},
    )


def _matrix(info: DatasetInfo, table: pa.Table, key: str, dim: int) -> np.ndarray:
    """Return a column f32 `n dim` from lists, fixed-size lists or plain numbers."""
    column = table[key].combine_chunks()
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        sizes = column.value_lengths().to_numpy(zero_copy_only=False)
        wrong = np.flatnonzero(sizes != dim)
        if len(wrong):
            raise ValueError(
                f"{info.path}: row {wrong[0]} of {key!r} has {sizes[wrong[0]]} values, "
                f"meta/info.json says {dim}; record it again"
            )
    if hasattr(column, "flatten") and not pa.types.is_primitive(column.type):
        column = column.flatten()
    values = column.to_numpy(zero_copy_only=False).astype(np.float32)
    if values.size != len(table) * dim:
        raise ValueError(
            f"{info.path}: {key!r} has {values.size / len(table):g} values per frame, "
            f"meta/info.json says {dim}; record it again"
        )
    return values.reshape(len(table), dim)


def _check_finite(info: DatasetInfo, columns: Columns) -> None:
    for key, values, names in (
        (STATE, columns.state, info.state_names),
        (ACTION, columns.action, info.action_names),
    ):
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            row, channel = bad[0]
            episode = int(np.searchsorted(info.offsets, row, side="right")) - 1
            raise ValueError(
                f"{info.path}: {key!r} of episode {episode}, frame {row - info.offsets[episode]}, "
                f"channel {names[channel]!r} is {values[row, channel]} ({len(bad)} such values); "
                "drop or repair the episode"
            )
