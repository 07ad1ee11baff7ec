"""What people corrected, put beside the labels as columns; the labels themselves stay."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from reward_models.overrides import FILE, Override, latest
from vla.data.info import DatasetInfo

NO_TREND, NO_SUCCESS = -2, -1
"""Nobody said anything about this frame, this episode."""
FORM = '{"episode": 0, "frame": 5, "kind": "trend", "value": -1, "author": "A", "time": ISO 8601}'


def find(source: Path, asked: Path | None) -> Path | None:
    """Return the file of corrections: that asked for, or the source's own if it has one.

    A reviewed data set may be asked for instead of the file in it.
    """
    if asked is not None:
        return asked / FILE if asked.is_dir() else asked
    own = source / FILE
    return own if own.is_file() else None


def read(path: Path, info: DatasetInfo) -> list[Override]:
    """Return the corrections in a file that stand.

    Raises:
        ValueError: it is damaged, or of another data set.
    """
    try:
        found = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: damaged, not JSON ({error}); give another file") from error
    if not isinstance(found, list):
        raise ValueError(f"{path}: expected a JSON list of corrections such as {FORM}")
    said = []
    for k, one in enumerate(found):
        try:
            said.append(Override(**one))
        except (TypeError, KeyError) as error:
            raise ValueError(f"{path}: entry {k} is {str(one)[:80]}, expected {FORM}") from error
        except ValueError as error:
            raise ValueError(f"{path}: entry {k}: {error}; correct it there") from error
        frame = said[-1].frame or 0
        if said[-1].episode >= info.num_episodes or frame >= info.lengths[said[-1].episode]:
            raise ValueError(
                f"{path}: entry {k} corrects episode {said[-1].episode}, frame {frame}, which the "
                f"data set lacks ({info.num_episodes} episodes); it belongs to another one"
            )
    return latest(said)


def columns(
    said: Sequence[Override], info: DatasetInfo
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return progress.override i8 [n] and labels/success_override i8 [episodes]."""
    trend = np.full(info.num_frames, NO_TREND, np.int8)
    success = np.full(info.num_episodes, NO_SUCCESS, np.int8)
    for one in said:
        if one.kind == "success":
            success[one.episode] = one.value
        else:
            trend[info.offsets[one.episode] + (one.frame or 0)] = one.value
    return {"progress.override": trend}, {"labels/success_override": success}
