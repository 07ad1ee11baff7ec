"""The table of what memories cost: its numbers, and what it refuses."""

import json

import numpy as np
import pytest

from benchmarks.training import memory_speed
from benchmarks.training.memory_speed import Study
from benchmarks.training.memory_study import MEMORIES


def test_every_memory_has_a_row_with_its_sizes(tmp_path, capsys):
    words = ["--decisions", "0", "3", "--calls", "1", "--out", str(tmp_path)]
    assert memory_speed.main(words) == 0
    out = capsys.readouterr().out
    found = json.loads((tmp_path / "results.json").read_text())
    assert list(found) == list(MEMORIES)
    assert all(name in out for name in MEMORIES)
    assert all(len(row["seconds"]) == 2 and min(row["seconds"]) > 0 for row in found.values())
    sizes = {name: row["state_kb"] for name, row in found.items()}
    assert sizes["none"] == 0
    assert sizes["last 16"] == sizes["bank"] == pytest.approx(4 * sizes["last 4"])


def test_the_state_is_the_one_after_as_many_decisions():
    policy = memory_speed.build("bank", 0)
    state = memory_speed.after(policy, 20, np.random.default_rng(0))
    assert state["slot_count"].sum() == 20
    assert state["slot_time"].max() == 19 * policy.n_action_steps


@pytest.mark.parametrize(
    "change", [{"memories": ("dnc",)}, {"decisions": (-1,)}, {"calls": 0}, {"memories": ()}]
)
def test_what_makes_no_sense_is_refused(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Study(**change)
