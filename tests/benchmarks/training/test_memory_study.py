"""The memory study end to end at its smallest, its arithmetic, and what it refuses."""

import json

import pytest
import torch

from benchmarks.training import memory_speed, memory_study
from benchmarks.training.memory_study import MEMORIES, Study
from sim import vec_env
from vla import checkpoint
from vla.contracts import registry
from vla.contracts.config import type_name


def recorded(data):
    """Return how many distractors the demonstrations in a folder have."""
    return json.loads((data / "meta/recording.json").read_text())["task"]["distractors"]


@pytest.mark.parametrize(("teacher_steps", "teacher_task"), [(0, ""), (1, "cue_colour")])
def test_a_memory_from_demonstrations_to_tables_and_a_second_call_resumes(
    tmp_path, capsys, teacher_steps, teacher_task
):
    words = [
        "--tasks", "late_query", "--memories", "lru", "--seeds", "0", "--delays", "16",
        "--distractors", "0", "--demos", "4", "--steps", "2", "--episodes", "2", "--threads", "1",
        "--teacher-steps", str(teacher_steps), "--teacher-task", teacher_task,
        "--train-distractors", "2", "--out", str(tmp_path), "--more", "--algo.batch-size", "2",
        "--algo.short-decisions", "0",
    ]  # fmt: skip
    assert memory_study.main(words) == 0
    out = capsys.readouterr().out
    assert "late_query, 0 distractors; ceiling without memory 25.0%" in out
    cells = json.loads((tmp_path / "results.json").read_text())["cells"]
    assert [cell["episodes"] for cell in cells.values()] == [2]
    assert "<svg" in (tmp_path / "curves.html").read_text()
    policy = checkpoint.load(tmp_path / "late_query-lru-0")[0]
    assert recorded(tmp_path / "data-late_query-2") == 2
    assert type_name(policy.config.memory) == "lru"
    if teacher_steps:
        teacher = checkpoint.load(tmp_path / "cue_colour-teacher")[0]
        assert recorded(tmp_path / "data-cue_colour") == 0
        assert type_name(teacher.config.memory) == "transformer"
        assert torch.equal(policy.backbone.stem[0].weight, teacher.backbone.stem[0].weight)
    assert memory_study.main(words) == 0
    assert "updates to go" not in capsys.readouterr().out


def test_every_memory_and_every_memory_task_takes_part() -> None:
    assert {words[0] for words in MEMORIES.values()} == set(registry.names("vla.memory"))
    with_ceiling = {
        name for name in registry.names("sim.tasks") if hasattr(vec_env.load_task(name), "ceiling")
    }
    assert set(memory_study.SHORT) == with_ceiling


def test_policies_with_a_memory_are_equally_large_within_a_tenth() -> None:
    sizes = {
        name: sum(part.numel() for part in memory_speed.build(name, 0).parameters())
        for name in MEMORIES
    }
    assert max(sizes.values()) < 1.1 * sizes["bank"]
    assert min(sizes.values()) > 0.9 * sizes["bank"]


def test_a_control_above_its_ceiling_is_a_leak_and_luck_is_not() -> None:
    assert not memory_study.leaks(0.25, 55, 200, 1)
    assert memory_study.leaks(0.25, 70, 200, 1)
    assert not memory_study.leaks(0.25, 70, 200, 100)  # one of a hundred may be that lucky


def test_the_score_is_0_at_the_ceiling_and_1_at_the_experts() -> None:
    assert memory_study.normalised(0.25, 50, 200) == 0.0
    assert memory_study.normalised(0.25, 200, 200) == 1.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tasks": ("reach",)}, "tasks: got \\['reach'\\], expected some of cue_colour"),
        ({"memories": ("ntm",)}, "memories: got \\['ntm'\\], expected some of none"),
        ({"teacher_task": "reach"}, "teacher_task: got 'reach', expected one of cue_colour"),
        ({"delays": (8,)}, "delays, distractors: got \\(8,\\)"),
    ],
)
def test_what_it_does_not_know_is_refused(settings, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        Study(out=tmp_path, **settings)
