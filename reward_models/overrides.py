"""Corrections of labels by people, kept beside a labelled data set; what they change is not here.

`meta/overrides.json` is a list of objects, oldest first. A file is replaced by one rename and under
a lock, so that a reader, a kill or a second reviewer finds it whole.
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
    """Who says so."""
    time: str
    """When, ISO 8601."""

    def __post_init__(self) -> None:
        """Refuse what is not a correction."""
        problem = _problem(dataclasses.asdict(self))
        if problem:
            raise ValueError(f"a correction has {problem}")


def read(folder: Path) -> list[Override]:
    """Return the corrections of a labelled data set, oldest first; none if there is no file.

    Raises:
        ValueError: the file is damaged, or corrects episodes that are not there.
    """
    file = folder / FILE
    try:
        found = json.loads(file.read_text())
    except FileNotFoundError:
        return []
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{file}: damaged, not JSON ({error}); restore or delete it") from error
    if not isinstance(found, list):
        raise ValueError(f"{file}: damaged, expected a JSON list; restore or delete it")
    names = {field.name for field in dataclasses.fields(Override)}
    for k, one in enumerate(found):
        if not isinstance(one, dict) or set(one) != names:
            raise ValueError(
                f"{file}: entry {k} is {str(one)[:80]}, expected an object with "
                f"{', '.join(sorted(names))}; correct it there"
            )
        problem = _problem(one)
        if problem:
            raise ValueError(f"{file}: entry {k} has {problem}; correct it there")
    overrides = [Override(**one) for one in found]
    _check_episodes(folder, overrides)
    return overrides


def append(folder: Path, override: Override) -> None:
    """Add a correction; whatever happens, the file holds all that were there before.

    Raises:
        ValueError: the file is damaged.
        OSError: the disk is full or not writable.
    """
    with _locked(folder):
        _write(folder, [*read(folder), override])


def undo(folder: Path, author: str) -> Override | None:
    """Take back the newest correction of an author and return it; None if there is none.

    Raises:
        ValueError: the file is damaged.
        OSError: the disk is full or not writable.
    """
    with _locked(folder):
        found = read(folder)
        own = [k for k, override in enumerate(found) if override.author == author]
        if not own:
            return None
        last = found.pop(own[-1])
        _write(folder, found)
        return last


def latest(overrides: Sequence[Override]) -> list[Override]:
    """Return the corrections that stand: of those of the same thing, the last, in order."""
    by_thing = {(o.episode, o.frame, o.kind): o for o in overrides}
    return sorted(by_thing.values(), key=lambda o: (o.episode, o.kind, o.frame or 0))


def now() -> str:
    """Return the time as ISO 8601 to the second, in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def _problem(one: dict[str, Any]) -> str | None:
    """Return what is wrong with the fields of a correction, None if nothing is."""
    episode, frame, kind, value = (one[k] for k in ("episode", "frame", "kind", "value"))
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
    if not isinstance(one["author"], str) or not one["author"]:
        return f"'author' {one['author']!r}, expected a name"
    if not _is_time(one["time"]):
        return f"'time' {one['time']!r}, expected a time as ISO 8601"
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
    """Let one writer at a time at the corrections of a data set; a killed one holds nothing."""
    handle = os.open(folder / "meta", os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _write(folder: Path, overrides: Sequence[Override]) -> None:
    file = folder / FILE
    fresh = file.with_name(f".{file.name}.new")
    text = ",\n".join(json.dumps(dataclasses.asdict(o)) for o in overrides)
    try:
        with fresh.open("w") as stream:
            stream.write(f"[\n{text}\n]\n")
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(file)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise
