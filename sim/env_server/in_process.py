"""An adapter in this process with the interface of `client.Process`."""

from pathlib import Path
from typing import Any

import numpy as np

from sim.env_server import worker


class InProcessAdapter:
    """One adapter whose simulator runs in this interpreter; its errors pass unchanged."""

    taken_s = 0.0
    """Not measured: the caller's clock includes it."""

    def __init__(self, adapter: Path, options: dict[str, Any]) -> None:
        """Open an adapter.

        Raises:
            ValueError: the file is not an adapter, or the adapter raises it.
        """
        self._adapter = worker.load_adapter(adapter, options)
        self.announced: Any = self._adapter.announce()
        """The adapter's description of its environments."""
        fields = worker.check_fields(self._adapter.fields())
        self.arrays = {name: np.zeros(shape, kind) for name, (shape, kind) in fields.items()}
        """The arrays by name; empty once it is closed."""
        self._adapter.bind(self.arrays)
        self._answer: Any = None
        self.closed = False
        """Whether it is closed."""

    def call(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        """Call a command of the adapter and return its result."""
        self.send(command, arguments)
        return self.receive()

    def send(self, command: str, arguments: dict[str, Any] | None = None) -> None:
        """Call a command; `receive` returns the result."""
        if self.closed:
            raise RuntimeError(f"{command}: the simulator is closed; start a new one")
        self._answer = self._adapter.call(command, arguments or {})

    def receive(self) -> Any:
        """Return the result of the last `send`."""
        answer, self._answer = self._answer, None
        return answer

    def close(self) -> None:
        """Close the adapter; calling it twice does no harm."""
        if not self.closed:
            self.closed = True
            self._adapter.close()
            self.arrays = {}
