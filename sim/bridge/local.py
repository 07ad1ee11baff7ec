"""A host in this process, behind the interface of `client.Process`: no child, no shared memory."""

from pathlib import Path
from typing import Any

import numpy as np

from sim.bridge import worker


class LocalHost:
    """One host whose simulator lives in our own interpreter; its errors are its own."""

    def __init__(self, host: Path, options: dict[str, Any]) -> None:
        """Open a host.

        Raises:
            ValueError: the file is no host, or what the host itself raises.
        """
        self._host = worker.load_host(host, options)
        self.announced: Any = self._host.announce()
        """What the host says of itself."""
        fields = worker.check_fields(self._host.fields())
        self.arrays = {name: np.zeros(shape, kind) for name, (shape, kind) in fields.items()}
        """The arrays by name; empty once it is closed."""
        self._host.bind(self.arrays)
        self._answer: Any = None
        self.closed = False
        """Whether it can be called no more."""

    def call(self, command: str, arguments: dict[str, Any] | None = None) -> Any:
        """Have the host do one thing and return its answer."""
        self.send(command, arguments)
        return self.receive()

    def send(self, command: str, arguments: dict[str, Any] | None = None) -> None:
        """Do one thing at once; `receive` returns the answer."""
        if self.closed:
            raise RuntimeError(f"{command}: the simulator is closed; start a new one")
        self._answer = self._host.call(command, arguments or {})

    def receive(self) -> Any:
        """Return the answer to what was sent."""
        answer, self._answer = self._answer, None
        return answer

    def close(self) -> None:
        """Close the host; twice does no harm."""
        if not self.closed:
            self.closed = True
            self._host.close()
            self.arrays = {}
