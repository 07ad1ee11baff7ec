"""DSRL: the policy stays as it was, the critics learn, the noise actor follows them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from tests.training.rl.runs import config, start
from tests.training.small_policy import small_policy
from training.core import loop
from training.core.config import EvalConfig
from training.core.optimizer import Optimizer, OptimizerConfig
from vla import checkpoint
from vla.contracts import config as configs
from vla.memory import none


def started(begun, tmp_path, **settings):
    run = config("dsrl")
    run = replace(run, algo=replace(run.algo, **settings))
    return run.algo.start(run, start(begun, tmp_path))


def test_the_policy_is_unchanged_and_one_checkpoint_holds_the_noise_actor(begun, tmp_path) -> None:
    learner = started(begun, tmp_path)
    original = checkpoint.load(begun / "start")[0].state_dict()
    optimizer = Optimizer(OptimizerConfig(lr=1e-2, warmup_steps=0), learner.module, 4)
    for _ in range(2):
        learner.update(learner.collect(), optimizer, torch.Generator().manual_seed(0))
    for name, value in original.items():
        assert torch.equal(learner.policy.state_dict()[name], value), name
    assert learner.noise_actor.actor[-1].weight.any()
    learner.save(learner.module.state_dict(), 2, tmp_path / "saved", lambda folder: None)
    saved, _ = checkpoint.load(tmp_path / "saved")
    with torch.no_grad():
        context = learner.policy.contexts(learner.boundaries(learner.runner.episodes[0]))
        noise = torch.randn((len(context.pooled), *saved.noise_shape))
        found = [p.denoise(context, noise, False)[0] for p in (learner.policy, saved)]
    assert torch.equal(*found)


def test_rollouts_use_the_learned_noise_actor(begun, tmp_path) -> None:
    learner = started(begun, tmp_path, best_of_n=1)
    with torch.no_grad():
        learner.noise_actor.actor[-1].bias[: learner.noise_actor.actor[-1].out_features // 2] = 2.0
    learner.collect()
    noise = np.concatenate([e.latents[:, 0] for e in learner.runner.episodes])
    # 1.5 tanh(2 + z): mostly near the bound.
    assert noise.mean() > 1.0
    assert noise.max() <= 1.5
    plain = started(begun, tmp_path / "plain", best_of_n=1)
    plain.collect()
    assert abs(np.concatenate([e.latents[:, 0] for e in plain.runner.episodes]).mean()) < 0.3


def test_the_target_is_the_reward_plus_the_value_under_the_noise_actor(
    begun, tmp_path, monkeypatch
) -> None:
    learner = started(begun, tmp_path, critic_batch_size=64, lcb_coef=0.5)
    learner.collect()
    told = learner.transitions
    going = (torch.arange(len(told.reward)) % 2).float()  # as if every other one were the last
    learner.transitions = told._replace(not_terminated=going)
    critics, targets = learner.module.value_net.chunks, []
    # A mean of 4 and a deviation of 2: what is to choose noise is told 4 - 0.5 * 2 = 3.
    monkeypatch.setattr(
        critics.slow, "forward", lambda f, c: torch.tensor([[2.0], [6.0]]).expand(2, len(f))
    )
    monkeypatch.setattr(critics, "update", lambda f, c, target: targets.append(target) or 0.0)
    rows = torch.arange(len(told.reward))
    learner._update_chunk_critics(rows, torch.Generator().manual_seed(0))
    torch.testing.assert_close(targets[0], told.reward + 0.98 * 4.0 * going)
    carried = []
    noises = learner.module.value_net.noises
    monkeypatch.setattr(noises, "update", lambda f, c, target: carried.append(target) or 0.0)
    learner._update_noise_critics(rows, torch.Generator().manual_seed(0))
    torch.testing.assert_close(carried[0], torch.full((len(rows),), 3.0))


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_noise_goes_where_values_are_high_unless_only_the_best_is_chosen(
    weight, begun, tmp_path, monkeypatch
) -> None:
    learner = started(begun, tmp_path, actor_loss_coef=weight)
    data = learner.collect()
    noises = learner.module.value_net.noises
    monkeypatch.setattr(
        noises, "forward", lambda f, noise: 5 * noise[:, :, 0].mean(1).expand(2, -1)
    )
    monkeypatch.setattr(noises, "update", lambda f, c, target: 0.0)
    optimizer = Optimizer(OptimizerConfig(lr=3e-3, warmup_steps=0), learner.module, 30)
    features, generator = learner.transitions.features, torch.Generator().manual_seed(0)

    def chosen():
        with torch.no_grad():
            return learner.noise_actor.gaussian(features)[0].mean((0, 1))

    before = chosen()
    for _ in range(10):
        learner.update(data[:1], optimizer, generator)
    moved = chosen() - before
    if weight:
        assert moved[0] > 0.1
        assert moved[0] > 2 * moved[1:].abs().max()
    else:
        assert not moved.any()


def test_a_policy_without_memory_gets_a_noise_actor_and_one_that_has_it_is_refused(
    begun, tmp_path
) -> None:
    policy, run = small_policy(none.Config()), config("dsrl")
    origin = checkpoint.provenance(configs.to_json(run.task), ("reach",), 0)
    checkpoint.save(policy, origin, tmp_path / "policy", policy.state_dict())
    place = replace(start(begun, tmp_path), policy=tmp_path / "policy")
    run = replace(
        run,
        n_iterations=1,
        episodes_per_iteration=1,
        eval=EvalConfig(every=0, final_episodes=1),
        steps=2,
    )
    (result,) = loop.run(run, place, tmp_path / "run", Console(quiet=True))
    assert len(result.success) == 1
    for algo in ("dsrl", "filtered_bc", "dppo"):
        again = config(algo)
        with pytest.raises(
            ValueError, match="run: got a policy with a noise actor, .* start from the policy that"
        ):
            again.algo.start(again, replace(place, policy=tmp_path / "run"))
