"""The study of practice: lines that parse, and figures read from what runs leave."""

import io
import json
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from training import train
from training.rl import study
from training.rl import train as train_rl
from vla.contracts.config import type_name

OUT = Path("runs/study")


@pytest.mark.parametrize("name", study.ARMS)
def test_every_arm_is_a_line_that_parses(name) -> None:
    words = study.practice("pick_place", 2, name, Path("critic"), OUT)
    assert words[:2] == ["train", "rl"]
    told, arm = train_rl.parse(words[2:]), study.ARMS[name]
    assert told.train.seed == 2
    assert told.train.steps == arm.steps * arm.rounds
    assert told.train.reward == arm.reward
    assert (told.start.critic is None) == ("critic" not in arm.reward)
    assert told.start.policy == OUT / "pick_place/seed-2/start"


@pytest.mark.parametrize("task", study.CLONES)
def test_the_policy_to_lift_is_a_line_that_parses(task) -> None:
    demos, clone = study.begin(task, 1, Path("critic"), OUT)
    told = train.parse(clone[1:])
    made = study.CLONES[task]
    assert told.train.task == train.parse(["--recipe", made.task, "--out", "x"]).train.task
    assert told.train.steps == made.steps
    assert told.train.vision_from == ("critic" if made.sees else None)
    forgetful = type_name(told.train.policy.memory) == "none"
    assert forgetful == (made.task not in study.REMEMBERED or "without memory" in task)
    assert str(told.data) == demos[-1]


def printed(sheet: Table) -> str:
    text = io.StringIO()
    Console(file=text, width=200).print(sheet)
    return text.getvalue()


def left_by_a_run(out: Path, name: str) -> None:
    place = out / "push/seed-0"
    run = place / name
    for folder in (place / "start", run):
        folder.mkdir(parents=True)
    for folder, success, decided in ((place / "start", 1, 2), (run, 3, 4)):
        found = {
            "success": [k < success for k in range(4)],
            "decided": [k < decided for k in range(4)],
        }
        (folder / "evaluation.json").write_text(json.dumps(found))
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
    assert found.before == study.Tested(success=1, decided=2, trials=4)
    assert found.after == study.Tested(success=3, decided=4, trials=4)
    assert found.reached == {0.8: (80, 1700), 0.9: None}
    for said in ("25.0%", "75.0%", "80 (1700)", "never", "0.50"):
        assert said in printed(study.table("push", {"ogpo, critic": [found]}))
    # Two of four came to a choice and one of those was right; then all four, and three were right.
    for said in ("50.0%", "100.0%", "75.0%"):
        assert said in printed(study.memory_table("push", {"ogpo, critic": [found]}))
