"""Weights through shared memory: what is read was published, whole, however fast they follow."""

import multiprocessing

import numpy as np
import pytest

from training.rl.processes.weights import WeightBoard

SIZE = 1 << 20


def publish_on_and_on(name: str, stop) -> None:
    """Publish one byte value after the other; the version says which."""
    board = WeightBoard(name=name)
    version = 0
    while not stop.is_set():
        version += 1
        board.publish(version, np.full(SIZE, version % 251, np.uint8).tobytes())


def test_what_was_published_is_read_once() -> None:
    board = WeightBoard(100)
    reader = WeightBoard(name=board.name)
    assert reader.read() is None
    board.publish(0, b"first")
    assert reader.read() == (0, b"first")
    assert reader.read(newer_than=0) is None
    board.publish(7, b"second")
    assert reader.read(newer_than=0) == (7, b"second")
    with pytest.raises(ValueError, match="got 300 bytes, expected at most 128"):
        board.publish(8, b"x" * 300)
    assert reader.read() == (7, b"second")
    reader.close()
    board.close()


def test_a_reader_never_gets_a_mixture() -> None:
    context = multiprocessing.get_context("spawn")
    board, stop = WeightBoard(SIZE), context.Event()
    writer = context.Process(target=publish_on_and_on, args=(board.name, stop), daemon=True)
    writer.start()
    versions: list[int] = []
    while len(versions) < 300:
        found = board.read(versions[-1] if versions else -1)
        if found is not None:
            version, payload = found
            content = np.frombuffer(payload, np.uint8)
            assert len(content) == SIZE
            assert (content == version % 251).all()
            versions.append(version)
    stop.set()
    writer.join(10)
    assert writer.exitcode == 0
    assert versions == sorted(set(versions))
    board.close()
