"""Writes the labelled data set: tables with further columns, videos linked, nothing re-encoded.

Everything is written under another name, checked, flushed to disk and then renamed. A column of the
source whose name is wanted is kept under "source."; no other is touched.
"""

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reward_models.label import sarm
from reward_models.label.columns import EPISODE_COLUMNS
from reward_models.label.source import Source
from reward_models.label.statistics import NAMES, statistics
from reward_models.label_report.read import LABELS_FILE
from reward_models.overrides import FILE, Override
from vla import checkpoint
from vla.data.reader import table_files
from vla.data.whole import check_whole, publish

KEPT_ASIDE = ("success", "behaviour")
"""What our recorder says besides progress: it stands beside it under "source."."""
REWRITTEN = ("meta/info.json", "meta/stats.json", sarm.FILE)


@dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """What is added to a data set."""

    frame: Mapping[str, np.ndarray]
    """By name, [n] in order of episode and time."""
    episode: Mapping[str, np.ndarray]
    """By name, [episodes]."""
    critic: str
    """Whose they are."""


def write_dataset(source: Source, out: Path, labels: Labels) -> Path:
    """Write the labelled data set beside `out`; return where it is until `put_in_place`.

    Raises:
        ValueError: a column of the source cannot be kept.
        OSError: the disk is full.
    """
    fresh = out.with_name(f".{out.name}.new-{os.getpid()}")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    try:
        _write(source, fresh, labels)
        check_whole(fresh, source.info.num_episodes)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    return fresh


def _write(source: Source, fresh: Path, labels: Labels) -> None:
    """Write everything but the provenance."""
    path = source.info.path
    features = json.loads((path / "meta/info.json").read_text())["features"]
    moved = names_aside(features, labels)
    _copy_rest(path, fresh)
    for file in table_files(path, "data"):
        _rewrite_frames(file, fresh / file.relative_to(path), source, labels, moved)
    for file in table_files(path, "meta/episodes"):
        _rewrite_episodes(file, fresh / file.relative_to(path), source, labels, moved)
    _rewrite_info(path, fresh, labels, moved)
    _rewrite_stats(path, fresh, labels, moved)
    offsets = source.info.offsets
    lengths = np.diff(offsets)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.arange(len(episode)) - offsets[:-1][episode]
    order = np.argsort(source.index, kind="stable")
    rows = sarm.table(
        labels.frame["progress"][order], source.index[order], episode[order], frame[order],
        labels.critic,
    )  # fmt: skip
    sarm.write(fresh, rows)


def keep_corrections(out: Path, fresh: Path) -> None:
    """Take over what people corrected in the data set that is about to be replaced."""
    if (out / FILE).is_file():
        shutil.copyfile(out / FILE, fresh / FILE)


def put_in_place(fresh: Path, out: Path) -> None:
    """Give a finished data set its name, or let it replace the one that has it."""
    if out.exists():
        checkpoint.replace_folder(fresh, out)
    else:
        publish(fresh, out)


def names_aside(features: Mapping[str, Any], labels: Labels) -> dict[str, str]:
    """Return the new name of every column of the source that gives way.

    Raises:
        ValueError: the new name is taken as well.
    """
    moved = {n: f"source.{n}" for n in (*labels.frame, *KEPT_ASIDE) if n in features}
    taken = [name for name in moved.values() if name in features]
    if taken:
        raise ValueError(
            f"has both {taken[0].removeprefix('source.')!r} and {taken[0]!r}; rename one of them"
        )
    return moved


def _copy_rest(path: Path, fresh: Path) -> None:
    """Link the videos and copy what is not rewritten."""
    tables = {*table_files(path, "data"), *table_files(path, "meta/episodes")}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        hidden = any(part.startswith(".") for part in name.parts)
        if not file.is_file() or hidden or file in tables or name.as_posix() in REWRITTEN:
            continue
        (fresh / name).parent.mkdir(parents=True, exist_ok=True)
        if name.parts[0] == "videos":
            link(file, fresh / name)
        else:
            shutil.copyfile(file, fresh / name)


def link(file: Path, target: Path) -> None:
    """Link a file, or copy it where the file system has no links."""
    try:
        os.link(file.resolve(), target)
    except OSError:
        shutil.copyfile(file, target)


def _rewrite_frames(
    file: Path, target: Path, source: Source, labels: Labels, moved: Mapping[str, str]
) -> None:
    """Copy a table of frames, a row group at a time, with the new columns at its end."""
    target.parent.mkdir(parents=True, exist_ok=True)
    writer = None
    try:
        with pq.ParquetFile(file) as parquet:
            for group in range(parquet.num_row_groups):
                table = parquet.read_row_group(group)
                episode = table["episode_index"].to_numpy()
                rows = source.info.offsets[episode] + table["frame_index"].to_numpy()
                noted = _metadata(table.schema, moved, labels)
                table = table.rename_columns([moved.get(n, n) for n in table.column_names])
                for name, values in labels.frame.items():
                    table = table.append_column(name, pa.array(values[rows]))
                table = table.replace_schema_metadata(noted)
                writer = writer or pq.ParquetWriter(target, table.schema, compression="snappy")
                writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _metadata(
    schema: pa.Schema, moved: Mapping[str, str], labels: Labels
) -> dict[bytes, bytes] | None:
    """Return what Hugging Face's library notes in a table, brought up to date, if it is there."""
    noted = (schema.metadata or {}).get(b"huggingface")
    if noted is None:
        return None
    value = json.loads(noted)
    features = value.get("info", {}).get("features")
    if not isinstance(features, dict):
        return None
    features = {moved.get(name, name): kind for name, kind in features.items()}
    for name, column in labels.frame.items():
        features[name] = {"dtype": str(column.dtype), "_type": "Value"}
    value["info"]["features"] = features
    return {b"huggingface": json.dumps(value).encode()}


def _rewrite_episodes(
    file: Path, target: Path, source: Source, labels: Labels, moved: Mapping[str, str]
) -> None:
    """Copy a table of episodes with figures and the statistics of the new columns."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetFile(file) as parquet:
        table = parquet.read().replace_schema_metadata(None)
    table = table.rename_columns([_stats_aside(name, moved) for name in table.column_names])
    episode = table["episode_index"].to_numpy()
    for name, values in labels.episode.items():
        table = table.append_column(name, pa.array(values[episode]))
    offsets = source.info.offsets
    for name, values in labels.frame.items():
        each = [statistics(values[offsets[e] : offsets[e + 1]]) for e in episode]
        for key in NAMES:
            kind = pa.list_(pa.int64() if key == "count" else pa.float64())
            column = pa.array([figures[key] for figures in each], kind)
            table = table.append_column(f"stats/{name}/{key}", column)
    pq.write_table(table, target)


def _stats_aside(name: str, moved: Mapping[str, str]) -> str:
    """Return a column of meta/episodes with the new name of the column it is about."""
    parts = name.split("/")
    if parts[0] == "stats" and len(parts) == 3:
        parts[1] = moved.get(parts[1], parts[1])
    return "/".join(parts)


def _rewrite_info(path: Path, fresh: Path, labels: Labels, moved: Mapping[str, str]) -> None:
    info = json.loads((path / "meta/info.json").read_text())
    features = {moved.get(name, name): feature for name, feature in info["features"].items()}
    for name, values in labels.frame.items():
        features[name] = {"dtype": str(values.dtype), "shape": [1], "names": None}
    _write_json(fresh / "meta/info.json", {**info, "features": features})


def _rewrite_stats(path: Path, fresh: Path, labels: Labels, moved: Mapping[str, str]) -> None:
    file = path / "meta/stats.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    stats = {moved.get(name, name): figures for name, figures in known.items()}
    stats |= {name: statistics(values) for name, values in labels.frame.items()}
    _write_json(fresh / "meta/stats.json", stats)


def write_provenance(fresh: Path, told: Mapping[str, Any]) -> None:
    """Write what the labels are and where they come from."""
    _write_json(fresh / LABELS_FILE, told)


def write_corrections(fresh: Path, said: Sequence[Override]) -> None:
    """Write what people corrected where the review page looks for it."""
    _write_json(fresh / FILE, [vars(one) for one in said])


def _write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False))


def arrays(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the figures of every episode as arrays, by name."""
    return {
        name: np.array([row[name] for row in rows], kind) for name, kind in EPISODE_COLUMNS.items()
    }
