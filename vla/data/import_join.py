"""Joins imported episodes into one LeRobotDataset v3, which appears only once it is complete."""

import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla.data.import_parts import INSTRUCTION, Part, read_part
from vla.data.info import DatasetInfo
from vla.data.plain_writer import (
    DATA,
    EPISODES,
    FILES_PER_CHUNK,
    IMPLICIT,
    VIDEO,
    Statistics,
    joined_statistics,
    statistics,
    task_table,
)
from vla.data.remux import Joiner
from vla.data.source import Source
from vla.data.whole import check_whole, publish

DATA_FILE_BYTES = 100_000_000
"""About where a table ends, as LeRobot's do."""
ROWS_AT_ONCE = 500
"""Rows of the episode table that are kept in memory."""


def join(
    folders: Sequence[Path], out: Path, source: Source, recording: dict[str, Any],
    advance: Callable[[], None],
) -> DatasetInfo:  # fmt: skip
    """Write the data set at `out` from the parts of its episodes, in order.

    Raises:
        OSError: the disk is full; nothing is left at `out`.
    """
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        joined = _Joined(temporary, source, _common(read_part(f).statistics for f in folders))
        try:
            for folder in folders:
                joined.add(read_part(folder))
                advance()
        finally:
            joined.close()
        joined.write_meta()
        (temporary / "meta/recording.json").write_text(json.dumps(recording, indent=1))
        info = check_whole(temporary, joined.episodes)
        publish(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return info.moved_to(out)


def _common(several: Iterable[Statistics]) -> set[tuple[str, str]]:
    """Return which figures, of which feature, all episodes have: no row may lack one.

    What sets of version 2 say of their pictures has no quantiles, what is encoded anew has.
    """
    return set.intersection(*({(k, n) for k, one in said.items() for n in one} for said in several))


def _schema(row: Mapping[str, Any]) -> pa.Schema:
    """Return the columns of the episode table; a figure is no whole number even where it seems."""
    kinds = {}
    for name, value in row.items():
        kind, inner = pa.infer_type([value]), value
        if name.startswith("stats/") and not name.endswith("/count"):
            kind = pa.float64()
            while isinstance(inner, list):
                kind, inner = pa.list_(kind), inner[0]
        kinds[name] = kind
    return pa.schema(list(kinds.items()))


class _Joined:
    """A data set while it is joined."""

    def __init__(self, root: Path, source: Source, common: set[tuple[str, str]]) -> None:
        self._root, self._source, self._common = root, source, common
        self._videos = {
            key: Joiner(root, key, source.fps)
            for key, feature in source.features.items()
            if feature["dtype"] == "video"
        }
        self._tasks: dict[str, int] = {}
        self._schema: pa.Schema | None = None
        self._data: pq.ParquetWriter | None = None
        self._data_file, self._data_bytes = -1, 0
        self._rows: list[dict[str, Any]] = []
        self._table: pq.ParquetWriter | None = None
        self._statistics: Statistics = {}
        self._frames = 0
        self.episodes = 0
        """Episodes so far."""

    def add(self, part: Part) -> None:
        """Append an episode."""
        tasks = [self._tasks.setdefault(text, len(self._tasks)) for text in part.instructions]
        table = self._numbered(part, np.array(tasks))
        self._write_rows(table)
        found = {
            key: {name: value for name, value in one.items() if (key, name) in self._common}
            for key, one in part.statistics.items()
        }
        found = {key: one for key, one in found.items() if one}
        found |= {name: statistics(table[name].to_numpy()) for name in IMPLICIT}
        row: dict[str, Any] = {
            "episode_index": self.episodes, "tasks": list(part.instructions),
            "length": part.length, "dataset_from_index": self._frames,
            "dataset_to_index": self._frames + part.length,
            "data/chunk_index": self._data_file // FILES_PER_CHUNK,
            "data/file_index": self._data_file % FILES_PER_CHUNK,
        }  # fmt: skip
        for key, joiner in self._videos.items():
            chunk, file, begin = joiner.add(part.videos[key])
            row |= {
                f"videos/{key}/chunk_index": chunk, f"videos/{key}/file_index": file,
                f"videos/{key}/from_timestamp": begin,
                f"videos/{key}/to_timestamp": begin + part.length / self._source.fps,
            }  # fmt: skip
        row |= {f"stats/{k}/{n}": v.tolist() for k, one in found.items() for n, v in one.items()}
        self._rows.append(row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        if len(self._rows) == ROWS_AT_ONCE:
            self._write_episodes()
        self._statistics = {
            key: joined_statistics([self._statistics[key], one]) if key in self._statistics else one
            for key, one in found.items()
        }
        self._frames += part.length
        self.episodes += 1

    def close(self) -> None:
        """Write the ends of all files."""
        if self._rows:
            self._write_episodes()
        for file in (self._data, self._table, *self._videos.values()):
            if file is not None:
                file.close()

    def write_meta(self) -> None:
        """Write what is known once all episodes are there."""
        meta = self._root / "meta"
        said = {k: {n: v.tolist() for n, v in one.items()} for k, one in self._statistics.items()}
        (meta / "stats.json").write_text(json.dumps(said, indent=4))
        pq.write_table(task_table(self._tasks), meta / "tasks.parquet")
        features = self._source.features | {
            key: {"dtype": dtype, "shape": [1], "names": None} for key, dtype in IMPLICIT.items()
        }
        info = {
            "codebase_version": "v3.0", "robot_type": self._source.robot,
            "total_episodes": self.episodes, "total_frames": self._frames,
            "total_tasks": len(self._tasks), "chunks_size": FILES_PER_CHUNK,
            "data_files_size_in_mb": 100, "video_files_size_in_mb": 200, "fps": self._source.fps,
            "splits": {"train": f"0:{self.episodes}"}, "data_path": DATA,
            "video_path": VIDEO if self._videos else None, "features": features,
        }  # fmt: skip
        (meta / "info.json").write_text(json.dumps(info, indent=4))

    def _numbered(self, part: Part, tasks: np.ndarray) -> pa.Table:
        """Return the rows of an episode as the set has them."""
        table = part.table()
        frame = np.arange(part.length)
        known = {
            "timestamp": table["timestamp"],
            "frame_index": frame,
            "episode_index": np.full(part.length, self.episodes),
            "index": self._frames + frame,
            "task_index": tasks[table[INSTRUCTION].to_numpy()],
        }
        table = table.drop_columns([INSTRUCTION, "timestamp"])
        for name, dtype in IMPLICIT.items():
            values = known[name]
            column = values if name == "timestamp" else pa.array(values, pa.type_for_alias(dtype))
            table = table.append_column(name, column)
        return table.replace_schema_metadata(None)

    def _write_rows(self, table: pa.Table) -> None:
        if self._data is None or self._data_bytes > DATA_FILE_BYTES:
            if self._data is not None:
                self._data.close()
            self._schema = self._schema or table.schema
            self._data_file, self._data_bytes = self._data_file + 1, 0
            chunk, within = divmod(self._data_file, FILES_PER_CHUNK)
            path = self._root / DATA.format(chunk_index=chunk, file_index=within)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._data = pq.ParquetWriter(path, self._schema, compression="snappy")
        self._data.write_table(table.cast(self._schema))
        self._data_bytes += table.nbytes

    def _write_episodes(self) -> None:
        if self._table is None:
            (self._root / EPISODES).parent.mkdir(parents=True, exist_ok=True)
            self._table = pq.ParquetWriter(self._root / EPISODES, _schema(self._rows[0]))
        self._table.write_table(pa.Table.from_pylist(self._rows, self._table.schema))
        self._rows = []
