"""Progress bar of long operations on data sets, and their response to SIGTERM."""

import contextlib
import signal
from collections.abc import Iterator
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


@contextlib.contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """Let SIGTERM raise KeyboardInterrupt, as Ctrl-C does."""
    before: Any = None
    with contextlib.suppress(ValueError):  # signals arrive in the main thread only
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
