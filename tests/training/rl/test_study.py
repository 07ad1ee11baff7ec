"""The study of practice: lines that parse, and figures read from what runs leave."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from training import train
from training.rl import study
from training.rl import train as train_rl

OUT = Path("runs/study")


@pytest.mark.parametrize("name", study.ARMS)
def test_every_arm_is_a_line_that_parses(name) -> None:
    words = study.practice("pick_place", 2, name, Path("critic"), OUT, 50)
    assert words[:2] == ["train", "rl"]
    told, arm = train_rl.parse(words[2:]), study.ARMS[name]
    assert told.train.seed == 2
    assert told.train.steps == 50 * arm.rounds
    assert told.train.reward == arm.reward
    assert (told.start.critic is None) == ("critic" not in arm.reward)
    assert told.start.policy == OUT / "pick_place/seed-2/start"


@pytest.mark.parametrize("task", study.CLONES)
def test_the_policy_to_lift_is_a_line_that_parses(task) -> None:
    demos, clone = study.begin(task, 1, OUT)
    told = train.parse(clone[1:])
    assert told.train.task == train.parse(["--recipe", task, "--out", "x"]).train.task
    assert told.train.steps == study.CLONES[task].steps
    assert str(told.data) == demos[-1]


def left_by_a_run(out: Path, name: str) -> None:
    place = out / "push/seed-0"
    run = place / name
    for folder in (place / "start", run):
        folder.mkdir(parents=True)
    (place / "start/evaluation.json").write_text(json.dumps({"rate": 0.25}))
    (run / "evaluation.json").write_text(json.dumps({"success": [True, True, True, False]}))
    rows = [
        {"step": 20, "practice/episodes": 40, "practice/control_steps": 900},
        {"step": 40, "practice/episodes": 40, "practice/control_steps": 900},
        {"step": 40, "eval/success": 0.7},
        {"step": 60, "practice/episodes": 80, "practice/control_steps": 800,
         "practice/agreement": 0.5},
        {"step": 80, "eval/success": 0.85},
    ]  # fmt: skip
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_figures_are_read_from_what_runs_leave(tmp_path) -> None:
    left_by_a_run(tmp_path, "ogpo-critic")
    found = study.read("push", 0, "ogpo, critic", tmp_path)
    assert found.before == 0.25
    assert (found.success, found.trials) == (3, 4)
    assert found.reached == {0.8: (80, 1700), 0.9: None}
    text = io.StringIO()
    Console(file=text, width=200).print(study.table("push", {"ogpo, critic": [found]}))
    for said in ("25.0%", "75.0%", "80 (1700)", "never", "0.50"):
        assert said in text.getvalue()
