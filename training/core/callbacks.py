"""Callbacks through which a learner and the training loop report what they do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable


def _ignore(*_: Any) -> Any:
    """Do nothing."""


@runtime_checkable
class RunCallback(Protocol):
    """An observer of a run, such as a live view; it never changes the run."""

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Receive the metrics of an update."""
        ...

    def on_rollouts(self, number: int, episodes: Any, rewards: Any, robot: Any) -> None:
        """Receive the episodes of an iteration of online RL and their rewards."""
        ...


@dataclass(frozen=True, kw_only=True)
class Callbacks:
    """Functions that a learner calls between updates; by default they do nothing."""

    on_warning: Callable[[str], Any] = _ignore
    """Receives one line that stays on the screen."""
    on_status: Callable[[str], Any] = _ignore
    """Receives the current activity other than training; empty when training continues."""
    on_rollouts: Callable[..., Any] = _ignore
    """Receives each iteration's rollouts, as `RunCallback.on_rollouts`."""
