"""Corrections of labels by people, stored in a labelled data set.

`meta/overrides.json` is a list of objects, oldest first. It is replaced atomically and under a
lock, so that a kill or a second reviewer does not damage it.
"""

import contextlib
import dataclasses
import datetime
import fcntl
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla.utils import files

FILE = "meta/overrides.json"
KINDS = ("trend", "success")


@dataclass(frozen=True, kw_only=True)
class Override:
    """One correction."""

    episode: int
    """Number of the episode."""
    frame: int | None
    """Frame within it; None where the whole episode is meant."""
    kind: str
    """"trend" (of a frame) or "success" (of an episode)."""
    value: int | bool
    """-1 regress, 0 stagnate, 1 progress; or whether the episode succeeded."""
    author: str
    """Name of the reviewer."""
    time: str
    """Time of the correction, ISO 8601."""

    def __post_init__(self) -> None:
        problem = _problem(dataclasses.asdict(self))
        if problem:
            raise ValueError(f"a correction has {problem}")


def read(folder: Path) -> list[Override]:
    """Return the corrections of a labelled data set, oldest first; none if there is no file.

    Raises:
        ValueError: the file is damaged, or corrects episodes that are not there.
    """
    if not (folder / FILE).is_file():
        return []
    overrides = read_file(folder / FILE)
    _check_episodes(folder, overrides)
    return overrides


def read_file(file: Path) -> list[Override]:
    """Return the corrections in a file, oldest first.

    Raises:
        ValueError: it is damaged, or an entry is no correction.
    """
    try:
        entries = json.loads(file.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: damaged, not JSON ({error}); restore or delete it") from error
    if not isinstance(entries, list):
        raise ValueError(f"{file}: damaged, expected a JSON list; restore or delete it")
    names = {field.name for field in dataclasses.fields(Override)}
    for k, entry in enumerate(entries):
        if not isinstance(entry, dict) or set(entry) != names:
            raise ValueError(
                f"{file}: entry {k} is {str(entry)[:80]}, expected an object with "
                f"{', '.join(sorted(names))}; correct it there"
            )
        problem = _problem(entry)
        if problem:
            raise ValueError(f"{file}: entry {k} has {problem}; correct it there")
    return [Override(**entry) for entry in entries]


def append(folder: Path, override: Override) -> None:
    """Add a correction.

    Raises:
        ValueError: the file is damaged.
        OSError: the disk is full or not writable.
    """
    with _locked(folder):
        _write(folder, [*read(folder), override])


def undo(folder: Path, author: str) -> Override | None:
    """Remove the newest correction of an author and return it; None if there is none.

    Raises:
        ValueError: the file is damaged.
        OSError: the disk is full or not writable.
    """
    with _locked(folder):
        overrides = read(folder)
        by_author = [k for k, override in enumerate(overrides) if override.author == author]
        if not by_author:
            return None
        last = overrides.pop(by_author[-1])
        _write(folder, overrides)
        return last


def latest(overrides: Sequence[Override]) -> list[Override]:
    """Return the last correction of each frame or episode, in order."""
    last = {(o.episode, o.frame, o.kind): o for o in overrides}
    return sorted(last.values(), key=lambda o: (o.episode, o.kind, o.frame or 0))


def now() -> str:
    """Return the time as ISO 8601 to the second, in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _problem(entry: dict[str, Any]) -> str | None:
    """Return what is wrong with the fields of a correction, None if nothing is."""
    episode, frame, kind, value = (entry[k] for k in ("episode", "frame", "kind", "value"))
    if not _is_int(episode) or episode < 0:
        return f"'episode' {episode!r}, expected a number from 0"
    if kind not in KINDS:
        return f"'kind' {kind!r}, expected one of {', '.join(KINDS)}"
    if kind == "trend" and not (_is_int(frame) and frame >= 0):
        return f"'frame' {frame!r}, expected a number from 0 for a trend"
    if kind == "success" and frame is not None:
        return f"'frame' {frame!r}, expected null: success is of a whole episode"
    if kind == "trend" and not (_is_int(value) and value in (-1, 0, 1)):
        return f"'value' {value!r}, expected -1, 0 or 1 for a trend"
    if kind == "success" and not isinstance(value, bool):
        return f"'value' {value!r}, expected true or false for a success"
    if not isinstance(entry["author"], str) or not entry["author"]:
        return f"'author' {entry['author']!r}, expected a name"
    if not _is_time(entry["time"]):
        return f"'time' {entry['time']!r}, expected a time as ISO 8601"
    return None


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_time(value: Any) -> bool:
    try:
        datetime.datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return False
    return True


def _check_episodes(folder: Path, overrides: Sequence[Override]) -> None:
    try:
        total = json.loads((folder / "meta/info.json").read_text()).get("total_episodes")
    except FileNotFoundError:
        return
    beyond = [o.episode for o in overrides if isinstance(total, int) and o.episode >= total]
    if beyond:
        raise ValueError(
            f"{folder / FILE}: corrects episode {beyond[0]}, but the data set has {total} "
            "episodes; it belongs to another data set: put it back there"
        )


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Lock the corrections of a data set; the system releases the lock of a killed process."""
    handle = os.open(folder / "meta", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write(folder: Path, overrides: Sequence[Override]) -> None:
    text = ",\n".join(json.dumps(dataclasses.asdict(o)) for o in overrides)
    files.write_text(folder / FILE, f"[\n{text}\n]\n")
