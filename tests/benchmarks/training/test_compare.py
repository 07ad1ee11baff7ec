"""Policies side by side: the same episodes, turns call by call, memory measured apart."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import peak_memory
from benchmarks.training import compare
from sim.tasks import reach
from tests.training.small_policy import small_policy
from vla import checkpoint
from vla.contracts import config as configs
from vla.memory import none
from vla.utils import paired


def saved(place: Path, task=None, steps: int = 6) -> Path:
    policy = small_policy(none.Config()).with_steps(steps)
    origin = checkpoint.provenance(configs.to_json(task or reach.Config()), ("go",), 7)
    checkpoint.save(policy, origin, place, policy.state_dict())
    return place


def test_policies_are_compared_on_the_same_episodes(tmp_path, capsys) -> None:
    a, b, c = saved(tmp_path / "a"), saved(tmp_path / "b"), saved(tmp_path / "c", steps=1)
    words = [str(a), str(b), str(c), "--episodes", "2", "--calls", "20", "--out",
             str(tmp_path / "out")]  # fmt: skip
    assert compare.main(words) == 0
    told = json.loads((tmp_path / "out/compare.json").read_text())
    assert [one["policy"] for one in told] == [str(a), str(b), str(c)]
    assert [one["steps"] for one in told] == [6, 6, 1]
    assert [one["success"][1] for one in told] == [2, 2, 2]
    assert told[0]["times_as_fast"] == 1.0
    assert all(0 < one["p50_s"] <= one["p99_s"] for one in told)
    assert all(50 < one["peak_mb"] < 5000 for one in told)
    assert "less the first's" in capsys.readouterr().out


def test_policies_of_two_tasks_are_refused(tmp_path) -> None:
    a, b = saved(tmp_path / "a"), saved(tmp_path / "b", reach.Config(distractors=0))
    with pytest.raises(ValueError, match="compare policies of one task"):
        compare.open_all((a, b))


def test_memory_is_measured_only_where_a_policy_decides(tmp_path) -> None:
    with pytest.raises(ValueError, match="no policy decides there"):
        peak_memory.peak_mb(tmp_path)


def test_a_paired_difference_counts_what_differs() -> None:
    first = np.array([True] * 60 + [False] * 40)
    second = first.copy()
    second[60:70] = True
    found = paired.difference(first, second)
    assert found.value == pytest.approx((10.5 - 0.5) / 102)
    assert 0 < found.low < found.value < found.high
    back = paired.difference(second, first)
    assert back == pytest.approx((-found.value, -found.high, -found.low))
