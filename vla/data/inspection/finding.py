"""What is wrong with a data set, in sentences; who finds it is in the modules beside this one."""

from collections.abc import Sequence
from dataclasses import dataclass

ERROR, WARNING, NOTE = "error", "warning", "note"
SHOWN = 6
"""How many episodes a sentence names."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One thing that is wrong."""

    severity: str
    """error: must not be learned from as it is; warning: look at it; note: good to know."""
    kind: str
    """Which detector found it."""
    sentence: str
    """What, where, and what to do."""
    episodes: tuple[int, ...] = ()
    """Where, if it is not all of the set."""


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
