"""Intermediate results of a labelling: OUT.parts, one file per scored episode, and locks.

The name of a part holds its episode and a hash of everything that decides its content.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla import checkpoint
from vla.contracts import migrate
from vla.data.parquet import write_table

SETTINGS_FILE = "labelling.json"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The folder of one labelling's parts."""

    folder: Path
    key: str
    """Hash of the settings that decide their content."""

    def path(self, episode: int) -> Path:
        """Return the file of an episode's part."""
        return self.folder / f"episode-{episode:07d}-{self.key}.parquet"

    def missing(self, episodes: Iterable[int]) -> list[int]:
        """Return the episodes that have no part."""
        present = {file.name for file in self.folder.glob(f"episode-*-{self.key}.parquet")}
        return [e for e in episodes if self.path(e).name not in present]

    def done(self, count: int) -> list[int]:
        """Return the episodes from 0 to `count` - 1 that have a part."""
        missing = set(self.missing(range(count)))
        return [e for e in range(count) if e not in missing]

    def write(self, episode: int, columns: dict[str, np.ndarray]) -> None:
        """Write an episode's part to disk, atomically."""
        temporary = self.folder / f".{episode:07d}.{os.getpid()}.tmp"
        try:
            write_table(pa.table(columns), temporary)
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            temporary.rename(self.path(episode))
        finally:
            temporary.unlink(missing_ok=True)

    def read(self, episode: int) -> dict[str, np.ndarray]:
        """Return an episode's part.

        Raises:
            ValueError: it is damaged.
        """
        path = self.path(episode)
        try:
            table = pq.read_table(path)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(
                f"{path}: damaged ({str(error).splitlines()[0]}); delete it and run again"
            ) from error
        return {name: table[name].to_numpy() for name in table.column_names}


def key_of(settings: dict[str, Any]) -> str:
    """Return a hash of settings, JSON types."""
    text = json.dumps(settings, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def folder_of(out: Path) -> Path:
    """Return the folder of the parts of an incomplete data set."""
    return out.with_name(out.name + ".parts")


def open_parts(out: Path, settings: dict[str, Any], checksums: dict[str, str]) -> Parts:
    """Return the parts of a labelling; a new one's settings and checksums are stored with them.

    Raises:
        ValueError: they have other settings, or the source has changed since.
    """
    folder = folder_of(out)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / SETTINGS_FILE
    if file.exists():
        stored = checkpoint.read_json(file)
        check_unchanged(stored["source"], checksums)
        check_same(folder, migrate.labels(stored["asked"]), settings)
        return Parts(folder=folder, key=key_of(stored["asked"]))  # names of format 1 are in it
    temporary = file.with_name(f".{SETTINGS_FILE}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps({"asked": settings, "source": checksums}, indent=1))
    temporary.rename(file)
    return Parts(folder=folder, key=key_of(settings))


def check_same(place: Path, stored: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise ValueError if `place` holds labels of other settings."""
    for name, value in settings.items():
        if stored.get(name) != value:
            raise ValueError(
                f"{place}: was labelled with {name} {stored.get(name)!r}, not {value!r}; choose "
                "another --out, delete it, or use the same settings"
            )


def check_unchanged(before: dict[str, str], after: dict[str, str]) -> None:
    """Raise ValueError if a file of the source has changed."""
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if changed:
        raise ValueError(
            f"the source has changed since labelling began ({sorted(changed)[0]}, and "
            f"{len(changed) - 1} other files); restore it, or delete OUT.parts and label it again"
        )


@contextlib.contextmanager
def claim(parts: Parts, name: str, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock among the parts; the system releases it when the process ends.

    Raises:
        ValueError: another process holds it, and `wait` is False.
    """
    with (parts.folder / f"{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise ValueError(
                f"{parts.folder}: another process works on the same shard; wait for it or stop it"
            ) from error
        yield


def clear_leftovers(parts: Parts) -> None:
    """Delete the temporary files of processes that have ended."""
    for leftover in parts.folder.glob(".*.tmp"):
        process = leftover.name.split(".")[-2]
        if not Path(f"/proc/{process}").exists():
            leftover.unlink(missing_ok=True)
