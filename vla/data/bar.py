"""The bar of long work on data sets, and how signals end it; what is done is elsewhere."""

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
    """Return a bar on stderr with count, rate and time left; tasks give it its words."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        Rate(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )


class Rate(ProgressColumn):
    """Things per second."""

    def render(self, task: Task) -> Text:
        """Return it as text."""
        return Text(f"{task.speed:.1f}/s" if task.speed else "starting")


class stoppable:  # noqa: N801  reads as what it does: `with stoppable():`
    """SIGTERM ends what is inside like Ctrl-C does."""

    def __enter__(self) -> None:
        self._before: Callable[..., Any] | int | None = None
        try:
            self._before = signal.signal(signal.SIGTERM, signal.default_int_handler)
        except ValueError:  # not the main thread, which alone gets signals
            self._before = None

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGTERM, self._before)
