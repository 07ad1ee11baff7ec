"""LeRobot's policies by our commands: trained, tested, reported, and where they end."""

from pathlib import Path

import pytest

from sim import vec_env
from training.commands import report, train
from training.core.optimizer import OptimizerConfig
from training.view import rollout
from vla import checkpoint, cli
from vla.contracts import config as configs
from vla.policies import act

SMALL = "--policy.image-px 32 --policy.width 16 --policy.layers 1"
QUICK = "--threads 1 --algo.batch-size 2 --eval.every 0 --eval.final-episodes 0"


@pytest.fixture(scope="module")
def run(arm_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two updates of ACT, by the command."""
    out = tmp_path_factory.mktemp("baseline") / "run"
    line = f"train --recipe cue_colour --policy.type act {SMALL} --dataset {arm_dataset} --steps 2"
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
        "--optimizer.grad-clip-norm",
        "2",
    ]
    told = train.parse(words).train
    recipe = train.parse(["--recipe", "pick_place", "--out", "a"]).train
    assert isinstance(told.policy, act.Config)
    for name in ("chunk_size", "n_action_steps", "cameras"):
        assert getattr(told.policy, name) == getattr(recipe.policy, name)
    expected = {
        "lr": 1e-4,
        "weight_decay": 1e-4,
        "grad_clip_norm": 2.0,
        "ema_decay": recipe.optimizer.ema_decay,
    }
    assert told.optimizer == OptimizerConfig(**expected)
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
    assert cli.main(f"hub card {run} --license mit --out {out}".split()) == 0
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
        ("train rl --task cue_colour --policy.path {run} --dataset {data} --reward sparse "
         "--out {new}",
         "online RL got a policy of type 'act'"),
        ("lerobot pack {run} --out {new}", "vla lerobot pack got a policy of type 'act'"),
        ("train distill --policy.path {run} --dataset {data} --out {new}",
         "distillation got a policy of"),
        ("train --policy.type act --cache-frozen-features --dataset {data} --out {new} "
         "--algo.random-shift-px 0 --algo.brightness-jitter 0",
         "cache_frozen_features: not for a policy of type 'act'"),
        ("train --policy.type akt --dataset {data} --out {new}",
         "unknown policy 'akt': did you mean"),
        ("train --policy.type smolvla --dataset {data} --out {new}",
         "policy.model: got none, expected a folder with a SmolVLM or random; fetch one: hf "
         "download HuggingFaceTB/SmolVLM2-500M-Video-Instruct"),
        ("train --policy.type smolvla --policy.model a/b --dataset {data} --out {new}",
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
