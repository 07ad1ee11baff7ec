"""`vla curve` measures every delay once, resumes, and says what lies within a memory's window."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sim.tasks import reach
from tests.fakes import liven_
from tests.training.small_policy import TASK, small_policy, write_run
from tests.vla.memories import episode, stepped
from training.commands import curve
from vla import checkpoint
from vla.contracts import config as configs
from vla.memory import bank, gru, hcam, none, transformer

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
    assert "nothing in it is older than 56 control steps, its window" in out
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


@pytest.mark.parametrize(
    "config",
    [
        bank.Config(slots=7, eviction="fifo"), transformer.Config(max_decisions=3),
        transformer.Config(max_decisions=2, layers=3),
        hcam.Config(chunks=3, chunk_decisions=2, top_chunks=3),
    ],
)  # fmt: skip
def test_nothing_is_left_of_a_decision_after_the_window_of_a_memory(config) -> None:
    policy = small_policy(config)
    memory, window = policy.memory, config.window_decisions
    assert curve.window_steps(policy) == window * policy.n_action_steps
    liven_(memory)
    x, now = episode(2 * window + 2, memory.tokens, memory.width)
    changed = x.clone()
    changed[:, window] += 1.0
    read = [stepped(memory, tokens, now, torch.ones_like(now)) for tokens in (x, changed)]
    differs = [not torch.equal(a.vector, b.vector) for a, b in zip(*read, strict=True)]
    assert any(differs[window + 1 : 2 * window + 1])
    assert not any(differs[2 * window + 1 :])
    assert not any(differs[:window])


def test_a_memory_without_a_window_and_none_at_all() -> None:
    assert curve.window_steps(small_policy(bank.Config(slots=7))) == "unbounded"
    assert curve.window_steps(small_policy(gru.Config())) == "unknown"
    assert curve.window_steps(small_policy(none.Config())) == 0
    said = [
        curve._costs({"window_steps": window, "state_bytes": 2000})
        for window in (0, 56, "unbounded", "unknown")
    ]
    assert said[0] == "no memory"
    assert said[1].endswith(
        "kB at any delay; nothing in it is older than 56 control steps, its window"
    )
    assert said[2].endswith("nothing leaves it at a fixed age")
    assert "its window is not known" in said[3]
    assert [curve._beyond({"window_steps": w}, 64) for w in (56, 64, "unbounded", "unknown")] == [
        "yes", "no", "no window", "–"
    ]  # fmt: skip


def test_a_curve_of_other_weights_is_not_continued(run, tmp_path) -> None:
    words = ["--delays", "16", "--distractors", "0", "--episodes", "1", "--out", str(tmp_path)]
    assert curve.main([str(run), *words]) == 0
    other = small_policy(bank.Config(slots=7, eviction="fifo"))
    liven_(other, seed=5)
    write_run(other, tmp_path / "other")
    with pytest.raises(ValueError, match="holds a curve with other weights"):
        curve.main([str(tmp_path / "other"), *words])
    (tmp_path / "curve.json").write_text("{")
    with pytest.raises(ValueError, match=r"curve.json: damaged .*; delete it to measure anew"):
        curve.main([str(run), *words])


def test_another_task_of_the_policy_can_be_named(run, tmp_path) -> None:
    words = ["--task", "latest_cue", "--delays", "16", "--distractors", "0", "--episodes", "1"]
    assert curve.main([str(run), *words, "--out", str(tmp_path)]) == 0
    assert json.loads((tmp_path / "curve.json").read_text())["task"]["type"] == "latest_cue"


def test_delays_double_until_the_first_failure(run, tmp_path, monkeypatch) -> None:
    played: list[tuple[int, int]] = []

    def remembered(policy, task, **settings):
        played.append((task.delay_steps[0], task.distractors))
        short = played[-1][0] < 1024
        success = [short, short and played[-1] != (128, 2)]
        return SimpleNamespace(success=success, decided=[True, True])

    monkeypatch.setattr(curve, "evaluate", remembered)
    words = [str(run), *WORDS, "--out", str(tmp_path)]
    assert curve.main([*words, "--double-until", "0.9"]) == 0
    assert played[4:] == [(128, 0), (128, 2)]
    assert curve.main([*words, "--double-until", "0.6"]) == 0
    assert len(played) == 6
    assert ">256<" not in (tmp_path / "curve.html").read_text()
    assert curve.main([*words, "--double-until", "0.5"]) == 0
    assert played[6:] == [(256, 0), (256, 2), (512, 0), (512, 2), (1024, 0), (1024, 2)]
    assert ">256<" in (tmp_path / "curve.html").read_text()


def test_a_share_that_everybody_reaches_is_refused(run) -> None:
    with pytest.raises(ValueError, match=r"double_until: got 0.25, expected more than 0.250, what"):
        curve.main([str(run), "--double-until", "0.25"])
    with pytest.raises(ValueError, match=r"double_until: got 2.0, expected at most 1"):
        curve.CurveArgs(policy=Path("x"), double_until=2.0)


def test_a_task_without_a_delay_is_refused(tmp_path: Path) -> None:
    policy = small_policy()
    origin = checkpoint.provenance(configs.to_json(reach.Config()), ("go",), 1)
    checkpoint.save(policy, origin, tmp_path / "reach", policy.state_dict())
    with pytest.raises(ValueError, match="reach: has no delay and no proven ceiling; give a"):
        curve.main([str(tmp_path / "reach")])


def test_delays_without_a_proof_are_refused() -> None:
    with pytest.raises(ValueError, match=r"delays, distractors: got \(8,\), \(0, 8\)"):
        curve.CurveArgs(policy=Path("x"), delays=(8,))
    with pytest.raises(ValueError, match=r"expected delays of 40 or more"):
        curve.check_delays((16, 64), (0,), n_action_steps=20)


def test_the_task_is_the_one_of_training() -> None:
    asked = curve.with_delay(TASK, 512, 3)
    assert (asked.delay_steps, asked.distractors) == ((512, 512), 3)
    assert asked.act_steps == TASK.act_steps
