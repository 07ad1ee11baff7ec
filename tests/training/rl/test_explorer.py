"""Exploration: smooth noise around the policy's chunk, and the best of several by value."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sim import vec_env
from sim.tasks import reach
from tests.training.rl.rollouts import collect_rollouts
from tests.training.small_policy import SLOTS, TASK, small_policy
from training.rl.rollout.explorer import (
    ExplorationConfig,
    Explorer,
    SmoothNoise,
    one_step,
    one_step_policy,
)
from training.rl.rollout.synthetic_frames import synthetic_frames
from training.rl.value.chunk_value import ChunkValue, ValueConfig
from vla.contracts import config as configs
from vla.memory import bank
from vla.runtime.noise import episode_noise

LIMIT = 100
REACH = reach.Config()


def explorer(memory=None, *, value=None, **settings) -> Explorer:
    policy = small_policy(memory) if memory else small_policy()
    return Explorer(
        policy.with_steps(1).eval(), ExplorationConfig(**settings), value, LIMIT,
        needs_simulator=value is None or value.config.needs_simulator,
    )  # fmt: skip


def observations(rows: int):
    env = vec_env.make(configs.type_name(TASK), rows, task_config=TASK)
    obs = env.reset(3)
    env.close()
    return obs


def test_noise_has_the_given_deviation_at_every_frequency() -> None:
    smooth = SmoothNoise(ExplorationConfig(noise_std=(0.3, 0.1)), 4)
    torch.testing.assert_close(smooth.basis @ smooth.basis.T, torch.eye(4))
    drawn = smooth(torch.randn(20_000, 4, 2, generator=torch.Generator().manual_seed(0)))
    found = (smooth.basis @ drawn).std((0, 2))
    torch.testing.assert_close(found, torch.tensor([0.3, 0.1, 0.1, 0.1]), rtol=0.03, atol=0)


def test_kl_of_a_constant_shift_is_that_of_its_lowest_frequency() -> None:
    smooth = SmoothNoise(ExplorationConfig(noise_std=(0.2, 0.05)), 4)
    # A shift of 0.1 of 4 steps has the length 0.2 along the lowest frequency: one deviation.
    kl = smooth.kl(torch.full((3, 4, 1), 0.1), torch.zeros(3, 4, 1))
    torch.testing.assert_close(kl, torch.full((3,), 0.5))


def test_a_head_that_predicts_noise_is_refused() -> None:
    policy = small_policy()
    policy.head.config = replace(policy.head.config, prediction_type="epsilon")
    with pytest.raises(ValueError, match="got a head with prediction_type epsilon"):
        one_step_policy(policy)


@pytest.mark.parametrize("memory", [None, bank.Config(slots=SLOTS)])
def test_without_noise_it_does_what_the_policy_does(memory) -> None:
    acts, obs = explorer(memory), observations(11)
    noise = episode_noise(5, np.arange(11), np.zeros(11, int), acts.noise_shape)
    noise[:, 1:] = 0
    chunk, chain, after = acts.sample(obs, acts.initial_state(11), noise)
    start = torch.from_numpy(noise[:, :2])
    expected, state = acts.policy.act(obs, acts.initial_state(11), start)
    torch.testing.assert_close(chunk.values, expected.values, rtol=0, atol=1e-5)
    for name, value in state.tensors.items():
        torch.testing.assert_close(after[name], value, rtol=0, atol=1e-5)
    assert chain.features is not None
    again = one_step(acts.policy, chain.features, start[:, 0])
    torch.testing.assert_close(again, chain.latents[:, -1], rtol=0, atol=1e-6)


def test_the_simulators_state_changes_nothing_that_the_policy_does() -> None:
    acts, obs = explorer(), observations(2)
    noise = episode_noise(5, np.arange(2), np.zeros(2, int), acts.noise_shape)
    a, b = (
        acts.sample(obs, acts.initial_state(2), noise, simulator)[0].values
        for simulator in (np.zeros((2, 7), np.float32), np.full((2, 7), 1e3, np.float32))
    )
    assert torch.equal(a, b)


class Prefers(ChunkValue):
    """A value function that likes small first actions."""

    def lower_bound(self, states, chunk):
        value = -chunk[:, 0].square().sum(1)
        return value, value


def test_the_best_candidate_is_executed_once_the_value_function_has_learned() -> None:
    policy = small_policy()
    size = policy.n_action_steps
    features = policy.backbone.pool[0].in_features
    value = Prefers(ValueConfig(num_critics=2, hidden_dim=4), features, [False], size * 6, seed=0)
    acts = explorer(value=value, best_of_n_fraction=1.0, num_candidates=6)
    obs = observations(3)
    noise = episode_noise(5, np.arange(3), np.zeros(3, int), acts.noise_shape)

    def first() -> torch.Tensor:
        _, chain, _ = acts.sample(obs, acts.initial_state(3), noise)
        return chain.latents[:, -1, 0].square().sum(1)

    before = first()
    acts.ready.fill_(True)
    mean = one_step(acts.policy, acts.policy.features(obs, acts.initial_state(3))[0],
                    torch.from_numpy(noise[:, 0]))  # fmt: skip
    shifted = mean[:, None, :size] + acts.smooth(torch.from_numpy(noise[:, 2:-1, :size]))
    best = torch.cat([mean[:, None, :size], shifted], 1)[:, :, 0].square().sum(2).min(1).values
    torch.testing.assert_close(first(), best)
    assert (first() <= before).all()
    assert (first() < before).any()


@pytest.mark.parametrize("settings", [{"noise_std": ()}, {"best_of_n_fraction": 1.5}])
def test_settings_out_of_range_are_refused(settings) -> None:
    with pytest.raises(ValueError, match="exploration: got noise_std"):
        ExplorationConfig(**settings)


@pytest.fixture(scope="module")
def rollouts():
    return collect_rollouts(explorer(), REACH, episodes=2, seed=5, version=0, num_envs=2)


def test_rollouts_keep_decisions_with_features_and_the_simulators_state(rollouts) -> None:
    env = vec_env.make("reach", 1, task_config=REACH)
    simulator = vec_env.with_privileged_state(env)
    env.begin(np.zeros(1, int), np.full(1, 5), np.zeros(1, int))
    state = simulator.privileged_state()
    env.close()
    for e in rollouts:
        assert len(e.images) == len(e) + 1  # no frames between decisions
        assert len(e.features) == len(e.simulator_state) == len(e)
    np.testing.assert_array_equal(rollouts[0].simulator_state[0], state[0])


def test_a_value_of_features_needs_no_simulator() -> None:
    policy = small_policy()
    features, actions = policy.backbone.pool[0].in_features, policy.n_action_steps * 6
    config = ValueConfig(state="features", num_critics=2, hidden_dim=4)
    acts = explorer(value=ChunkValue(config, features, [False], actions, seed=0))
    acts.ready.fill_(True)
    (episode,) = collect_rollouts(acts, REACH, episodes=1, seed=5, version=0)
    assert episode.simulator_state.size == 0
    assert len(episode.features) == len(episode)


def test_synthetic_frames_show_new_layouts_with_their_labels(rollouts) -> None:
    def made(seed: int):
        env = vec_env.make("reach", 2, task_config=REACH)
        frames = synthetic_frames(env, rollouts, 3, seed)
        names = vec_env.with_privileged_state(env).privileged_state_names
        env.close()
        return frames, [i for i, name in enumerate(names) if name.startswith("object/")]

    frames, labels = made(9)
    again, _ = made(9)
    other, _ = made(10)
    assert len(frames.images) == len(frames.task) == len(frames.state) == 3
    for name in ("images", "proprio", "state"):
        np.testing.assert_array_equal(getattr(frames, name), getattr(again, name))
    assert not np.array_equal(frames.state, other.state)
    # Every frame has a layout of its own.
    assert len(np.unique(frames.state[:, labels].round(4), axis=0)) == 3
    names = frames.state[:, : frames.proprio.shape[1]]
    np.testing.assert_allclose(names, frames.proprio, atol=1e-6)
