"""An episode as the input of `vla.data.writer`, and LeRobot's feature table."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from vla.data.stats import Statistics


@dataclass(frozen=True, kw_only=True)
class VideoSpan:
    """Frames of a video file that is linked into the new data set unchanged."""

    path: Path
    begin_s: float
    """Time in the file at which the episode begins."""


ImageSource = Path | VideoSpan | Iterator[np.ndarray]
"""Images of one camera: a video that is joined without encoding, part of a video file, or images
RGB u8 `h w 3` to encode."""


@dataclass(frozen=True, kw_only=True)
class EpisodeData:
    """One episode of T frames."""

    tasks: tuple[str, ...]
    """Instructions of the episode."""
    task: np.ndarray
    """i64 `t`: index of the instruction of each frame."""
    columns: pa.Table
    """T rows: all features except videos and the standard columns of a data set."""
    timestamp: np.ndarray
    """f32 `t`, seconds since the episode began."""
    images: Mapping[str, ImageSource] = field(default_factory=dict)
    """By feature key."""
    statistics: Statistics = field(default_factory=dict)
    """Statistics of images, if they are known already."""


def episode_data(
    values: Mapping[str, np.ndarray], task: str | Sequence[str], fps: int,
    images: Mapping[str, ImageSource],
) -> EpisodeData:  # fmt: skip
    """Return an episode at a fixed rate from columns `t d` or `t`, with one instruction, or that of
    every frame.
    """
    length = len(values["action"])
    texts = [task] * length if isinstance(task, str) else task
    tasks = tuple(dict.fromkeys(texts))
    columns = {
        key: _vectors(column) if column.ndim == 2 else pa.array(column)
        for key, column in values.items()
    }
    return EpisodeData(
        tasks=tasks, task=np.array([tasks.index(text) for text in texts]),
        columns=pa.table(columns),
        timestamp=(np.arange(length) / fps).astype(np.float32), images=images,
    )  # fmt: skip


def _vectors(values: np.ndarray) -> pa.Array:
    """Return values `t d` as a column of float32 lists of one length."""
    flat = pa.array(np.ascontiguousarray(values, np.float32).ravel(), pa.float32())
    return pa.FixedSizeListArray.from_arrays(flat, values.shape[1])


def feature_table(
    cameras: Mapping[str, tuple[int, int]], state: Sequence[str], action: Sequence[str],
    scalars: Mapping[str, str],
) -> dict[str, dict[str, Any]]:  # fmt: skip
    """Return LeRobot's feature table of a data set with videos: cameras with height and width,
    channel names of state and action, and further columns with one value per frame by dtype.
    """
    videos = {
        f"observation.images.{name}": {
            "dtype": "video", "shape": [*hw, 3], "names": ["height", "width", "channels"],
        }
        for name, hw in cameras.items()
    }  # fmt: skip
    vectors = {
        key: {"dtype": "float32", "shape": [len(names)], "names": list(names)}
        for key, names in (("observation.state", state), ("action", action))
    }
    return {**videos, **vectors, **{key: scalar_feature(kind) for key, kind in scalars.items()}}


def scalar_feature(dtype: str) -> dict[str, Any]:
    """Return the feature of a column with one value per frame."""
    return {"dtype": dtype, "shape": [1], "names": None}
