"""Writes the labelled data set: tables with further columns, and links to the videos.

It is written under another name, checked, flushed to disk and renamed. A column of the source with
the name of a new one is renamed to "source.NAME". `DatasetWriter` is not used, since files, row
groups and other columns of the source stay the same.
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reward_models.label import sarm
from reward_models.label.columns import EPISODE_COLUMNS
from reward_models.label.source import Source
from vla.data.episode import scalar_feature
from vla.data.parquet import ParquetWriter, write_table
from vla.data.reader import table_files
from vla.data.stats import NAMES, as_lists, column_stats
from vla.data.writer import check_complete
from vla.utils import files

RENAMED = ("success", "behaviour")
"""Columns of `vla demos` that are also renamed to "source.NAME"."""
REWRITTEN = ("meta/info.json", "meta/stats.json", sarm.FILE)


@dataclass(frozen=True, kw_only=True, eq=False)
class Labels:
    """Labels of a data set."""

    frame: Mapping[str, np.ndarray]
    """By name, [n] in order of episode and time."""
    episode: Mapping[str, np.ndarray]
    """By name, [episodes]."""
    reward_model: str
    """The reward model that predicted them."""


def write_dataset(source: Source, out: Path, labels: Labels) -> Path:
    """Write the labelled data set under a temporary name; return the folder.

    Raises:
        ValueError: a column of the source cannot be kept.
        OSError: the disk is full.
    """
    temporary = out.with_name(f".{out.name}.new-{os.getpid()}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        _write(source, temporary, labels)
        check_complete(temporary, source.info.num_episodes)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return temporary


def check_copied(path: Path) -> None:
    """Raise ValueError if a file of the source could not be copied or rewritten in the end."""
    root = path.resolve()
    for file in path.rglob("*"):
        target = file.resolve()
        # In the Hub's cache every file is a link into the folder of blobs next to the revisions.
        of_hub = target.parent.name == "blobs" and root.is_relative_to(target.parent.parent)
        if not (target.is_relative_to(root) or of_hub):
            raise ValueError(
                f"{file}: is a link to {target}, outside of the data set, so its content would be "
                "in the new one; delete the link"
            )
    _read_stats(path)
    for file in table_files(path, "data"):
        _features_of(file, pq.read_schema(file))


def _write(source: Source, temporary: Path, labels: Labels) -> None:
    """Write all files but the provenance."""
    path = source.info.path
    info = json.loads((path / "meta/info.json").read_text())
    renamed = _renamed_columns(info["features"], labels)
    _copy_rest(path, temporary)
    for file in table_files(path, "data"):
        _rewrite_frames(file, temporary / file.relative_to(path), source, labels, renamed)
    for file in table_files(path, "meta/episodes"):
        _rewrite_episodes(file, temporary / file.relative_to(path), source, labels, renamed)
    features = {renamed.get(name, name): feature for name, feature in info["features"].items()}
    for name, values in labels.frame.items():
        features[name] = scalar_feature(str(values.dtype))
    write_json(temporary / "meta/info.json", {**info, "features": features})
    stats = {renamed.get(name, name): values for name, values in _read_stats(path).items()}
    stats |= as_lists({name: column_stats(values) for name, values in labels.frame.items()})
    write_json(temporary / "meta/stats.json", stats)
    offsets = source.info.offsets
    lengths = np.diff(offsets)
    episode = np.repeat(np.arange(len(lengths)), lengths)
    frame = np.arange(len(episode)) - offsets[:-1][episode]
    order = np.argsort(source.index, kind="stable")
    rows = sarm.table(
        labels.frame["progress"][order], source.index[order], episode[order], frame[order],
        labels.reward_model,
    )  # fmt: skip
    sarm.write(temporary, rows)


def _renamed_columns(features: Mapping[str, Any], labels: Labels) -> dict[str, str]:
    """Return the new names of the renamed columns of the source."""
    renamed = {n: f"source.{n}" for n in (*labels.frame, *RENAMED) if n in features}
    taken = [name for name in renamed.values() if name in features]
    if taken:
        raise ValueError(
            f"has both {taken[0].removeprefix('source.')!r} and {taken[0]!r}; rename one of them"
        )
    return renamed


def _copy_rest(path: Path, temporary: Path) -> None:
    """Link the videos and copy all files that are not rewritten."""
    tables = {*table_files(path, "data"), *table_files(path, "meta/episodes")}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        hidden = any(part.startswith(".") for part in name.parts)
        if not file.is_file() or hidden or file in tables or name.as_posix() in REWRITTEN:
            continue
        if name.parts[0] == "videos":
            files.link(file, temporary / name)
        else:
            (temporary / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, temporary / name)


def _rewrite_frames(
    file: Path, target: Path, source: Source, labels: Labels, renamed: Mapping[str, str]
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
                metadata = _metadata(file, table.schema, renamed, labels)
                table = table.rename_columns([renamed.get(n, n) for n in table.column_names])
                for name, values in labels.frame.items():
                    table = table.append_column(name, pa.array(values[rows]))
                table = table.replace_schema_metadata(metadata)
                writer = writer or ParquetWriter(target, table.schema, compression="snappy")
                writer.write_table(table)
    finally:
        if writer is not None:
            writer.close()


def _features_of(file: Path, schema: pa.Schema) -> dict[str, Any] | None:
    """Return the metadata of Hugging Face's `datasets`, None without any."""
    metadata = (schema.metadata or {}).get(b"huggingface")
    if metadata is None:
        return None
    with files.parsing(file):
        value = json.loads(metadata)
        known = isinstance(value.get("info", {}).get("features"), dict)
    return value if known else None


def _metadata(
    file: Path, schema: pa.Schema, renamed: Mapping[str, str], labels: Labels
) -> dict[bytes, bytes] | None:
    """Return the metadata of Hugging Face's `datasets` with the new columns; None without any."""
    value = _features_of(file, schema)
    if value is None:
        return None
    features = value["info"]["features"]
    features = {renamed.get(name, name): kind for name, kind in features.items()}
    for name, column in labels.frame.items():
        features[name] = {"dtype": str(column.dtype), "_type": "Value"}
    value["info"]["features"] = features
    return {b"huggingface": json.dumps(value).encode()}


def _rewrite_episodes(
    file: Path, target: Path, source: Source, labels: Labels, renamed: Mapping[str, str]
) -> None:
    """Copy a table of episodes with metrics and the statistics of the new columns."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetFile(file) as parquet:
        table = parquet.read().replace_schema_metadata(None)
    table = table.rename_columns([_renamed_stats(name, renamed) for name in table.column_names])
    episode = table["episode_index"].to_numpy()
    for name, values in labels.episode.items():
        table = table.append_column(name, pa.array(values[episode]))
    offsets = source.info.offsets
    for name, values in labels.frame.items():
        stats = [column_stats(values[offsets[e] : offsets[e + 1]]) for e in episode]
        for key in NAMES:
            column = pa.array([each[key].tolist() for each in stats])
            table = table.append_column(f"stats/{name}/{key}", column)
    write_table(table, target)


def _renamed_stats(name: str, renamed: Mapping[str, str]) -> str:
    """Return the new name of a column of meta/episodes; statistics follow their column."""
    parts = name.split("/")
    if parts[0] == "stats" and len(parts) == 3:
        parts[1] = renamed.get(parts[1], parts[1])
    return "/".join(parts)


def _read_stats(path: Path) -> dict[str, Any]:
    file = path / "meta/stats.json"
    with files.parsing(file):
        return dict(json.loads(file.read_text())) if file.exists() else {}


def write_json(path: Path, value: Any) -> None:
    """Write a file of `meta`, JSON types, as LeRobot formats them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=4, ensure_ascii=False))


def arrays(rows: list[dict[str, Any]]) -> dict[str, np.ndarray]:
    """Return the metrics of every episode as arrays, by name."""
    return {
        name: np.array([row[name] for row in rows], kind) for name, kind in EPISODE_COLUMNS.items()
    }
