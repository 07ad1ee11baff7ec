"""The training loop: what is killed goes on as if nothing had happened, and nothing is mixed up."""

import json
import multiprocessing
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tests.training.tiny_run import run, run_and_die, tiny_config
from training.algos import bc
from training.core.config import EvalConfig
from training.core.metrics import read_metrics
from training.core.optimizer import Optimizer
from training.evaluation.evaluate import Evaluation
from vla import checkpoint, cli
from vla.contracts import config as configs
from vla.contracts import registry
from vla.utils.interrupted import Interrupted


@pytest.fixture(scope="module")
def whole(arm_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was left alone."""
    return run(tiny_config(), arm_dataset, tmp_path_factory.mktemp("whole") / "run")


def assert_same_weights(a: Path, b: Path) -> None:
    for name in ("model.safetensors", "trainer.safetensors"):
        left, right = (safetensors.torch.load_file(x / "checkpoint" / name) for x in (a, b))
        assert left.keys() == right.keys()
        assert [n for n in left if not torch.equal(left[n], right[n])] == []
    states = [json.loads((x / "checkpoint" / "trainer.json").read_text()) for x in (a, b)]
    assert states[0] == states[1]


def figures(out: Path) -> list[tuple[float, float]]:
    return [(row["step"], row["loss"]) for row in read_metrics(out)]


def test_a_run_leaves_a_checkpoint_with_provenance_and_a_row_of_metrics_per_update(
    whole: Path,
) -> None:
    policy, origin = checkpoint.load(whole, registry.load("vla.robots", "so101").SPEC)
    assert policy.config == tiny_config().policy
    assert origin.step == 8
    assert origin.task == configs.to_json(tiny_config().task)
    assert origin.instructions == ("press 0", "press 1")
    rows = read_metrics(whole)
    assert [row["step"] for row in rows] == list(range(1, 9))
    # three batches hold 3 + 3 + 1 episodes; two decisions of each carry a loss
    assert {"loss", "lr", "grad_norm", "samples_per_s", "seconds"} <= rows[0].keys()
    assert {row["samples"] for row in rows} <= {2.0, 4.0, 6.0}


def test_the_same_seed_gives_the_same_weights_and_another_does_not(
    whole: Path, arm_dataset: Path, tmp_path: Path
) -> None:
    assert_same_weights(whole, run(tiny_config(), arm_dataset, tmp_path / "same"))
    other = run(tiny_config(seed=1), arm_dataset, tmp_path / "other")
    assert figures(other) != figures(whole)


@pytest.mark.parametrize(("update", "where"), [(5, "updating"), (6, "saving")])
def test_a_run_that_was_killed_and_continued_has_the_same_weights_to_the_bit(
    update: int, where: str, whole: Path, arm_dataset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=run_and_die, args=(arm_dataset, out, update, where))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    # Saved after update 3; what was learned since, and a half-made checkpoint, are lost.
    assert checkpoint.load(out)[1].step == 3
    assert len(read_metrics(out)) > 3
    run(tiny_config(), arm_dataset, out)
    assert_same_weights(whole, out)
    assert figures(out) == figures(whole)  # no update is logged twice, none is missing
    assert sorted(f.name for f in out.iterdir()) == [
        "checkpoint", "config.json", "metrics.jsonl", "tensorboard",
    ]  # fmt: skip


def test_a_row_of_metrics_that_was_cut_short_is_dropped(arm_dataset: Path, tmp_path: Path) -> None:
    out = run(tiny_config(steps=3), arm_dataset, tmp_path / "run")
    before = figures(out)
    with (out / "metrics.jsonl").open("a") as file:
        file.write('{"step": 4, "lo')
    run(tiny_config(steps=3), arm_dataset, out)
    assert figures(out) == before


@pytest.fixture
def interrupted_at(monkeypatch: pytest.MonkeyPatch):
    """Return a function that makes a signal arrive during the given update."""

    def arm(update: int, number: int) -> None:
        step = Optimizer.step

        def interrupted(self: Optimizer, loss: torch.Tensor) -> dict[str, float]:
            if self.count + 1 == update:
                signal.raise_signal(number)
            return step(self, loss)

        monkeypatch.setattr(Optimizer, "step", interrupted)

    return arm


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_the_run_goes_on_to_the_same_weights(
    number: int, whole: Path, arm_dataset: Path, tmp_path: Path, interrupted_at, monkeypatch
) -> None:
    before = signal.getsignal(number)
    interrupted_at(5, number)
    with pytest.raises(Interrupted, match="saved after update 5 of 8"):
        run(tiny_config(), arm_dataset, tmp_path / "run")
    assert signal.getsignal(number) == before
    assert checkpoint.load(tmp_path / "run")[1].step == 5
    monkeypatch.undo()
    assert_same_weights(whole, run(tiny_config(), arm_dataset, tmp_path / "run"))


def test_the_command_says_how_to_go_on_after_ctrl_c(
    arm_dataset: Path, tmp_path: Path, interrupted_at, capsys
) -> None:
    interrupted_at(1, signal.SIGINT)
    line = f"train --recipe cue_colour --dataset {arm_dataset} --out {tmp_path / 'run'}"
    line += " --policy.backbone.image-px 32 --algo.batch-size 2 --threads 1"
    assert cli.main(line.split()) == cli.INTERRUPTED
    said = capsys.readouterr().err
    assert "interrupted: saved after update 1 of" in said
    assert "the same command resumes" in said


def test_another_configuration_in_the_same_folder_is_refused(
    whole: Path, arm_dataset: Path
) -> None:
    other = tiny_config()
    other = replace(other, optimizer=replace(other.optimizer, lr=0.5))
    before = (whole / "config.json").read_text()
    with pytest.raises(
        ValueError, match=r"another configuration \(config.optimizer.lr is 0.001 there, 0.5 here\)"
    ):
        run(other, arm_dataset, whole)
    assert (whole / "config.json").read_text() == before


def test_a_run_of_another_version_is_refused_by_the_setting_that_it_lacks(
    arm_dataset: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    out.mkdir()
    told = configs.to_json(tiny_config())
    del told["pretrained_vision_encoder"]
    (out / "config.json").write_text(json.dumps(told))
    with pytest.raises(
        ValueError, match=r"\(config.pretrained_vision_encoder exists on one side only: an"
    ):
        run(tiny_config(), arm_dataset, out)


def test_a_folder_with_something_else_in_it_is_refused(arm_dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match="not empty and holds no run"):
        run(tiny_config(), arm_dataset, tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["thesis.tex"]


def cut(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    "damage",
    [
        lambda c: cut(c / "trainer.json"),
        lambda c: cut(c / "trainer.safetensors"),
        lambda c: (c / "trainer.json").unlink(),
        lambda c: (c / "trainer.safetensors").unlink(),
        lambda c: (c / "trainer.json").write_text("{}"),
        lambda c: (c / "trainer.json").write_text("[]"),
        lambda c: (c / "trainer.json").write_bytes(b"\xff\xfe"),
        lambda c: (c / "trainer.safetensors").write_bytes((c / "model.safetensors").read_bytes()),
    ],
)
def test_a_damaged_trainers_state_is_told(damage: Any, arm_dataset: Path, tmp_path: Path) -> None:
    out = run(tiny_config(steps=1), arm_dataset, tmp_path / "run")
    damage(out / "checkpoint")
    with pytest.raises(ValueError, match="cannot continue this run .*; delete .* to start "):
        run(tiny_config(steps=1), arm_dataset, out)


def test_a_damaged_configuration_of_the_run_is_told(arm_dataset: Path, tmp_path: Path) -> None:
    out = run(tiny_config(steps=1), arm_dataset, tmp_path / "run")
    cut(out / "config.json")
    with pytest.raises(ValueError, match=r"config.json: damaged"):
        run(tiny_config(steps=1), arm_dataset, out)


def test_evaluations_use_the_averaged_weights_on_seeds_of_their_own_and_change_nothing(
    whole: Path, arm_dataset: Path, tmp_path: Path, monkeypatch
) -> None:
    calls = []

    def fake_evaluate(policy, task, *, episodes: int, seed: int) -> Evaluation:
        calls.append((episodes, seed, policy.training, policy.state_dict()))
        torch.rand(3)  # whatever an evaluation draws
        return Evaluation(
            task=configs.to_json(task), seed=seed, success=[True, False], progress=[1.0, 0.5],
            steps=[3, 4], decided=[True, False], seconds=0.1,
        )  # fmt: skip

    monkeypatch.setattr(bc, "evaluate", fake_evaluate)
    plan = EvalConfig(every=4, episodes=2, final_episodes=3, seed=40)
    out = run(tiny_config(eval=plan), arm_dataset, tmp_path / "run")
    assert [call[:3] for call in calls] == [(2, 40, False), (3, 41, False)]
    assert_same_weights(whole, out)
    stored = safetensors.torch.load_file(out / "checkpoint" / "model.safetensors")
    assert all(torch.equal(calls[1][3][name], value) for name, value in stored.items())
    rows = read_metrics(out)
    assert [row["eval/success"] for row in rows if "eval/success" in row] == [0.5]
    assert [row["eval/final_success"] for row in rows if "eval/final_success" in row] == [0.5]
    assert json.loads((out / "evaluation.json").read_text())["success"] == [True, False]
    run(tiny_config(eval=plan), arm_dataset, out)
    assert len(calls) == 2  # a finished run is not evaluated again


def test_the_last_weights_may_be_the_best_and_the_final_evaluation_chooses_nothing(
    arm_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fake_evaluate(policy, task, *, episodes: int, seed: int) -> Evaluation:
        good = next(rates) if seed == 40 else 4
        return Evaluation(
            task=configs.to_json(task), seed=seed, success=[k < good for k in range(4)],
            progress=[1.0] * 4, steps=[3] * 4, decided=[True] * 4, seconds=0.1,
        )  # fmt: skip

    monkeypatch.setattr(bc, "evaluate", fake_evaluate)
    plan = EvalConfig(every=4, episodes=2, final_episodes=3, seed=40, keep_best=True)
    for name, good, best in (("falls", (3, 2), 4), ("rises", (2, 3), 8)):
        rates = iter(good)
        out = run(tiny_config(eval=plan), arm_dataset, tmp_path / name)
        kept = json.loads((out / "best" / "score.json").read_text())
        assert (kept["step"], kept["rate"]) == (best, 0.75)


def test_a_run_whose_weights_diverged_says_so_and_keeps_the_last_good_checkpoint(
    arm_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = Optimizer.step

    def diverging_step(self: Optimizer, loss: Any) -> dict[str, float]:
        values = step(self, loss)
        if self.count == 6:
            with torch.no_grad():
                self.adam.param_groups[0]["params"][0].fill_(torch.inf)
        return values

    monkeypatch.setattr(Optimizer, "step", diverging_step)
    with pytest.raises(ValueError, match="training diverged by update 6"):
        run(tiny_config(), arm_dataset, tmp_path / "run")
    assert checkpoint.load(tmp_path / "run")[1].step == 3
    monkeypatch.undo()
    run(tiny_config(), arm_dataset, tmp_path / "run")
    assert checkpoint.load(tmp_path / "run")[1].step == 8
