"""The composed policy: what it promises to simulator, training loop and robot alike."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from tests.fake_episodes import fake_robot
from tests.fakes import (
    PX,
    STATISTICS,
    TASKS,
    as_batch,
    fake_noise,
    fake_observation,
    fake_policy,
    fake_rollout,
    rows,
)
from vla.contracts import registry
from vla.contracts.protocols import Policy, TrainablePolicy
from vla.contracts.types import Observation, PolicyState
from vla.nn.text import train_tokenizer
from vla.policies import vla

MEMORIES = registry.names("vla.memory")


def configuration(memory: str = "bank") -> vla.Config:
    return vla.Config(
        chunk_size=4, n_action_steps=2, memory=registry.load("vla.memory", memory).Config()
    )


def policy(memory: str = "bank") -> vla.VLAPolicy:
    return fake_policy(configuration(memory))


def walk(actor: vla.VLAPolicy, observations: list[Observation], state: PolicyState):
    """Return every state along some observations, the given one first."""
    rng, states = np.random.default_rng(9), [state]
    for obs in observations:
        _, state = actor.act(obs, state, fake_noise(rng, actor, len(obs.task)))
        states.append(state)
    return states


def assert_states_equal(a: PolicyState, b: PolicyState) -> None:
    assert a.tensors.keys() == b.tensors.keys()
    assert all(torch.equal(a[name], b[name]) for name in a.tensors)


@pytest.mark.parametrize("memory", MEMORIES)
def test_it_satisfies_the_protocols(memory: str) -> None:
    actor = policy(memory)
    assert isinstance(actor, Policy)
    assert isinstance(actor, TrainablePolicy)


def test_an_action_is_a_function_of_its_arguments_and_follows_the_noise() -> None:
    rng = np.random.default_rng(0)
    actor = policy()
    obs, noise = fake_observation(rng, 3), fake_noise(rng, actor, 3)
    first, state = actor.act(obs, actor.initial_state(3), noise)
    second, again = actor.act(obs, actor.initial_state(3), noise)
    assert torch.equal(first.values, second.values)
    assert_states_equal(state, again)
    other, same = actor.act(obs, actor.initial_state(3), fake_noise(rng, actor, 3))
    assert not torch.equal(first.values, other.values)
    assert_states_equal(state, same)  # what is remembered does not depend on noise


def test_chunks_have_the_robots_shape_lie_within_its_limits_and_start_now() -> None:
    rng = np.random.default_rng(1)
    channel = fake_robot().channels[0]
    narrow = replace(channel, low=-0.1, high=0.05)
    robot = replace(fake_robot(PX), channels=(narrow, fake_robot().channels[1]))
    actor = fake_policy(configuration(), robot)
    obs = fake_observation(rng, 8, 0.8)
    chunk, _ = actor.act(obs, actor.initial_state(8), 5 * fake_noise(rng, actor, 8))
    assert chunk.values.shape == (8, actor.config.chunk_size, 2)
    assert chunk.values[..., 0].min() == np.float32(-0.1)
    assert chunk.values[..., 0].max() == np.float32(0.05)
    assert chunk.start_s.tolist() == [0.8] * 8


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_row_is_decided_alike_alone_and_in_any_company(memory: str) -> None:
    rng = np.random.default_rng(2)
    actor = policy(memory)
    observations = list(fake_rollout(rng, 4, 5))
    states = walk(actor, observations, actor.initial_state(4))
    # Row 2 alone, and rows 2 and 0 of a batch whose rows are at different times.
    alone = walk(actor, [rows(o, [2]) for o in observations], actor.initial_state(1))
    for name, value in alone[-1].tensors.items():
        torch.testing.assert_close(value, states[-1].rows([2])[name], atol=1e-5, rtol=1e-5)
    mixed = fake_observation(rng, 2, [4.0, 0.0])
    parts = [alone[-1], actor.initial_state(1)]
    state = PolicyState.concatenate(parts, torch.cat)
    noise = fake_noise(rng, actor, 2)
    both, _ = actor.act(mixed, state, noise)
    for i, part in enumerate(parts):
        one, _ = actor.act(rows(mixed, [i]), part, noise[i : i + 1])
        torch.testing.assert_close(one.values[0], both.values[i], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("garbage", [7.0, float("nan"), float("inf")])
@pytest.mark.parametrize("memory", MEMORIES)
def test_the_first_observation_of_an_episode_forgets_whatever_is_handed_in(memory, garbage) -> None:
    rng = np.random.default_rng(3)
    actor = policy(memory)
    obs, noise = fake_observation(rng, 2, [0.0, 0.0]), fake_noise(rng, actor, 2)
    empty = actor.initial_state(2)
    dirty = empty.map(lambda value: torch.full_like(value, garbage))
    clean_chunk, clean_state = actor.act(obs, empty, noise)
    chunk, state = actor.act(obs, dirty, noise)
    assert torch.equal(chunk.values, clean_chunk.values)
    assert_states_equal(state, clean_state)


def test_only_the_rows_that_start_forget() -> None:
    rng = np.random.default_rng(4)
    actor = policy()
    state = walk(actor, list(fake_rollout(rng, 2, 4)), actor.initial_state(2))[-1]
    assert state["slot_count"].sum(1).tolist() == [4.0, 4.0]
    obs = fake_observation(rng, 2, [3.2, 0.0])
    _, state = actor.act(obs, state, fake_noise(rng, actor, 2))
    assert state["slot_count"].sum(1).tolist() == [5.0, 1.0]
    assert state["slot_time"][:, -1].tolist() == [32.0, 0.0]  # control steps, at 10 Hz


@pytest.mark.parametrize("memory", MEMORIES)
def test_training_on_whole_episodes_sees_what_the_rollout_sees(memory: str) -> None:
    rng = np.random.default_rng(5)
    actor = policy(memory)
    observations, lengths = list(fake_rollout(rng, 2, 24)), [24, 13]
    frames = [(b, t) for b, n in enumerate(lengths) for t in range(n)]
    batch = as_batch(observations, lengths, list(range(len(frames))), 4, rng)
    with torch.no_grad():
        trained = actor.contexts(batch)
        state, seen = actor.initial_state(2), []
        for obs in observations:
            context, state = actor._perceive(obs, state)
            seen.append(context)
    for i, (b, t) in enumerate(frames):
        for got, expected in zip(trained, seen[t], strict=True):
            torch.testing.assert_close(got[i], expected[b], atol=1e-4, rtol=1e-4)


def test_the_path_that_was_sampled_has_a_ratio_of_one() -> None:
    rng = np.random.default_rng(6)
    actor = policy()
    obs, state = fake_observation(rng, 3), actor.initial_state(3)
    chunk, trace, after = actor.sample(obs, state, fake_noise(rng, actor, 3))
    ratio = (actor.log_prob(obs, state, trace) - trace.log_prob).exp()
    assert torch.equal(ratio, torch.ones_like(ratio))
    low, high = (torch.tensor(x) for x in (actor.robot.low, actor.robot.high))
    physical = actor.normalizer.action_inverse(trace.latents[:, -1])
    torch.testing.assert_close(chunk.values, torch.minimum(torch.maximum(physical, low), high))
    assert after["slot_count"].sum(1).tolist() == [1.0] * 3


def test_the_state_of_a_policy_with_another_memory_is_refused_by_name() -> None:
    rng = np.random.default_rng(14)
    actor, other = policy("bank"), policy("gru")
    obs, noise = fake_observation(rng, 1), fake_noise(rng, actor, 1)
    with pytest.raises(KeyError, match="got hidden, expected a tensor 'slot_tokens'; pass"):
        actor.act(obs, other.initial_state(1), noise)


def test_numpy_and_torch_arguments_give_the_same() -> None:
    rng = np.random.default_rng(7)
    actor = policy()
    obs, noise = fake_observation(rng, 2), fake_noise(rng, actor, 2)
    arrays = ("images", "image_ok", "proprio", "time_s")
    tensors = replace(obs, **{n: torch.from_numpy(getattr(obs, n)) for n in arrays})
    state = actor.initial_state(2)
    numpy_state = state.map(torch.Tensor.numpy)
    a, _ = actor.act(obs, numpy_state, noise)
    b, _ = actor.act(tensors, state, torch.from_numpy(noise))
    assert torch.equal(a.values, b.values)


def test_history_changes_the_decision_of_a_policy_that_remembers_and_of_no_other() -> None:
    rng = np.random.default_rng(8)
    now, histories = fake_observation(rng, 2, 8.0), [list(fake_rollout(rng, 2, 9)) for _ in "ab"]
    for memory in MEMORIES:
        actor = policy(memory)
        noise = fake_noise(rng, actor, 2)
        chunks = []
        for history in histories:
            state = walk(actor, history, actor.initial_state(2))[-1]
            chunks.append(actor.act(now, state, noise)[0].values)
        assert torch.equal(*chunks) is not actor.remembers


def test_the_instruction_and_the_chosen_cameras_are_used() -> None:
    rng = np.random.default_rng(10)
    wrist = replace(configuration(), cameras=("wrist",))
    actor = fake_policy(wrist)
    obs, noise = fake_observation(rng, 2), fake_noise(rng, actor, 2)

    def act(changed: Observation) -> torch.Tensor:
        return actor.act(changed, actor.initial_state(2), noise)[0].values

    images = obs.images.copy()
    images[:, 0] = 0  # the front camera, which it does not look through
    assert torch.equal(act(obs), act(replace(obs, images=images)))
    images[:, 1] = 0
    assert not torch.equal(act(obs), act(replace(obs, images=images)))
    assert not torch.equal(act(obs), act(replace(obs, task=TASKS[::-1])))


def test_images_of_another_size_are_resized() -> None:
    rng = np.random.default_rng(11)
    actor = policy()
    obs = fake_observation(rng, 1)
    plain = np.empty_like(obs.images)
    plain[:, 0], plain[:, 1] = (200, 30, 90), (10, 250, 60)  # one colour stays it at every size
    small, large = (replace(obs, images=plain.repeat(n, 2).repeat(n, 3)) for n in (1, 3))
    noise, state = fake_noise(rng, actor, 1), actor.initial_state(1)
    a, b = (actor.act(o, state, noise)[0].values for o in (small, large))
    torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3)


def test_channels_first_images_are_caught() -> None:
    obs = fake_observation(np.random.default_rng(12), 2)
    with pytest.raises(TypeCheckError, match="images"):
        replace(obs, images=obs.images.transpose(0, 1, 4, 2, 3))


def test_the_cloning_loss_learns_a_batch_and_ignores_what_has_no_weight() -> None:
    rng = np.random.default_rng(13)
    actor = policy()
    batch = as_batch(list(fake_rollout(rng, 3, 6)), [6, 4, 3], [2, 5, 8, 12], 4, rng)
    generator = torch.Generator().manual_seed(0)
    doubled = replace(batch, weight=torch.tensor([1.0, 1.0, 0.0, 0.0]))
    spoiled = replace(doubled, actions=batch.actions.clone())
    spoiled.actions[2:] = 1e3
    with torch.no_grad():
        a, b = (actor.bc_loss(x, generator.manual_seed(0))[0] for x in (doubled, spoiled))
    assert a == b
    actor.train()
    adam = torch.optim.Adam(actor.parameters(), lr=3e-3)
    losses = []
    for _ in range(40):
        loss, parts = actor.bc_loss(batch, generator)
        assert parts["loss"] == loss
        losses.append(loss.item())
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert np.mean(losses[-5:]) < 0.5 * np.mean(losses[:3])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cameras": ("front", "side")}, r"policy.cameras: fake has cameras .*'wrist'.*'side'"),
        ({"cameras": ()}, "policy.cameras"),
        ({"n_action_steps": 5}, "policy.n_action_steps: got 5, expected 1 to chunk_size = 4"),
        ({"n_action_steps": 0}, "policy.n_action_steps"),
    ],
)
def test_settings_that_do_not_fit_are_refused(changes, message: str) -> None:
    config = replace(configuration(), **changes)
    with pytest.raises(ValueError, match=message):
        config.build(fake_robot(PX), STATISTICS, train_tokenizer(TASKS))


@pytest.mark.parametrize("method", ["act", "sample"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_what_the_memory_would_never_forget_is_refused(method: str, value: float) -> None:
    actor, rng = policy(), np.random.default_rng(0)
    obs, noise = fake_observation(rng, 2), fake_noise(rng, actor, 2)
    obs.proprio[1, 0] = value
    with pytest.raises(ValueError, match="proprio: is not finite; hold the arm, and observe again"):
        getattr(actor, method)(obs, actor.initial_state(2), noise)
