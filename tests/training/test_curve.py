"""`vla curve` measures every delay once, resumes, and says what lies within a memory's window."""

import json
from pathlib import Path

import pytest

from sim.tasks import reach
from tests.training.small_policy import TASK, small_policy, write_run
from training.commands import curve
from vla import checkpoint
from vla.contracts import config as configs
from vla.memory import bank, hcam, none, transformer

WORDS = ["--delays", "16", "64", "--distractors", "0", "2", "--episodes", "2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "fifo"
    write_run(small_policy(bank.Config(slots=7, eviction="fifo")), folder)
    return folder


def test_every_delay_is_measured_once_and_the_window_is_told(run, capsys, monkeypatch) -> None:
    played: list[tuple] = []
    whole = curve.evaluate

    def counted(policy, task, **settings):
        played.append((task.delay_steps, task.distractors, settings["seed"]))
        return whole(policy, task, **settings)

    monkeypatch.setattr(curve, "evaluate", counted)
    assert curve.main([str(run), *WORDS]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert played == [((16, 16), 0, 7000), ((64, 64), 0, 7001), ((16, 16), 2, 7002),
                      ((64, 64), 2, 7003)]  # fmt: skip
    # 7 slots of 8 control steps.
    assert "holds the last 56 control steps" in out
    assert "ceiling without memory 25.0%" in out
    results = json.loads((run / "curve/curve.json").read_text())
    for cell in results["cells"].values():
        assert cell["success"] <= cell["choices"] <= cell["episodes"] == 2
    assert results["state_bytes"] > 7 * 64 * 4
    page = (run / "curve/curve.html").read_text()
    assert "<svg" in page
    assert "ceiling without memory, 25.0%" in page
    assert curve.main([str(run / "checkpoint"), *WORDS]) == 0
    assert len(played) == 4
    with pytest.raises(ValueError, match=r"holds a curve with other episodes; give the same"):
        curve.main([str(run), *WORDS, "--episodes", "3"])


def test_only_delays_beyond_the_window_are_marked(run, capsys) -> None:
    curve.main([str(run), *WORDS])
    lines = capsys.readouterr().out.splitlines()
    cells = [line.split() for line in lines if line.startswith("│")]
    marked = {words[1]: words[3] for words in cells if words[1].isdigit()}
    assert marked == {"16": "no", "64": "yes"}


def test_recall_counts_choices_alone() -> None:
    args = curve.CurveArgs(policy=Path("x"), delays=(16,), distractors=(0, 2))
    cells = {
        "delay 16 distractors 0": {"success": 3, "choices": 4, "episodes": 8},
        "delay 16 distractors 2": {"success": 0, "choices": 0, "episodes": 8},
    }
    assert list(curve._shares(args, {"cells": cells}, 16)) == [
        "37.5% (13.7% to 69.4%)", "75.0%", "0.0% (0.0% to 32.4%)", "–"
    ]  # fmt: skip


def test_windows_of_memories() -> None:
    windows = {
        config: curve.window_steps(small_policy(config))
        for config in (
            none.Config(), bank.Config(slots=7), bank.Config(slots=7, eviction="fifo"),
            transformer.Config(max_decisions=5), hcam.Config(chunks=3, chunk_decisions=4),
        )
    }  # fmt: skip
    assert list(windows.values()) == [0, None, 56, 40, 96]


def test_a_task_without_a_delay_is_refused(tmp_path: Path) -> None:
    policy = small_policy()
    origin = checkpoint.provenance(configs.to_json(reach.Config()), ("go",), 1)
    checkpoint.save(policy, origin, tmp_path / "reach", policy.state_dict())
    with pytest.raises(ValueError, match="reach: has no delay and no proven ceiling; give a"):
        curve.main([str(tmp_path / "reach")])


def test_delays_without_a_proof_are_refused() -> None:
    with pytest.raises(ValueError, match=r"delays, distractors: got \(8,\), \(0, 8\)"):
        curve.CurveArgs(policy=Path("x"), delays=(8,))


def test_the_task_is_the_one_of_training() -> None:
    asked = curve.with_delay(TASK, 512, 3)
    assert (asked.delay_steps, asked.distractors) == ((512, 512), 3)
    assert asked.act_steps == TASK.act_steps
