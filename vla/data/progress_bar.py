"""Progress bar of long operations on data sets, and their response to SIGTERM."""

import signal
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text


def bar(unit: str) -> Progress:
    """Return a progress bar on stderr with count, rate and remaining time."""
    return Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
        Rate(), TimeRemainingColumn(), console=Console(stderr=True),
    )  # fmt: skip


class Rate(ProgressColumn):
    """Column with the rate per second."""

    def render(self, task: Task) -> Text:
        """Return the rate as text."""
        return Text(f"{task.speed:.1f}/s" if task.speed else "starting")


class sigterm_as_interrupt:  # noqa: N801  used as `with sigterm_as_interrupt():`
    """Context manager in which SIGTERM raises KeyboardInterrupt, as Ctrl-C does."""

    def __enter__(self) -> None:
        self._before: Callable[..., Any] | int | None = None
        try:
            self._before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        except ValueError:  # signals arrive in the main thread only
            self._before = None

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
