"""Findings of an inspection; the detectors are in the other modules of this folder."""

from collections.abc import Sequence
from dataclasses import dataclass

ERROR, WARNING, NOTE = "error", "warning", "note"
SHOWN = 6
"""Episodes that a message names."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One problem or observation."""

    severity: str
    """error: do not train on it; warning: check it; note: for information."""
    kind: str
    """Detector."""
    message: str
    """What is wrong, where, and what to do, in one sentence."""
    episodes: tuple[int, ...] = ()
    """Affected episodes; empty if it is the whole data set."""


def named(episodes: Sequence[int]) -> str:
    """Return "episode 3", or "12 episodes (3, 5, 6, 7, 8, 9, ...)"."""
    several = sorted(set(episodes))
    if len(several) == 1:
        return f"episode {several[0]}"
    more = ", ..." if len(several) > SHOWN else ""
    return f"{len(several)} episodes ({', '.join(map(str, several[:SHOWN]))}{more})"


def count(number: int, what: str) -> str:
    """Return "1 frame" or "3 frames"."""
    return f"{number} {what}{'' if number == 1 else 's'}"
