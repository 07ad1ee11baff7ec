"""Description of a data set of another format, as importers provide it."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vla.data.episode import EpisodeData
from vla.data.limits import MAX_SIDE_PX


@dataclass(frozen=True, kw_only=True)
class ImportOptions:
    """Options of an import."""

    fps: int | None = None
    """Frames per second; overrides the source, and is required if the source has none."""
    task: str = ""
    """Instruction of every episode; that of the source if empty."""
    state: tuple[str, ...] = ()
    """Columns of the source that form the state, in order; chosen by the importer if empty."""
    action: tuple[str, ...] = ()
    """Columns of the source that form the action; chosen by the importer if empty."""
    split: str = ""
    """Split of the source; chosen by the importer if empty."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set of another format, read episode by episode."""

    format: str
    fps: int
    robot: str | None
    features: dict[str, dict[str, Any]]
    """LeRobot's feature table without the standard columns."""
    names: Sequence[str]
    """Name of each episode in the source, for messages."""
    read: Callable[[int], EpisodeData]
    """Reads an episode; ValueError if it is damaged."""
    fingerprint: str
    """Hash that changes with the source."""
    notes: tuple[str, ...] = ()
    """What is dropped or assumed, one sentence each."""


def fingerprint(files: Iterable[Path]) -> str:
    """Return a hash of names, sizes and times of files."""
    states = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(files)]
    return hashlib.blake2b(json.dumps(states).encode(), digest_size=16).hexdigest()


def check_names(place: Path, names: Iterable[str]) -> None:
    """Raise ValueError unless every feature name is a valid folder name."""
    for name in names:
        if not name or ".." in name or any(sign in name for sign in "/\\\0"):
            raise ValueError(
                f"{place}: got the feature name {name!r}, expected a folder name without /, \\ and "
                "..; rename the feature"
            )


def check_sizes(place: Path, features: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ValueError unless every image fits into a video."""
    for key, feature in features.items():
        height, width = feature["shape"][:2] if feature["dtype"] == "video" else (1, 1)
        if not 1 <= min(height, width) <= max(height, width) <= MAX_SIDE_PX:
            raise ValueError(
                f"{place}: images of {key!r} have {height} x {width} pixels, expected sides of 1 "
                f"to {MAX_SIDE_PX:,}; resize them, or leave the feature out"
            )


def channel_names(sizes: Mapping[str, int]) -> list[str]:
    """Return a name for every channel of columns that are concatenated in this order."""
    return [key if size == 1 else f"{key}[{i}]" for key, size in sizes.items() for i in range(size)]
