"""The study of baselines: its lines, its table, and what it does again."""

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks import harness
from benchmarks.training import baseline_study, compare
from benchmarks.training.baseline_study import Study
from vla import cli

MAIN = "benchmarks.training.baseline_study:main"
SMALL = "--policy.image-px 32 --policy.width 16 --policy.layers 1"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let lines run in this process, but those that record; return them."""
    lines: list[list[str]] = []

    def run(words: list[str], console: object) -> int:
        lines.append(words)
        return 0 if words[0] == "demos" else cli.main(words)

    monkeypatch.setattr(harness, "run", run)
    return lines


def test_the_study_prints_its_table_and_resumes(
    ran: list[list[str]], arm_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(compare, "WARM", 2)
    monkeypatch.setattr(baseline_study, "PACED", 4)
    out = tmp_path / "study"
    shutil.copytree(arm_dataset, out / "data-cue_colour")  # made-up episodes, small ones
    words = [
        "--task", "cue_colour", "--policies", "act", "--seeds", "0", "--steps", "2",
        "--episodes", "1", "--calls", "10", "--out", str(out), "--more", "--algo.batch-size", "2",
        *SMALL.split(),
    ]  # fmt: skip
    assert baseline_study.main(words) == 0
    printed = capsys.readouterr().out
    assert "1 trainings of 2 updates on one core each: about" in printed
    assert "LeRobot ACT" in printed
    rows = json.loads((out / "baselines.json").read_text())
    assert [(one["policy"], one["updates"], one["chance"]) for one in rows] == [("act", 2, 0.25)]
    assert rows[0]["success"][1] == 1
    assert rows[0]["choices"][0] <= rows[0]["choices"][1] <= 1
    assert 0 < rows[0]["p50_s"] <= rows[0]["p99_s"]
    assert rows[0]["parameters"] > 1e7  # a ResNet-18
    assert rows[0]["train_s"] > 0
    assert not list(out.glob("pace-*"))
    # The demonstrations, the pace, the policy.
    assert [line[0] for line in ran] == ["demos", "train", "train"]
    assert baseline_study.main(words) == 0
    assert [line[0] for line in ran[3:]] == ["demos"]  # which sees that they are there
    words[words.index("--steps") + 1] = "3"
    assert cli.run(MAIN, words) == 1
    assert "holds a study with steps 2, got 3; choose another --out" in capsys.readouterr().err


def test_the_tables_shares_come_with_their_intervals_and_choices_with_chance() -> None:
    one = {
        "task": "cue_colour", "policy": "act", "success": [30, 100], "by_seed": [0.2, 0.4],
        "choices": [30, 90], "chance": 0.25, "parameters": 1234567, "updates": 500,
        "train_s": 90.0, "p50_s": 0.0123, "p99_s": 0.02,
    }  # fmt: skip
    page = io.StringIO()
    rows = [one, {**one, "choices": None, "chance": None}]
    Console(file=page, width=baseline_study.WIDTH).print(baseline_study.sheet(rows))
    printed = page.getvalue()
    # Wilson's interval of 30 of 100 is 21.9 to 39.6 %, that of 30 of 90 24.5 to 43.6 %.
    for cell in ("LeRobot ACT", "30.0% (21.9 to 39.6)", "20.0% 40.0%", "33.3% (24.5 to 43.6)",
                 "25%", "1,234,567", "500", "1.5", "12.3", "20.0"):  # fmt: skip
        assert cell in printed
    assert printed.count("25%") == 1


def test_a_failed_command_is_printed_at_the_end_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "run", lambda words, console: int(words[0] == "train"))
    words = ["--task", "cue_colour", "--policies", "ours", "act", "--out", str(tmp_path / "s")]
    assert baseline_study.main(words) == 1
    printed = capsys.readouterr().out
    assert printed.count("failed: vla train --recipe cue_colour") == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(["--task", "reech"], "unknown recipe 'reech': did you mean reach?"),
     (["--minutes", "0"], "minutes: got 0.0, expected at least 0.01"),
     (["--calls", "1"], "calls: got 1, expected at least 10")],
)  # fmt: skip
def test_a_study_that_cannot_be_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(MAIN, [*words, "--out", str(tmp_path / "new")]) == 1
    assert sentence in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_without_memory_is_left_out_where_the_recipe_has_none() -> None:
    study = Study(out=Path("a"), task=("pick_place", "put_back"))
    assert study.studied("pick_place") == ("ours", "act", "diffusion", "smolvla")
    assert study.studied("put_back") == ("ours", "none", "act", "diffusion", "smolvla")
    assert study.demonstrations("pick_place") == 1000
