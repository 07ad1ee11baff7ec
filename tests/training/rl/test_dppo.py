"""DPPO: ratios that begin at 1, its loss by hand, and what it makes likelier."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.training.rl.runs import config, start
from training.algos.dppo import clipped
from training.core.optimizer import Optimizer, OptimizerConfig
from training.rl.config import OnlineRLConfig, RuntimeConfig
from training.rl.runners.frozen_vision import context_of
from vla import checkpoint
from vla.heads import flow_matching

LAST_LAYERS = ("backbone.pool", "head.denoiser")


def using(**settings) -> OnlineRLConfig:
    run = config("dppo")
    return replace(run, algo=replace(run.algo, **settings))


def test_the_clipped_loss_by_hand() -> None:
    change = torch.log(torch.tensor([[1.5, 1.0], [1.0, 0.5]]))
    advantage, bound = torch.tensor([2.0, -1.0]), torch.tensor([0.1, 0.2])
    # Gains: 2 * 0.9 at the noisier transition, 2 at the last; -0.9 and -1 for the other decision.
    # min(1.5, 1.1) * 1.8 = 1.98; 1 * 2; 1 * -0.9; min(0.5 * -1, 0.8 * -1) = -0.8.
    found = clipped(change, advantage, bound, torch.tensor([0.9, 1.0]))
    assert found.item() == pytest.approx(-(1.98 + 2.0 - 0.9 - 0.8) / 4)


@pytest.mark.parametrize("tuned", [0, 1, 3])
def test_the_ratio_is_1_at_the_first_update_and_one_tuned_step_gives_numbers(
    tuned, begun, tmp_path
) -> None:
    run = using(ft_denoising_steps=tuned, batch_episodes=2)
    learner = run.algo.start(run, start(begun, tmp_path))
    optimizer = Optimizer(OptimizerConfig(lr=1e-4, warmup_steps=0), learner.module, 4)
    generator = torch.Generator().manual_seed(0)
    figures = learner.update(learner.collect(), optimizer, generator)
    assert figures["ratio"] < 1e-5
    assert abs(figures["kl"]) < 1e-6
    assert all(np.isfinite(value) for value in figures.values() if value == value)
    # The latest practice again: the weights have changed, the ratio with them.
    assert learner.update(learner.collect(), optimizer, generator)["ratio"] > 1e-5
    assert len(learner.ft_steps) == (tuned or 6)


@pytest.mark.parametrize("tuned", [0, 2])
def test_the_ratio_is_1_where_the_head_follows_a_flow(tuned, begun, tmp_path) -> None:
    policy, origin = checkpoint.load(begun / "start")
    flows = replace(policy.config, head=flow_matching.Config(width=64, depth=1))
    policy = flows.build(policy.robot, policy.statistics, policy.text.tokenizer)
    before = start(begun, tmp_path)
    checkpoint.save(policy, origin, tmp_path / "flows", policy.state_dict())
    run = using(ft_denoising_steps=tuned, batch_episodes=2)
    learner = run.algo.start(run, replace(before, policy=tmp_path / "flows"))
    optimizer = Optimizer(OptimizerConfig(lr=1e-4, warmup_steps=0), learner.module, 4)
    generator = torch.Generator().manual_seed(0)
    assert learner.update(learner.collect(), optimizer, generator)["ratio"] < 1e-5
    assert learner.update(learner.collect(), optimizer, generator)["ratio"] > 1e-5


@pytest.mark.parametrize("tuned", [0, 2])
def test_frozen_vision_is_seen_once_and_does_not_change(tuned, begun, tmp_path) -> None:
    run, place = using(freeze_vision=True, ft_denoising_steps=tuned), start(begun, tmp_path)
    learner = run.algo.start(run, place)
    optimizer = Optimizer(OptimizerConfig(lr=1e-3, warmup_steps=0), learner.module, 4)
    generator = torch.Generator().manual_seed(0)
    figures = learner.update(learner.collect(), optimizer, generator)
    assert figures["ratio"] < 1e-4  # the standardised layer rounds otherwise
    data = learner.collect()
    assert isinstance(data.decisions, torch.Tensor)
    assert learner.update(data, optimizer, generator)["ratio"] > 1e-4
    learner.save(learner.module.state_dict(), 2, tmp_path / "saved", lambda folder: None)
    saved = checkpoint.load(tmp_path / "saved")[0].eval()
    before, _ = checkpoint.load(place.policy)
    changed = {
        name for name, weight in saved.state_dict().items()
        if name in (old := before.state_dict()) and not torch.equal(weight, old[name])
    }  # fmt: skip
    assert all(name.startswith("backbone.pool" if tuned else LAST_LAYERS) for name in changed)
    seen = learner.gather(learner.latest, [np.arange(len(e)) for e in learner.latest])
    everything = torch.cat([features[:-1] for features in learner.features])
    with torch.no_grad():
        torch.testing.assert_close(
            saved.contexts(seen).pooled, learner.policy.context_of(everything).pooled,
            rtol=1e-4, atol=1e-4,
        )  # fmt: skip


def test_a_time_limit_ends_an_episode_unless_it_is_bootstrapped(begun, tmp_path) -> None:
    run = using()
    learner = run.algo.start(run, start(begun, tmp_path))
    torch.nn.init.constant_(learner.module.value_net[-1].bias, 0.5)
    learner.collect()
    cut = [i for i, e in enumerate(learner.latest) if not e.terminated]
    reward = learner.runner.rewards[cut[0]].reward[-1]
    last = learner.targets[cut[0]]
    assert last.value[-1] == pytest.approx(reward, abs=1e-6)
    assert last.clock[0] == 0
    assert last.clock[-1] < 1
    learner.config = using(bootstrap_time_limits=True).algo
    goes_on = learner._compute_targets()[cut[0]]
    assert goes_on.value[-1] == pytest.approx(reward + 0.5 * run.gamma, abs=1e-5)


def test_what_turned_out_better_than_expected_becomes_likelier(begun, tmp_path) -> None:
    run = using(batch_episodes=2, bc_loss_coeff=0.0, vf_coef=0.0)
    learner = run.algo.start(run, start(begun, tmp_path))
    data = learner.collect()
    good = np.arange(len(data.rollouts.advantage)) % 2 == 0
    data = data._replace(
        rollouts=data.rollouts._replace(advantage=np.where(good, 1.0, -1.0).astype(np.float32))
    )
    optimizer = Optimizer(OptimizerConfig(lr=3e-5, warmup_steps=0), learner.module, 10)
    for _ in range(3):
        learner.update(data, optimizer, torch.Generator().manual_seed(0))
    with torch.no_grad():
        score = learner.log_probs(context_of(learner.policy, data.decisions), data.latents).numpy()
    change = score - data.rollouts.logprob
    assert change[good].mean() > change[~good].mean()


def test_clips_grow_and_advantages_fade_towards_the_noise(begun, tmp_path) -> None:
    run = using()
    learner = run.algo.start(run, start(begun, tmp_path))
    clips, fades = learner._clip_coefs(), learner._discounts()
    assert clips[0] == pytest.approx(0.001)
    assert clips[-1] == pytest.approx(0.01)
    assert (clips.diff() > 0).all()
    np.testing.assert_allclose(fades, 0.99 ** np.arange(5, -1, -1), rtol=1e-6)


def weights(policy) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in policy.state_dict().items()}


def test_what_is_not_tuned_stays_as_it_was_and_the_checkpoint_acts_the_same(
    begun, tmp_path
) -> None:
    run, place = using(ft_denoising_steps=2), start(begun, tmp_path)
    original, _ = checkpoint.load(place.policy)
    learner = run.algo.start(run, place)
    optimizer = Optimizer(OptimizerConfig(lr=1e-2, warmup_steps=0), learner.module, 4)
    generator = torch.Generator().manual_seed(0)
    for _ in range(2):
        learner.update(learner.collect(), optimizer, generator)
    begun_with, ended_with = weights(original), weights(learner.policy)
    for name, value in begun_with.items():
        assert torch.equal(ended_with[name], value), name
    learner.save(learner.module.state_dict(), 2, tmp_path / "saved", lambda folder: None)
    saved, _ = checkpoint.load(tmp_path / "saved")
    decisions = learner._decisions([0, 1])
    noise = torch.randn((len(decisions.loss_index), *saved.noise_shape), generator=generator)
    acted = []
    with torch.no_grad():
        for policy in (original, learner.policy, saved):
            context = policy.eval().contexts(decisions)
            acted.append(policy.head.sample(context, noise, False)[0])
    before, tuned, loaded = acted
    assert torch.equal(loaded, tuned)
    assert torch.equal(tuned[:, :5], before[:, :5])
    assert not torch.equal(tuned[:, 5], before[:, 5])


def test_a_policy_with_fine_tuned_steps_continues_with_the_same_steps_or_merged(
    begun, tmp_path
) -> None:
    place = start(begun, tmp_path)
    first = using(ft_denoising_steps=2)
    learner = first.algo.start(first, place)
    learner.save(learner.module.state_dict(), 2, tmp_path / "saved", lambda folder: None)
    split = replace(place, policy=tmp_path / "saved")
    assert len(first.algo.start(first, split).ft_steps) == 2
    whole = using(ft_denoising_steps=0)
    assert all(p.requires_grad for p in whole.algo.start(whole, split).policy.parameters())
    third = using(ft_denoising_steps=3)
    with pytest.raises(
        ValueError, match=r"ft_denoising_steps: got 3; of 6 denoising steps the last 2"
    ):
        third.algo.start(third, split)


def test_more_tuned_steps_than_there_are_is_refused(begun, tmp_path) -> None:
    run = using(ft_denoising_steps=9)
    with pytest.raises(
        ValueError, match="ft_denoising_steps: got 9, the policy denoises in 6 steps"
    ):
        run.algo.start(run, start(begun, tmp_path))


def test_rollouts_of_another_run_are_refused(begun, tmp_path) -> None:
    also = replace(start(begun, tmp_path), prior_runs=(tmp_path / "other",))
    with pytest.raises(ValueError, match="dppo: got prior_runs, .* leave --prior-runs out"):
        using().algo.start(using(), also)


def test_a_late_network_of_an_earlier_run_learns_behind_frozen_vision(begun, tmp_path) -> None:
    place, first = start(begun, tmp_path), using(ft_denoising_steps=2)
    learner = first.algo.start(first, place)
    learner.save(learner.module.state_dict(), 2, tmp_path / "saved", lambda folder: None)
    whole = using(freeze_vision=True)
    policy = whole.algo.start(whole, replace(place, policy=tmp_path / "saved")).policy
    assert all(p.requires_grad for p in policy.head.late.parameters())
    assert not any(p.requires_grad for p in policy.memory.parameters())


def test_images_of_the_first_and_the_latest_iteration_alone_are_kept(begun, tmp_path) -> None:
    run = replace(using(freeze_vision=True), n_iterations=3, steps=3)
    learner = run.algo.start(run, start(begun, tmp_path))
    for _ in range(3):
        learner.collect()
    assert [len(e.images) > 0 for e in learner.runner.episodes] == [True] * 2 + [False] * 2 + [
        True
    ] * 2
    again = run.algo.start(run, start(begun, tmp_path))
    again.restore(learner.state())
    assert [len(e.images) for e in again.runner.episodes] == [
        len(e.images) for e in learner.runner.episodes
    ]


def test_rollouts_of_older_weights_are_refused(begun, tmp_path) -> None:
    run = replace(using(), runtime=RuntimeConfig(distributed=True, max_policy_lag=1))
    with pytest.raises(
        ValueError, match="dppo: got runtime.max_policy_lag 1.* --runtime.max-policy-lag 0, or ogpo"
    ):
        run.algo.start(run, start(begun, tmp_path))
