"""The bench of online RL: every second is accounted for."""

import io

import pytest
from rich.console import Console

from benchmarks.rl import bench


def test_an_algorithm_is_one_of_the_folder() -> None:
    assert bench.BenchArgs(algo="ogpo").algo == "ogpo"
    with pytest.raises(ValueError, match="unknown algorithm 'dpo': did you mean dppo"):
        bench.BenchArgs(algo="dpo")


def test_the_parts_are_the_whole(tmp_path) -> None:
    args = bench.BenchArgs(out=tmp_path, task="reach", episodes=2, updates=2, threads=1)
    found = bench.measure(args, bench.begin(args))
    assert sum(found.seconds.values()) == pytest.approx(found.whole, rel=1e-6)
    assert all(seconds > 0 for seconds in found.seconds.values())
    assert found.steps > 0
    text = io.StringIO()
    Console(file=text, width=120).print(bench.table(found))
    assert f"{found.steps} control steps and 2 updates" in bench.sentence(args, found)
    assert "render" in text.getvalue()
