"""A student does in one step what its teacher does in several, and changes nothing but its head."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from tests.fakes import fake_noise
from tests.training.tiny_run import run as train
from tests.training.tiny_run import tiny_config
from training.algos import distill
from training.core import loop
from training.core.config import DistillConfig, EvalConfig, Teacher
from training.core.metrics import read_metrics
from training.core.optimizer import Optimizer, OptimizerConfig
from vla import checkpoint
from vla.contracts.config import PluginConfig
from vla.heads import diffusion, flow_matching
from vla.memory import bank, gru, none
from vla.nn.context import Context

KINDS: dict[str, tuple[PluginConfig, dict[str, Any]]] = {
    "remembers": (bank.Config(slots=7), {}),
    "remembers otherwise": (gru.Config(hidden_size=16), {}),
    "alone, with a prefix": (none.Config(), {"max_prefix_len": 2}),
    "says the noise": (none.Config(), {"prediction_type": "epsilon"}),
    "follows a flow": (none.Config(), {"kind": flow_matching}),
}


def teacher(data: Path, out: Path, memory: PluginConfig, head: dict[str, Any]) -> Path:
    """Return a run of a few updates, whose chunks still depend much on their noise."""
    kind = head.get("kind", diffusion)
    settings = {k: v for k, v in head.items() if k != "kind"}
    policy = replace(
        tiny_config().policy, memory=memory, head=kind.Config(width=64, depth=1, **settings)
    )
    return train(tiny_config(policy=policy), data, out)


def plan(**changes: Any) -> DistillConfig:
    return replace(
        DistillConfig(
            algo=distill.Config(batch_size=16, teacher_steps=4), steps=120, threads=1, log_every=1,
            optimizer=OptimizerConfig(lr=3e-3, warmup_steps=5),
            eval=EvalConfig(every=0, final_episodes=0),
        ),
        **changes,
    )  # fmt: skip


def distilled(policy: Path, data: Path, out: Path, **changes: Any) -> Path:
    loop.run(plan(**changes), Teacher(policy, data), out, Console(quiet=True))
    return out


@pytest.mark.parametrize("kind", KINDS)
def test_a_student_comes_near_its_teacher_and_changes_nothing_but_its_head(
    kind, arm_dataset, tmp_path
):
    before = teacher(arm_dataset, tmp_path / "teacher", *KINDS[kind])
    out = distilled(before, arm_dataset, tmp_path / "student")
    losses = [row["loss"] for row in read_metrics(out)]
    assert np.mean(losses[-10:]) < 0.3 * np.mean(losses[:3])
    (first, _), (second, told) = checkpoint.load(before), checkpoint.load(out)
    assert second.noise_shape == (2, *first.noise_shape[1:])
    assert second.max_prefix_len == first.max_prefix_len
    assert told.step == 120
    weights = first.state_dict()
    for name, value in second.state_dict().items():
        same = torch.equal(weights[name], value)
        assert same or name.startswith("head."), name
    assert not torch.equal(weights["head.denoiser.enter.weight"], second.head.denoiser.enter.weight)


def test_its_one_step_ends_where_noise_does(arm_dataset, tmp_path):
    policy, _ = checkpoint.load(teacher(arm_dataset, tmp_path / "t", *KINDS["remembers"]))
    one = distill.student(policy)
    noise = torch.from_numpy(fake_noise(np.random.default_rng(0), one, 3))
    context = Context(*(torch.zeros(3, 1) for _ in Context._fields))  # nothing asks for it
    one.head.denoiser.forward = lambda latent, t, context, known: 0.5 * torch.ones_like(latent)
    found = one.head.sample(context, noise, False)[0][:, -1]
    assert torch.equal(found, 0.5 * torch.ones_like(found))


def test_a_run_that_was_stopped_goes_on_to_the_same_weights(arm_dataset, tmp_path, monkeypatch):
    before = teacher(arm_dataset, tmp_path / "teacher", *KINDS["remembers"])
    short = {"steps": 8, "save_every": 3}
    whole = distilled(before, arm_dataset, tmp_path / "whole", **short)
    step = Optimizer.step

    def dies(self, loss):
        if self.count == 5:
            raise RuntimeError("dies")
        return step(self, loss)

    monkeypatch.setattr(Optimizer, "step", dies)
    with pytest.raises(RuntimeError, match="dies"):
        distilled(before, arm_dataset, tmp_path / "parts", **short)
    monkeypatch.setattr(Optimizer, "step", step)
    parts = distilled(before, arm_dataset, tmp_path / "parts", **short)
    ours, theirs = (checkpoint.load(out)[0].state_dict() for out in (whole, parts))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
