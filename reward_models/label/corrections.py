"""Corrections by people as further columns; the labels stay as predicted."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reward_models.core.overrides import FILE, Override, latest, read_file
from vla.data.info import DatasetInfo

NO_TREND, NO_SUCCESS = -2, -1
"""Values for frames and episodes without corrections."""


def find(source: Path, overrides: Path | None) -> Path | None:
    """Return the given file, or that of the given data set or of the source; None without."""
    if overrides is not None:
        return overrides / FILE if overrides.is_dir() else overrides
    file = source / FILE
    return file if file.is_file() else None


def read(path: Path, info: DatasetInfo) -> list[Override]:
    """Return the latest corrections in a file.

    Raises:
        ValueError: it is damaged, or of another data set.
    """
    overrides = read_file(path)
    for k, override in enumerate(overrides):
        episode, frame = override.episode, override.frame or 0
        if episode >= info.num_episodes or frame >= info.lengths[episode]:
            raise ValueError(
                f"{path}: entry {k} corrects episode {episode}, frame {frame}, which the data set "
                f"lacks ({info.num_episodes} episodes); it belongs to another one"
            )
    return latest(overrides)


def columns(
    overrides: Sequence[Override], info: DatasetInfo
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return progress.override i8 [n] and labels/success_override i8 [episodes]."""
    trend = np.full(info.num_frames, NO_TREND, np.int8)
    success = np.full(info.num_episodes, NO_SUCCESS, np.int8)
    for override in overrides:
        if override.kind == "success":
            success[override.episode] = override.value
        else:
            trend[info.offsets[override.episode] + (override.frame or 0)] = override.value
    return {"progress.override": trend}, {"labels/success_override": success}
