"""The value function of chunks, the estimate of the state, and what they learn from."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from tests.training.rl.fake_rollouts import episode
from tests.training.small_policy import small_policy
from training.rl.experience.replay import replay
from training.rl.runners.actor_critic import adaptation
from training.rl.value.chunk_value import ACTION_SCALE, ChunkValue, ValueConfig, measured, relevant
from training.rl.value.standardized import StandardizedLinear
from training.rl.value.state_estimator import StateEstimator
from vla.contracts import registry

LENGTH, CHANNELS = 4, 2


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def value_function(state: str = "simulator", *, measures: bool = False) -> ChunkValue:
    config = ValueConfig(state=state, num_critics=3, hidden_dim=32, lr=3e-3)
    return ChunkValue(config, 5, [measures, False, False], LENGTH * CHANNELS, seed=0)


def test_values_learn_which_chunk_is_good_in_which_state() -> None:
    value, generator = value_function(), seeded()
    state, features = torch.randn(512, 3, generator=generator), torch.zeros(512, 5)
    chunk = torch.randn(512, LENGTH, CHANNELS, generator=generator)
    good = ((chunk[:, 0, 0] > 0) == (state[:, 1] > 0)).float()
    value.fit_states(features, state, torch.zeros(512))
    states = value.states(features, state, torch.zeros(512))
    for _ in range(200):
        value.update(states, chunk, good)
    low, mean = value.lower_bound(states, chunk)
    assert ((mean > 0.5) == good.bool()).float().mean() > 0.95
    assert (low <= mean).all()
    assert ((mean >= 0) & (mean <= 1)).all()


def test_of_a_task_with_goals_only_the_arm_and_the_goal_are_read() -> None:
    robot = registry.load("vla.robots", "so101").SPEC
    joint = f"qpos/{robot.names[0]}"
    names = (joint, "object/cube/x", "tool/x", "contact/cube", "goal/thing/x", "goal/lift")
    assert relevant(names, robot) == [0, 2, 4, 5]
    assert relevant(names[:4], robot) == [0, 1, 2, 3]
    config = ValueConfig(state="simulator", hidden_dim=32)
    value = ChunkValue(config, 5, measured(names, robot)[:2], 8, 0, columns=[0, 4])
    state = torch.arange(12.0).reshape(2, 6)
    value.fit_states(torch.zeros(2, 5), state, torch.zeros(2))
    seen = value.states(torch.zeros(2, 5), state, torch.zeros(2))
    other = state.index_add(1, torch.tensor([1, 2, 3, 5]), torch.ones(2, 4))
    assert torch.equal(value.states(torch.zeros(2, 5), other, torch.zeros(2)), seen)
    assert seen.shape == (2, 3)


@pytest.mark.parametrize("state", ["simulator", "estimated", "features"])
def test_only_the_named_source_reaches_the_value(state) -> None:
    value, generator = value_function(state), seeded()
    clock = torch.rand(20, generator=generator)
    features, simulator = (torch.randn(20, n, generator=generator) for n in (5, 3))
    value.fit_states(features, simulator, clock)
    seen = value.states(features, simulator, clock)
    other_simulator = value.states(features, simulator + 1, clock)
    other_features = value.states(features + 1, simulator, clock)
    later = value.states(features, simulator, clock + 1)
    assert torch.equal(seen, other_simulator) == (state != "simulator")
    assert torch.equal(seen, other_features) == (state == "simulator")
    assert not torch.equal(seen, later)


def test_what_the_arm_measures_is_not_estimated() -> None:
    value, features = value_function("estimated", measures=True), torch.randn(20, 5)
    simulator, clock = torch.randn(20, 3), torch.zeros(20)
    value.fit_states(features, simulator, clock)
    seen = value.states(features, simulator, clock)
    changed = value.states(features, simulator + torch.tensor([0.0, 9, 9]), clock)
    moved = value.states(features, simulator + torch.tensor([0.1, 0, 0]), clock)
    assert torch.equal(seen, changed)
    assert (moved[:, 0] > seen[:, 0]).all()
    names = (
        "qpos/elbow_flex",
        "qpos/cube/0",
        "qvel/gripper",
        "ctrl/gripper",
        "tool/x",
        "object/a/x",
    )
    told = measured(names, registry.load("vla.robots", "so101").SPEC)
    assert told == [True, False, True, True, True, False]


def test_the_target_is_the_least_of_two_networks_and_follows_slowly() -> None:
    value = value_function()
    states, chunk = torch.randn(9, 4), torch.randn(9, LENGTH, CHANNELS)
    each = torch.sigmoid(value.target(states, ACTION_SCALE * chunk))
    drawn = value.target_value(states, chunk, seeded(1))
    two = torch.randperm(3, generator=seeded(1))[:2]
    torch.testing.assert_close(drawn, each[two].min(0).values)
    before = [p.clone() for p in value.target.parameters()]
    value.update(states, chunk, torch.ones(9))
    for old, now, target in zip(
        before, value.q.parameters(), value.target.parameters(), strict=True
    ):
        torch.testing.assert_close(target, old + value.config.tau * (now - old))


def test_an_estimate_of_the_state_is_learned_and_tested_on_other_rows() -> None:
    generator = seeded()
    features = torch.randn(2000, 6, generator=generator)
    state = torch.stack([features[:, 0] * 0.05 + 0.2, (features[:, 1] > 0) * 3.0], 1)
    estimator, shuffled = StateEstimator(6, 2, seeded(1)), StateEstimator(6, 2, seeded(1))
    estimator.fit(features[:1800], state[:1800], 300, seeded(2))
    assert estimator.error(features[1800:], state[1800:]) < 0.35
    guess = estimator(features[1800:])
    assert (guess - state[1800:])[:, 0].abs().max() < 0.01  # a linear part of the features
    assert not any(p.requires_grad or p.grad is not None for p in estimator.parameters())
    order = torch.randperm(1800, generator=generator)
    shuffled.fit(features[:1800], state[order], 300, seeded(2))
    assert shuffled.error(features[1800:], state[1800:]) > 0.9


def test_a_standardized_layer_is_the_same_function_and_folds_back() -> None:
    plain = nn.Sequential(nn.Linear(5, 3), nn.ReLU(), nn.Linear(3, 2))
    trained = nn.Sequential(StandardizedLinear(plain[0]), nn.ReLU(), plain[2])
    inputs = torch.randn(50, 5) * torch.tensor([1.0, 10, 0.1, 1, 3]) + 4
    expected = plain(inputs).detach()
    trained[0].standardize(inputs)
    torch.testing.assert_close(trained(inputs), expected, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        trained[0].weight += 0.1
    folded = StandardizedLinear.fold(trained.state_dict())
    assert set(folded) == set(plain.state_dict())
    plain.load_state_dict(folded)
    torch.testing.assert_close(plain(inputs), trained(inputs), rtol=1e-4, atol=1e-4)


def test_running_out_of_time_ends_the_return_and_success_alone_pays() -> None:
    policy = small_policy()
    shape = (policy.n_action_steps, policy.head.actions)

    def made(decisions: int, *, success: bool, number: int):
        one = episode(decisions, success=success, number=number)
        return replace(
            one, features=np.full((decisions, 5), number, np.float32),
            simulator_state=np.zeros((decisions, 3), np.float32),
            actions=np.zeros((decisions, *shape), np.float32),
            latents=np.full((decisions, 2, *policy.noise_shape[1:]), 0.5, np.float32),
        )  # fmt: skip

    won, late = made(3, success=True, number=0), made(2, success=False, number=1)
    data = replay(policy, [won, late], [True, True], time_limit=10)
    # The second is taken for a success by the reward model, but only its time was up.
    assert data.reward.tolist() == [0, 0, 1, 0, 0]
    assert data.not_ended.tolist() == [1, 1, 0, 1, 0]
    assert data.next.tolist() == [1, 2, 2, 4, 4]
    torch.testing.assert_close(data.clock, torch.tensor([0, 0.2, 0.4, 0, 0.2]))
    assert data.episode.tolist() == [0, 0, 0, 1, 1]
    assert (data.chunk == 0.5).all()
    assert data.features[:, 0].tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize(("kl", "factor"), [(9.0, 1.5), (0.4, 1.0), (0.21, 1.0), (0.1, 1 / 1.5)])
def test_the_trust_region_weighs_more_after_a_large_step_and_less_after_a_small_one(
    kl, factor
) -> None:
    assert adaptation(kl, 0.3) == pytest.approx(factor)
