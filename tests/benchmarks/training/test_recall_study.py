"""The recall study end to end at its smallest, its answers, and what it refuses."""

import json

import numpy as np
import pytest

from benchmarks.training import memory_speed, recall_study
from benchmarks.training.recall_study import ANSWERS, Study
from sim import vec_env
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from vla import checkpoint
from vla.contracts import config as configs


@pytest.fixture(scope="module")
def vision(tmp_path_factory):
    """A checkpoint with random weights."""
    out = tmp_path_factory.mktemp("vision") / "policy"
    origin = checkpoint.provenance(configs.to_json(vec_env.load_task("cue_colour")), ("press",), 0)
    policy = memory_speed.build("none", 0)
    checkpoint.save(policy, origin, out, policy.state_dict())
    return out


def test_a_memory_from_episodes_to_tables_and_a_second_call_resumes(vision, tmp_path, capsys):
    words = [
        "--vision", str(vision), "--tasks", "late_query", "--memories", "events", "none",
        "--seeds", "0", "--delays", "16", "--distractors", "0", "--episodes", "8",
        "--test-episodes", "4", "--steps", "2", "--batch-size", "4", "--threads", "1",
        "--out", str(tmp_path),
    ]  # fmt: skip
    assert recall_study.main(words) == 0
    out = capsys.readouterr().out
    assert "late_query: what is recalled; guessing gives 25.0%" in out
    cells = json.loads((tmp_path / "results.json").read_text())["cells"]
    right = cells["late_query events seed 0 delay 16 distractors 0"]
    assert 0 <= right <= 4
    with np.load(tmp_path / "waits/late_query-16-0.npz") as stored:
        waits = recall_study.Waits(**stored)
    assert waits.lengths.sum() == len(waits.cells) == len(waits.step) == len(waits.text)
    assert len(waits.answer) == 4
    # An episode begins at 0; the last of its rows is at go.
    assert [waits.step[rows[0]] for rows in waits.rows(np.arange(4))] == [0.0] * 4
    assert recall_study.main(words) == 0
    assert "learning" not in capsys.readouterr().out


def test_waits_of_other_settings_are_not_taken(vision, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    words = ["--vision", str(vision), "--tasks", "cue_colour", "--out", str(tmp_path)]
    monkeypatch.setattr(recall_study, "watched", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recall_study.main(words)
    with pytest.raises(ValueError, match="got a study with .*'seed': 9000"):
        recall_study.main([*words, "--seed", "1"])


@pytest.mark.parametrize("task", ANSWERS)
def test_an_answer_is_one_of_few_numbers_that_all_occur(task) -> None:
    config = vec_env.load_task(task)
    world = MujocoWorld(compile_scene(config, vec_env.load_robot(None)))
    found = []
    for index in range(60):
        world.reset(0, index)
        found.append(ANSWERS[task](world.task, world.episode))
    few = {"sequence": 24, "wait_then_press": 9}.get(task, 4)
    assert 2 <= len(set(found)) <= few
    assert min(found) >= 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tasks": ("visit_all",)}, "tasks: got \\['visit_all'\\], expected some of"),
        ({"memories": ()}, "memories: got \\[\\], expected some of"),
        ({"episodes": 0}, "episodes: got 0"),
        ({"delays": (8,)}, "delays, distractors: got \\(8,\\)"),
    ],
)
def test_a_study_that_cannot_run_is_refused(changes, message, tmp_path) -> None:
    with pytest.raises(ValueError, match=message):
        Study(vision=tmp_path, out=tmp_path, **changes)
