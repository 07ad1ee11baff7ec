"""Writes Parquet files."""

import contextlib
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


class ParquetWriter(pq.ParquetWriter):
    """Prints nothing when it is deleted after its file could not be written: that was raised."""

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            super().__del__()


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table to a file.

    Raises:
        OSError: the disk is full.
    """
    with ParquetWriter(path, table.schema) as writer:
        writer.write_table(table)
