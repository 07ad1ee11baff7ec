"""Weights through shared memory: one process publishes, others read, none gets a mixture.

There are two places. A publication goes to the one that is not current, with its version, length
and checksum, and becomes current by one word. A reader that was overtaken while it copied sees that
the checksum does not fit, and copies again.
"""

import weakref
import zlib
from multiprocessing.shared_memory import SharedMemory

import numpy as np

WORDS = 3
"""Of a place's header: version, length in bytes, checksum; i64 each."""
HEADER = 64
"""Bytes kept free for a header, and for the count of publications before the two places."""


class WeightBoard:
    """Where weights are published.

    Args:
        capacity: Bytes of the largest publication; makes the board.
        name: Name of a board that another process made; opens it.
    """

    def __init__(self, capacity: int = 0, name: str | None = None) -> None:
        capacity = -(-capacity // HEADER) * HEADER  # headers stay aligned
        size = HEADER + 2 * (HEADER + capacity)
        self._memory = SharedMemory(name) if name else SharedMemory(create=True, size=size)
        self.name = self._memory.name
        buffer = self._memory.buf
        assert buffer is not None
        self._count = np.frombuffer(buffer, np.int64, 1)
        self._bytes = np.frombuffer(buffer, np.uint8)
        # A board that was opened may be longer than it was made: memory comes in pages.
        self._capacity = np.frombuffer(buffer, np.int64, 1, 8)
        if not name:
            self._count[0], self._capacity[0] = 0, capacity
        # Also runs when the interpreter ends; a reader leaves the memory where it is.
        self.close = weakref.finalize(self, _release, self.__dict__, not name)

    def publish(self, version: int, payload: bytes) -> None:
        """Make `payload` the current weights; for the one process that made the board.

        Raises:
            ValueError: it does not fit.
        """
        if len(payload) > self._capacity[0]:
            raise ValueError(
                f"weights: got {len(payload)} bytes, expected at most {self._capacity[0]}"
            )
        header, content = self._place(int(self._count[0]) + 1)
        header[:] = version, len(payload), 0
        content[: len(payload)] = np.frombuffer(payload, np.uint8)
        header[2] = _checksum(version, payload)
        self._count[0] += 1

    def read(self, newer_than: int = -1) -> tuple[int, bytes] | None:
        """Return the current version and weights; None if there is none newer than that."""
        while True:
            count = int(self._count[0])
            header, content = self._place(count)
            version, length, checksum = header.tolist()
            if count == 0:
                return None
            payload = content[:length].tobytes() if version > newer_than else b""
            if payload and checksum == _checksum(version, payload):
                return version, payload
            if count == self._count[0]:  # not overtaken: this is the current one
                return None

    def _place(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return header i64 [3] and content u8 [capacity] of a publication."""
        capacity = int(self._capacity[0])
        begin = HEADER + (count % 2) * (HEADER + capacity)
        header = self._bytes[begin : begin + 8 * WORDS].view(np.int64)
        return header, self._bytes[begin + HEADER : begin + HEADER + capacity]


def _checksum(version: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(version.to_bytes(8, "little", signed=True)))


def _release(parts: dict[str, object], made_here: bool) -> None:
    memory = parts["_memory"]
    assert isinstance(memory, SharedMemory)
    for name in ("_count", "_bytes", "_capacity"):
        parts.pop(name, None)
    memory.close()
    if made_here:
        memory.unlink()
