"""What people corrected, read from JSON and put beside the labels; the labels stay as they are."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from vla.data.info import DatasetInfo

FILE = "meta/overrides.json"
NO_TREND, NO_SUCCESS = -2, -1
"""Nobody said anything about this frame, this episode."""
FORM = '{"episode": 0, "frame": 5 or null, "kind": "trend" or "success", "value": -1, 0, 1 or true}'


def find(source: Path, asked: Path | None) -> Path | None:
    """Return the file of corrections that was asked for, or the source's own if it has one."""
    own = source / FILE
    return asked or (own if own.is_file() else None)


def read(path: Path) -> list[dict[str, Any]]:
    """Return the corrections in a file.

    Raises:
        ValueError: it is damaged.
    """
    try:
        found = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: damaged, not JSON ({error}); give another file") from error
    if not isinstance(found, list):
        raise ValueError(f"{path}: expected a list of corrections such as {FORM}")
    return found


def columns(
    path: Path, said: list[dict[str, Any]], info: DatasetInfo
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return progress.override i8 [n] and labels/success_override i8 [episodes]; later ones win.

    Raises:
        ValueError: a correction is malformed, or of a frame that does not exist.
    """
    trend = np.full(info.num_frames, NO_TREND, np.int8)
    success = np.full(info.num_episodes, NO_SUCCESS, np.int8)
    for row in said:
        episode, frame = _place(path, row, info)
        if row["kind"] == "success":
            success[episode] = bool(row["value"])
        else:
            trend[info.offsets[episode] + frame] = row["value"]
    return {"progress.override": trend}, {"labels/success_override": success}


def _place(path: Path, row: Any, info: DatasetInfo) -> tuple[int, int]:
    """Return the episode and frame of a correction that makes sense."""
    whole = isinstance(row, dict) and {"episode", "kind", "value"} <= set(row)
    kind = str(row["kind"]) if whole else ""
    sensible = {"trend": (-1, 0, 1), "success": (True, False)}.get(kind, ())
    if not whole or row["value"] not in sensible:
        raise ValueError(f"{path}: correction {row!r} makes no sense, expected {FORM}; mend it")
    episode, frame = row["episode"], row.get("frame")
    if kind == "success" and frame is None:
        frame = 0
    whole_numbers = isinstance(episode, int) and isinstance(frame, int)
    if not (
        whole_numbers and 0 <= episode < info.num_episodes and 0 <= frame < info.lengths[episode]
    ):
        raise ValueError(
            f"{path}: correction of episode {episode!r}, frame {frame!r}, of which the data set "
            f"has none ({info.num_episodes} episodes); take it out"
        )
    return episode, frame
