"""Who is told what a learner does between updates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def _nobody(_: str) -> Any:
    """Take no notice."""


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Where words for people go; nowhere by default."""

    say: Callable[[str], Any] = _nobody
    """Told one line that stays."""
    doing: Callable[[str], Any] = _nobody
    """Told what goes on from now on, in place of learning; nothing once that goes on."""
