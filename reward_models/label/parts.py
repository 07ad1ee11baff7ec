"""What is scored so far: OUT.parts, a file per episode, each whole or absent, and who is at work.

A part is named for its episode and for everything that decides what is in it.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla import checkpoint

ASKED_FILE = "labelling.json"


@dataclass(frozen=True, kw_only=True)
class Parts:
    """The folder of the parts of one labelling."""

    folder: Path
    key: str
    """Hash of what decides their content."""

    def path(self, episode: int) -> Path:
        """Return where an episode's part is once it is done."""
        return self.folder / f"episode-{episode:07d}-{self.key}.parquet"

    def missing(self, episodes: Iterable[int]) -> list[int]:
        """Return those of some episodes that are not done."""
        have = {file.name for file in self.folder.glob(f"episode-*-{self.key}.parquet")}
        return [e for e in episodes if self.path(e).name not in have]

    def done(self, count: int) -> list[int]:
        """Return those of the episodes 0 to `count` - 1 that are done."""
        missing = set(self.missing(range(count)))
        return [e for e in range(count) if e not in missing]

    def write(self, episode: int, columns: dict[str, np.ndarray]) -> None:
        """Store an episode's part by one rename, flushed to disk."""
        temporary = self.folder / f".{episode:07d}.{os.getpid()}.tmp"
        try:
            pq.write_table(pa.table(columns), temporary)
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


def key_of(asked: dict[str, Any]) -> str:
    """Return a hash of what decides the content of parts, JSON types."""
    text = json.dumps(asked, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def folder_of(out: Path) -> Path:
    """Return where the parts of a data set are until it is complete."""
    return out.with_name(out.name + ".parts")


def open_parts(out: Path, asked: dict[str, Any], checksums: dict[str, str]) -> Parts:
    """Return the parts of a labelling, begun or not, and remember what the source was like.

    Raises:
        ValueError: they belong to another labelling, or the source has changed since.
    """
    folder = folder_of(out)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / ASKED_FILE
    told = {"asked": asked, "source": checksums}
    if file.exists():
        found = checkpoint.read_json(file)
        check_untouched(found["source"], checksums)
        check_same(folder, found["asked"], asked)
        return Parts(folder=folder, key=key_of(asked))
    temporary = file.with_name(f".{ASKED_FILE}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(told, indent=1))
    temporary.rename(file)
    return Parts(folder=folder, key=key_of(asked))


def check_same(place: Path, found: dict[str, Any], wanted: dict[str, Any]) -> None:
    """Raise ValueError if labels made with other settings are there."""
    for name, value in wanted.items():
        if found.get(name) != value:
            raise ValueError(
                f"{place}: was labelled with {name} {found.get(name)!r}, not {value!r}; choose "
                "another --out, delete it, or use the same settings"
            )


def check_untouched(before: dict[str, str], after: dict[str, str]) -> None:
    """Raise ValueError if a file of the source is no longer what it was."""
    changed = [name for name in {**before, **after} if before.get(name) != after.get(name)]
    if changed:
        raise ValueError(
            f"the source is not what it was when labelling began ({sorted(changed)[0]}, and "
            f"{len(changed) - 1} other files); restore it, or delete OUT.parts and label it anew"
        )


@contextlib.contextmanager
def claim(parts: Parts, name: str, *, wait: bool = False) -> Iterator[None]:
    """Hold a lock among the parts; the system frees it when we are killed.

    Raises:
        ValueError: another process holds it, unless we are to wait.
    """
    with (parts.folder / f"{name}.lock").open("w") as lock:
        _flock(lock, parts, wait)
        yield


def _flock(lock: TextIO, parts: Parts, wait: bool) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError as error:
        raise ValueError(
            f"{parts.folder}: another process is at the same shard; wait for it or stop it"
        ) from error


def clear_leftovers(parts: Parts) -> None:
    """Delete what killed processes had begun to write."""
    for leftover in parts.folder.glob(".*.tmp"):
        process = leftover.name.split(".")[-2]
        if not Path(f"/proc/{process}").exists():
            leftover.unlink(missing_ok=True)
