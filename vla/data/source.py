"""What an importer says about a data set of another format, and how its columns are named.

How episodes are written is decided in `vla.data.import_parts`.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vla.data.plain_writer import Statistics

Pictures = Path | Iterator[np.ndarray]
"""Of one camera and episode: a video that may be kept as it is, or pictures RGB u8 `h w 3`."""


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a user asks of an importer."""

    fps: int | None = None
    """Frames per second, where the source says none or another is right."""
    task: str = ""
    """Instruction of every episode; the source's own if empty."""
    state: tuple[str, ...] = ()
    """Columns of the source that make the state, in order; the importer's choice if empty."""
    action: tuple[str, ...] = ()
    """The same of the action."""
    split: str = ""
    """Part of the source; the importer's choice if empty."""


@dataclass(frozen=True, kw_only=True)
class SourceEpisode:
    """One episode of T frames."""

    instructions: tuple[str, ...]
    """Those that occur in it."""
    instruction: np.ndarray
    """i64 `t`: which of them holds at each frame."""
    columns: pa.Table
    """T rows: every feature but cameras with videos and what every set has."""
    timestamp: np.ndarray
    """f32 `t`, seconds since the episode began."""
    pictures: Mapping[str, Pictures] = field(default_factory=dict)
    """By feature key."""
    statistics: Statistics = field(default_factory=dict)
    """Of pictures, where the source has them."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """A data set of another format, of which episodes are read one by one."""

    format: str
    fps: int
    robot: str | None
    features: dict[str, dict[str, Any]]
    """LeRobot's feature table, without what every set has."""
    names: Sequence[str]
    """What the source calls each episode, for messages."""
    read: Callable[[int], SourceEpisode]
    """Reads an episode; ValueError if it is damaged."""
    fingerprint: str
    """Changes where the source does."""
    told: tuple[str, ...] = ()
    """What is dropped or assumed, a sentence each."""


def fingerprint(files: Iterable[Path]) -> str:
    """Return a hash of names, sizes and times of files."""
    seen = [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in sorted(files)]
    return hashlib.blake2b(json.dumps(seen).encode(), digest_size=16).hexdigest()


def check_names(place: Path, names: Iterable[str]) -> None:
    """Raise ValueError unless every name of a feature can name a folder inside the new set."""
    for name in names:
        if not name or ".." in name or any(sign in name for sign in "/\\\0"):
            raise ValueError(
                f"{place}: a feature is named {name!r}, and videos lie in folders of that name; "
                "expected one without /, \\ and ..; rename it"
            )


def feature_table(
    cameras: Mapping[str, tuple[int, int]], state: Sequence[str], action: Sequence[str],
    scalars: Mapping[str, str],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Return LeRobot's feature table of a set with videos.

    Args:
        cameras: Height and width by name.
        state: Names of the channels.
        action: The same.
        scalars: Further columns with one value per frame: dtype by name.
    """
    pictures = {
        f"observation.images.{name}": {
            "dtype": "video", "shape": [*hw, 3], "names": ["height", "width", "channels"],
        }
        for name, hw in cameras.items()
    }  # fmt: skip
    vectors = {
        key: {"dtype": "float32", "shape": [len(names)], "names": list(names)}
        for key, names in (("observation.state", state), ("action", action))
    }
    further = {key: {"dtype": kind, "shape": [1], "names": None} for key, kind in scalars.items()}
    return {**pictures, **vectors, **further}


def channel_names(sizes: Mapping[str, int]) -> list[str]:
    """Return a name for every channel of columns that are joined in this order."""
    return [key if size == 1 else f"{key}[{i}]" for key, size in sizes.items() for i in range(size)]


def vector_column(values: np.ndarray) -> pa.Array:
    """Return values `t d` as a column of float32 lists of one length."""
    flat = pa.array(np.ascontiguousarray(values, np.float32).ravel(), pa.float32())
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def plain_episode(
    values: Mapping[str, np.ndarray], task: str, fps: int, pictures: Mapping[str, Pictures]
) -> SourceEpisode:
    """Return an episode of one instruction on an even grid of time, from columns `t d` or `t`."""
    length = len(values["action"])
    columns = {
        key: vector_column(column) if column.ndim == 2 else pa.array(column)
        for key, column in values.items()
    }
    return SourceEpisode(
        instructions=(task,),
        instruction=np.zeros(length, np.int64),
        columns=pa.table(columns),
        timestamp=(np.arange(length) / fps).astype(np.float32),
        pictures=pictures,
    )
