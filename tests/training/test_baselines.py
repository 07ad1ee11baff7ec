"""LeRobot's policies by our commands: trained, tested, reported, compared, and where they end."""

import io
import json
import shutil
from pathlib import Path

import pytest
from rich.console import Console

from sim import vec_env
from training import baseline_study, compare, lines, report, train
from training.optimiser import OptimiserConfig
from training.view import rollout
from vla import checkpoint, cli
from vla.contracts import config as configs
from vla.policies import act

SMALL = "--policy.image-px 32 --policy.width 16 --policy.layers 1"
QUICK = "--threads 1 --algo.batch 2 --eval.every 0 --eval.final-episodes 0"


@pytest.fixture(scope="module")
def run(arm_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two updates of ACT, by the command."""
    out = tmp_path_factory.mktemp("baseline") / "run"
    line = f"train --recipe cue_colour --policy.type act {SMALL} --data {arm_dataset} --steps 2"
    assert cli.main(f"{line} {QUICK} --out {out}".split()) == 0
    return out


def test_a_baseline_decides_as_the_recipe_says_and_learns_at_its_own_rate() -> None:
    words = [
        "--recipe",
        "pick_place",
        "--policy.type",
        "act",
        "--out",
        "a",
        "--optimiser.clip",
        "2",
    ]
    told = train.parse(words).train
    recipe = train.parse(["--recipe", "pick_place", "--out", "a"]).train
    assert isinstance(told.policy, act.Config)
    for name in ("chunk", "execute", "cameras"):
        assert getattr(told.policy, name) == getattr(recipe.policy, name)
    expected = {"lr": 1e-4, "weight_decay": 1e-4, "clip": 2.0, "ema": recipe.optimiser.ema}
    assert told.optimiser == OptimiserConfig(**expected)
    assert told.algo == recipe.algo


def test_a_run_is_trained_measured_tested_and_reported(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy, origin = checkpoint.load(run)
    assert origin.step == 2
    assert policy.config == act.Config(image_px=32, width=16, layers=1)
    assert not (policy.picture_std == 1).any()  # the data set's figures are in the checkpoint
    assert cli.main(f"eval {run} --episodes 1 --videos 0".split()) == 0
    assert "cue_colour: " in capsys.readouterr().out
    assert report.main([str(run)]) == 0
    page = (run / "report.html").read_text()
    assert ">act<" in page  # where our own policies name their memory


def test_a_baseline_has_a_card_and_can_be_looked_at(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "card.md"
    assert cli.main(f"hub card {run} --licence mit --out {out}".split()) == 0
    text = out.read_text()
    assert "policy-act" in text
    assert "vla eval runs/" in text
    assert "vla export" not in text
    policy, origin = checkpoint.load(run)
    task = configs.from_json(None, origin.task, "task", vec_env.TASKS)
    (row,) = rollout.play(policy, task, episodes=1, seed=0)
    assert row.chunk
    assert not row.wrote


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("export {run} --out {new}", "export got a policy of type 'act', expected one of type"),
        ("train rl --task cue_colour --from {run} --demos {data} --reward sparse --out {new}",
         "practice got a policy of type 'act'"),
        ("lerobot pack {run} --out {new}", "vla lerobot pack got a policy of type 'act'"),
        ("train distill --from {run} --data {data} --out {new}", "distillation got a policy of"),
        ("train --policy.type act --features cache --data {data} --out {new} --algo.shift-px 0 "
         "--algo.gain 0", "features: not for a policy of type 'act'"),
        ("train --policy.type akt --data {data} --out {new}", "unknown policy 'akt': did you mean"),
        ("train --policy.type smolvla --data {data} --out {new}",
         "policy.model: got none, expected a folder with a SmolVLM or random; fetch one: hf "
         "download HuggingFaceTB/SmolVLM2-500M-Video-Instruct"),
        ("train --policy.type smolvla --policy.model a/b --data {data} --out {new}",
         "or fetch one: hf download"),
        ("train --policy.type act --policy.backbone.type tiny --out {new}", "no field 'backbone'"),
    ],
)  # fmt: skip
def test_what_a_baseline_cannot_is_one_sentence(
    line: str, said: str, run: Path, arm_dataset: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words = line.format(run=run, data=arm_dataset, new=tmp_path / "new").split()
    assert cli.main(words) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "new").exists()


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Let lines run in this process, but those that record; return them."""
    found: list[list[str]] = []

    def run(words: list[str], console: object) -> int:
        found.append(words)
        return 0 if words[0] == "demos" else cli.main(words)

    monkeypatch.setattr(lines, "run", run)
    return found


def test_the_study_prints_its_table_and_goes_on_where_it_was(
    ran: list[list[str]], arm_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(compare, "WARM", 2)
    monkeypatch.setattr(baseline_study, "PACED", 4)
    out = tmp_path / "study"
    shutil.copytree(arm_dataset, out / "data-cue_colour")  # made-up episodes, small ones
    words = [
        "--task", "cue_colour", "--policies", "act", "--seeds", "0", "--steps", "2",
        "--episodes", "1", "--calls", "10", "--out", str(out), "--more", "--algo.batch", "2",
        *SMALL.split(),
    ]  # fmt: skip
    assert baseline_study.main(words) == 0
    told = capsys.readouterr().out
    assert "1 trainings of 2 updates on one core each: about" in told
    assert "LeRobot ACT" in told
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
    assert baseline_study.main(words) == 1
    assert "holds a study with steps 2, got 3; choose another --out" in capsys.readouterr().out


def test_the_tables_shares_come_with_their_intervals_and_choices_with_chance() -> None:
    one = {
        "task": "cue_colour", "policy": "act", "success": [30, 100], "by_seed": [0.2, 0.4],
        "choices": [30, 90], "chance": 0.25, "parameters": 1234567, "updates": 500,
        "train_s": 90.0, "p50_s": 0.0123, "p99_s": 0.02,
    }  # fmt: skip
    page = io.StringIO()
    rows = [one, {**one, "choices": None, "chance": None}]
    Console(file=page, width=baseline_study.WIDTH).print(baseline_study.sheet(rows))
    told = page.getvalue()
    # Wilson's interval of 30 of 100 is 21.9 to 39.6 %, that of 30 of 90 24.5 to 43.6 %.
    for cell in ("LeRobot ACT", "30.0% (21.9 to 39.6)", "20.0% 40.0%", "33.3% (24.5 to 43.6)",
                 "25%", "1,234,567", "500", "1.5", "12.3", "20.0"):  # fmt: skip
        assert cell in told
    assert told.count("25%") == 1


def test_a_line_that_fails_is_told_at_the_end_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lines, "run", lambda words, console: int(words[0] == "train"))
    words = ["--task", "cue_colour", "--policies", "ours", "act", "--out", str(tmp_path / "s")]
    assert baseline_study.main(words) == 1
    told = capsys.readouterr().out
    assert told.count("failed: vla train --recipe cue_colour") == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--task", "reech"], "unknown recipe 'reech': did you mean reach?"),
     (["--minutes", "0"], "minutes: got 0.0, expected at least 0.01"),
     (["--calls", "1"], "calls: got 1, expected at least 10")],
)  # fmt: skip
def test_a_study_that_cannot_be_is_one_sentence(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert baseline_study.main([*words, "--out", str(tmp_path / "new")]) == 1
    assert said in capsys.readouterr().out
    assert not (tmp_path / "new").exists()


def test_without_memory_is_left_out_where_the_recipe_has_none() -> None:
    study = baseline_study.parse(["--out", "a", "--task", "pick_place", "put_back"])
    assert study.studied("pick_place") == ("ours", "act", "diffusion", "smolvla")
    assert study.studied("put_back") == ("ours", "none", "act", "diffusion", "smolvla")
    assert study.demonstrations("pick_place") == 1000
