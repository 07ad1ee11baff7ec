"""Who is told what a learner does between updates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


def _nobody(*_: Any) -> Any:
    """Take no notice."""


@runtime_checkable
class Watcher(Protocol):
    """Who is shown a run as it goes on; what fails there is nothing to the run."""

    def metrics(self, step: int, values: dict[str, float]) -> None:
        """Take the figures of an update."""
        ...

    def practised(self, number: int, episodes: Any, worth: Any, robot: Any) -> None:
        """Take the episodes of a round of practice and what they are worth."""
        ...


@dataclass(frozen=True, kw_only=True)
class Listener:
    """Where words for people go; nowhere by default."""

    say: Callable[[str], Any] = _nobody
    """Told one line that stays."""
    doing: Callable[[str], Any] = _nobody
    """Told what goes on from now on, in place of learning; nothing once that goes on."""
    practised: Callable[..., Any] = _nobody
    """Told of every round of practice, as `Watcher.practised`."""
