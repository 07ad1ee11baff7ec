"""Seconds of rollout collection by activity."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Stopwatch:
    """Sums seconds by activity."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to those of activity `name`."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds

    @contextmanager
    def on(self, name: str) -> Iterator[None]:
        """Count the seconds until the block ends."""
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - begin)
