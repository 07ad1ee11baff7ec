"""LeRobotDataset v2.0 and v2.1: a table and a video per episode, its index in JSON lines.

Columns and timestamps of the tables are kept unchanged; statistics of images come from
episodes_stats.jsonl if it exists.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla.data import path_pattern
from vla.data.episode import EpisodeData
from vla.data.info import INDEX_COLUMNS
from vla.data.source import ImportOptions, Source, check_names, fingerprint
from vla.data.stats import QUANTILES

INFO = "meta/info.json"
EPISODES, TASKS, STATISTICS = (f"meta/{n}.jsonl" for n in ("episodes", "tasks", "episodes_stats"))
NEEDED: dict[str, Any] = {
    "fps": (int, float), "features": dict, "data_path": str, "chunks_size": int,
}  # fmt: skip
TASK_FIELDS = {"task_index": int, "task": str}
FIGURES = ("min", "max", "mean", "std")
"""How a number may be written in the name of a file."""


def recognizes(path: Path) -> bool:
    """Return whether a folder is a LeRobotDataset of version 2."""
    try:
        return str(json.loads((path / INFO).read_text())["codebase_version"]).startswith("v2")
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def open_source(path: Path, options: ImportOptions) -> Source:
    """Describe a data set of version 2; ValueError says what is missing or damaged."""
    info = json.loads((path / INFO).read_text())
    for key, kind in NEEDED.items():
        if not isinstance(info.get(key), kind):
            raise ValueError(f"{path / INFO}: {key!r} is {info.get(key)!r}; copy it again")
    for option in ("state", "action", "split"):
        if getattr(options, option):
            raise ValueError(f"--{option} is for robomimic and RLDS; {path} has columns of its own")
    if info["chunks_size"] < 1:
        raise ValueError(
            f"{path / INFO}: 'chunks_size' is {info['chunks_size']}, expected at least 1; copy it "
            "again"
        )
    fps = info["fps"]
    if not math.isfinite(fps) or fps != int(fps) or (options.fps or fps) != fps or fps < 1:
        raise ValueError(f"{path}: has {fps} frames/s, expected a whole rate, the one of --fps")
    features = _features(path / INFO, info["features"])
    for key in ("observation.state", "action"):
        if key not in features:
            raise ValueError(f"{path}: has no column {key!r} (it has {', '.join(features)})")
    if not any(f["dtype"] in ("video", "image") for f in features.values()):
        raise ValueError(f"{path}: has no camera; a data set needs at least one")
    episodes = list(_lines(path / EPISODES, {"episode_index": int, "length": int}))
    if not episodes:
        raise ValueError(f"{path / EPISODES}: lists no episode; copy it again")
    tasks = {line["task_index"]: line["task"] for line in _lines(path / TASKS, TASK_FIELDS)}
    plan = _Plan(
        path=path, info=info, features=features, tasks=tasks, task=options.task,
        numbers=[line["episode_index"] for line in episodes],
        lengths=[line["length"] for line in episodes], statistics=_starts(path / STATISTICS),
    )  # fmt: skip
    files = [f for f in path.rglob("*") if f.is_file()]
    return Source(
        format="lerobot_v2", fps=int(fps), robot=info.get("robot_type"), features=features,
        names=[f"episode {number}" for number in plan.numbers], read=partial(_read, plan),
        fingerprint=fingerprint(files),
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """What is read of each episode."""

    path: Path
    info: dict[str, Any]
    features: dict[str, dict[str, Any]]
    tasks: dict[int, str]
    task: str
    numbers: list[int]
    lengths: list[int]
    statistics: dict[int, int]
    """By episode: where its line in the file of statistics begins."""

    def file(self, key: str, number: int, **more: str) -> Path:
        """Return the file of an episode, by the pattern of that name; it lies in the set."""
        chunk = number // self.info["chunks_size"]
        values = {"episode_chunk": chunk, "episode_index": number, **more}
        where = f"{self.path / INFO}: {key!r}"
        return path_pattern.file_of(self.path, where, self.info.get(key), values)


def _features(file: Path, stored: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the feature table without the standard columns, or raise ValueError."""
    check_names(file, stored)
    for key, feature in stored.items():
        shape = feature.get("shape") if isinstance(feature, dict) else None
        whole = isinstance(shape, list) and shape and all(type(n) is int and n > 0 for n in shape)
        if not whole or not isinstance(feature.get("dtype"), str):
            raise ValueError(
                f"{file}: feature {key!r} is {feature!r}, expected a dtype and a shape of whole "
                "numbers; copy it again"
            )
        if not isinstance(feature.get("info") or {}, dict):
            raise ValueError(
                f"{file}: 'info' of feature {key!r} is {feature['info']!r}, expected an object or "
                "nothing; copy it again"
            )
    return {k: _as_written(file, k, f) for k, f in stored.items() if k not in INDEX_COLUMNS}


def _as_written(file: Path, key: str, feature: dict[str, Any]) -> dict[str, Any]:
    """Return a feature as the new set has it: sizes of videos are height, width, channels."""
    if feature["dtype"] != "video":
        return dict(feature)
    shape, names = feature["shape"], feature.get("names")
    named = isinstance(names, list) and all(isinstance(name, str) for name in names)
    size = dict(zip(names or (), shape, strict=False)) if named else {}
    if len(shape) != 3:
        raise ValueError(f"{file}: video {key!r} has shape {shape}, expected three numbers")
    if {"height", "width"} <= set(size):
        height_width = [size["height"], size["width"]]
    else:
        height_width = shape[1:] if shape[0] == 3 else shape[:2]
    return {
        **feature, "shape": [*height_width, 3], "names": ["height", "width", "channels"],
    }  # fmt: skip


def _read(plan: _Plan, place: int) -> EpisodeData:
    number, length = plan.numbers[place], plan.lengths[place]
    file = plan.file("data_path", number)
    columns = [k for k, f in plan.features.items() if f["dtype"] != "video"]
    try:
        with pq.ParquetFile(file) as parquet:
            missing = {*columns, *INDEX_COLUMNS} - set(parquet.schema_arrow.names)
            if missing:
                raise ValueError(f"{file}: has no column {min(missing)!r}; leave the episode out")
            table = parquet.read(columns=[*columns, "timestamp", "frame_index", "task_index"])
    except FileNotFoundError as error:
        raise ValueError(f"{file}: is missing; copy it again") from error
    except (pa.ArrowException, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"{file}: cannot be read ({reason}); copy it again") from error
    frames = table["frame_index"].to_numpy()
    if len(frames) != length or not np.array_equal(frames, np.arange(length)):
        raise ValueError(
            f"{file}: has {len(table)} frames, {EPISODES} says {length}, numbered from 0; copy it "
            "again"
        )
    used, instruction = np.unique(table["task_index"].to_numpy(), return_inverse=True)
    unknown = set(used.tolist()) - set(plan.tasks)
    if unknown and not plan.task:
        raise ValueError(f"{file}: task_index {min(unknown)} is not in {TASKS}; give --task TEXT")
    texts = (plan.task,) if plan.task else tuple(plan.tasks[int(i)] for i in used)
    return EpisodeData(
        tasks=texts,
        task=np.zeros(length, np.int64) if plan.task else instruction,
        columns=_embedded(table.select(columns), plan, file),
        timestamp=table["timestamp"].to_numpy().astype(np.float32),
        images={
            key: plan.file("video_path", number, video_key=key)
            for key, f in plan.features.items()
            if f["dtype"] == "video"
        },
        statistics=_statistics(plan, number),
    )


def _embedded(table: pa.Table, plan: _Plan, file: Path) -> pa.Table:
    """Return the table if its images are inside it."""
    for key, feature in plan.features.items():
        if feature["dtype"] == "image" and any(
            not isinstance(cell, dict) or not cell.get("bytes")
            for chunk in table[key].chunks
            for cell in chunk.to_pylist()
        ):
            raise ValueError(f"{file}: images of {key!r} are not in the table; embed them first")
    return table.replace_schema_metadata(None)


def _statistics(plan: _Plan, number: int) -> dict[str, dict[str, np.ndarray]]:
    """Return the source's statistics of an episode's images, `c 1 1` each."""
    if number not in plan.statistics:
        return {}
    with (plan.path / STATISTICS).open("rb") as file:
        file.seek(plan.statistics[number])
        stats = json.loads(file.readline()).get("stats")
    where = f"{plan.path / STATISTICS}: episode {number} has"
    if not isinstance(stats, dict):
        raise ValueError(f"{where} no stats; copy it again")
    return {
        key: _figures(stats[key], min(feature["shape"]), key, where)
        for key, feature in plan.features.items()
        if feature["dtype"] in ("video", "image") and key in stats
    }


def _figures(stored: Any, channels: int, key: str, where: str) -> dict[str, np.ndarray]:
    figures = {}
    sizes = dict.fromkeys((*FIGURES, *QUANTILES), channels) | {"count": 1}
    for name, size in sizes.items():
        if name in QUANTILES and isinstance(stored, dict) and name not in stored:
            continue
        try:
            values = np.array(stored[name], np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{where} no {name!r} of {key!r}; copy it again") from error
        if values.size != size or not np.isfinite(values).all():
            raise ValueError(
                f"{where} {values.tolist()} as {name!r} of {key!r}, expected {size} numbers; copy "
                "it again"
            )
        figures[name] = values.reshape(-1, 1, 1)
    return figures | {"count": figures["count"].reshape(-1).astype(np.int64)}


def _starts(file: Path) -> dict[int, int]:
    """Return where the line of each episode begins; lines are long and stay on disk."""
    if not file.is_file():
        return {}
    starts, at = {}, 0
    with file.open("rb") as lines:
        for line in lines:
            try:
                starts[json.loads(line)["episode_index"]] = at
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(f"{file}: damaged ({error!r}); copy it again") from error
            at += len(line)
    return starts


def _lines(file: Path, needed: dict[str, type]) -> Iterator[dict[str, Any]]:
    if not file.is_file():
        raise ValueError(f"{file}: is missing; copy the data set again")
    for number, text in enumerate(file.read_text().splitlines()):
        try:
            line = dict(json.loads(text))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{file}: line {number + 1} is damaged; copy it again") from error
        for key, kind in needed.items():
            if type(line.get(key)) is not kind or (kind is int and line[key] < 0):
                raise ValueError(
                    f"{file}: line {number + 1} has {key} {line.get(key)!r}; copy it again"
                )
        yield line
