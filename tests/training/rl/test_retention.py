"""What is to be kept: the policy stays near the start policy at decisions of recorded episodes."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from sim.tasks import pick_place
from tests.training.rl.conftest import TASK
from tests.training.rl.runs import config, start
from tests.training.tiny_run import tiny_config
from training.core import loop
from training.core.optimizer import Optimizer, OptimizerConfig
from training.data import demos
from training.rl.rollout.explorer import one_step
from training.rl.runners.retention import Retention, RetentionConfig
from vla import checkpoint
from vla.backbones import tiny
from vla.data.reader import open_dataset
from vla.memory import none
from vla.policies import vla


def run(begun, algo: str = "asymmetric_ac", **retention):
    base = config(algo)
    folder = str(begun / "demos")
    kept = RetentionConfig(datasets=(folder,), batch_size=32, **retention)
    return replace(base, algo=replace(base.algo, retention=kept))


def error(begun, out, algo: str, kl_coef: float) -> tuple[float, dict[str, float]]:
    """Return how far from what the start policy does, in all its denoising steps, 40 updates leave
    the policy where it is to be kept, and the last metrics.
    """
    train = run(begun, algo, kl_coef=kl_coef)
    learner = train.algo.start(train, start(begun, out))
    optimizer = Optimizer(OptimizerConfig(lr=1e-3, warmup_steps=0), learner.module, 40)
    generator = torch.Generator().manual_seed(0)
    data = learner.collect()
    (features,) = learner.retention.features
    noise = torch.randn((len(features), *learner.policy.noise_shape[1:]), generator=generator)
    begun_policy = checkpoint.load_vla(begun / "start", "this")[0].eval()
    assert begun_policy.head.config.num_inference_steps > 1
    context = begun_policy.context_of(features)
    wanted = begun_policy.head.sample(context, noise[:, None], False)[0][:, -1, :4].detach()
    for _ in range(40):
        # A constant pull away, stronger than anything that so few rollouts teach.
        learner.value.q.w4.data.add_(torch.randn(learner.value.q.w4.shape, generator=generator))
        metrics = learner.update(data, optimizer, generator)
    after = one_step(learner.policy, features, noise)[:, :4].detach()
    return float((after - wanted).square().mean()), metrics


@pytest.mark.parametrize(("algo", "bound"), [("asymmetric_ac", 0.7), ("residual_ac", 0.95)])
def test_it_holds_the_policy(begun, tmp_path, algo, bound) -> None:
    """A residual, which is bounded, can follow a policy of two updates less well."""
    free, _ = error(begun, tmp_path / "free", algo, 0.0)
    held, metrics = error(begun, tmp_path / "held", algo, 100.0)
    assert held < bound * free
    assert np.isfinite(metrics["ref_kl"])


def test_every_data_set_has_the_same_weight(begun, tmp_path) -> None:
    other = tmp_path / "other"
    demos.record_demos(demos.DemosConfig(out=other, task=pick_place.Config(), episodes=1))
    policy = checkpoint.load_vla(begun / "start", "this")[0].eval()
    kept = RetentionConfig(datasets=(str(begun / "demos"), str(other)), batch_size=400)
    retention = Retention(kept, policy, 0)
    retention.encode()
    first, second = retention.features
    assert len(first) != len(second)
    drawn = retention.sample(torch.Generator().manual_seed(0))
    assert drawn.shape == (400, first.shape[1])
    of_first = sum(bool((row == first).all(1).any()) for row in drawn)
    assert 150 < of_first < 250


def test_it_takes_no_more_episodes_than_it_is_told(begun) -> None:
    policy = checkpoint.load_vla(begun / "start", "this")[0].eval()
    folder = (str(begun / "demos"),)
    one, all_ = (Retention(RetentionConfig(datasets=folder, episodes=n), policy, 0) for n in (1, 9))
    for retention in (one, all_):
        retention.encode()
    assert 0 < len(one.features[0]) < len(all_.features[0])


def test_without_a_memory_any_frame_may_be_a_decision(begun, tmp_path) -> None:
    small = vla.Config(chunk_size=4, n_action_steps=4, backbone=tiny.Config(), memory=none.Config())
    clone = tiny_config(task=TASK, policy=small, steps=1)
    clone = replace(clone, algo=replace(clone.algo, sampling="frame", short_decisions=0))
    loop.run(clone, begun / "demos", tmp_path / "start", Console(quiet=True))
    policy = checkpoint.load_vla(tmp_path / "start", "this")[0].eval()
    kept = RetentionConfig(datasets=(str(begun / "demos"),))
    retention = Retention(kept, policy, 0)
    retention.encode()
    (features,) = retention.features
    frames = open_dataset(begun / "demos").num_frames
    assert len(features) == round(frames / 4)


def test_a_missing_data_set_is_named(begun, tmp_path) -> None:
    base = config("asymmetric_ac")
    kept = RetentionConfig(datasets=(str(tmp_path / "nothing"),))
    train = replace(base, algo=replace(base.algo, retention=kept))
    with pytest.raises(ValueError, match="nothing"):
        train.algo.start(train, start(begun, tmp_path))
