"""Rollouts: whole episodes that do not depend on the number of environments, and replay exactly."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from sim.tasks import named_once
from tests.training.rl.fake_rollouts import Says, control, episode
from tests.training.rl.rollouts import collect_rollouts
from tests.training.small_policy import SLOTS, TASK, small_policy
from training.rl.experience.episode import ActionSource, frames, gather, join, windows
from training.rl.intervention.intervention import EpisodeControlConfig, InterventionController
from vla.memory import bank, gru, none


@pytest.fixture(scope="module")
def episodes():
    return collect_rollouts(small_policy(), TASK, episodes=3, seed=5, version=2, num_envs=3)


MEMORIES = [bank.Config(slots=SLOTS), gru.Config(hidden_size=16)]
"""Memories whose states have other shapes."""


def test_episodes_are_whole_and_in_order_of_their_numbers(episodes) -> None:
    assert [e.number for e in episodes] == [0, 1, 2]
    for e in episodes:
        decisions = len(e)
        assert len(e.images) == len(e.proprio) == len(e.time_s) == len(e.progress) == decisions + 1
        assert e.time_s[0] == 0
        assert (np.diff(e.time_s) > 0).all()
        assert e.step[0] == 0
        assert e.steps == round(e.time_s[-1] * 10)
        assert e.version == 2
        assert e.seed == 5
        assert e.task


@pytest.mark.parametrize("memory", MEMORIES)
def test_how_many_run_side_by_side_changes_nothing(memory) -> None:
    together, alone = (
        collect_rollouts(small_policy(memory), TASK, episodes=3, seed=5, version=2, num_envs=count)
        for count in (2, 1)
    )
    for a, b in zip(together, alone, strict=True):
        assert np.array_equal(a.executed, b.executed)
        assert np.array_equal(a.images[0], b.images[0])
        np.testing.assert_allclose(a.latents, b.latents, atol=1e-4)


def test_an_episode_that_is_given_up_is_cut_as_by_a_time_limit(episodes) -> None:
    hopeless = InterventionController(
        control(early_termination={"patience": 2}),
        seed=5,
        remaining=1.0,
        scorer=Says(*[0.0] * 9),
        views=(0,),
    )
    found = collect_rollouts(
        small_policy(), TASK, episodes=3, seed=5, version=2, num_envs=2, controller=hopeless
    )
    assert [e.number for e in found] == [0, 1, 2]
    for cut, whole in zip(found, episodes, strict=True):
        assert len(cut) == min(2, len(whole))
        assert not (cut.terminated or cut.success) or len(whole) <= 2
        assert np.array_equal(cut.images[0], whole.images[0])
        assert np.array_equal(cut.step, whole.step[: len(cut.step)])
        assert not cut.bc_indices(cut.success).size or cut.success


@pytest.mark.parametrize("memory", MEMORIES)
def test_a_replayed_episode_has_the_log_probabilities_it_was_collected_with(memory) -> None:
    policy = small_policy(memory)
    episodes = collect_rollouts(policy, TASK, episodes=2, seed=5, version=2, num_envs=2)
    batch = gather(episodes, [np.arange(len(e)) for e in episodes], 16, policy.views)
    latents = torch.from_numpy(np.concatenate([e.latents for e in episodes]))
    with torch.no_grad():
        found = policy.head.log_prob(policy.contexts(batch), latents).numpy()
    told = np.concatenate([e.log_prob for e in episodes])
    size = latents[0, 0].numel()
    # Per number of the chunk: a ratio of such probabilities is 1 to this precision.
    np.testing.assert_allclose(found / size, told / size, atol=1e-5)


def test_targets_are_what_was_executed_and_the_last_is_repeated_beyond_the_end(episodes) -> None:
    e = episodes[0]
    done = np.concatenate([a[:n] for a, n in zip(e.actions, e.executed, strict=True)])
    last = len(e) - 1
    values, pad = e.targets(np.array([0, last]), 16)
    assert np.array_equal(values[0], done[:16])
    assert not pad[0].any()
    assert np.array_equal(values[1, : e.executed[last]], done[e.step[last] :])
    assert (values[1, e.executed[last] :] == done[-1]).all()
    assert pad[1].sum() == 16 - e.executed[last]


def test_joined_batches_keep_rows_and_queries_apart(episodes) -> None:
    one = gather(episodes[:1], [np.array([0, 2])], 4, (0, 1))
    two = gather(episodes[1:], [np.array([1]), np.array([0])], 4, (0, 1))
    both = join([one, two])
    n, m = len(episodes[0]), len(episodes[1])
    assert both.loss_index.tolist() == [0, 2, n + 1, n + m]
    assert both.episode_index.tolist() == [0] * n + [1] * m + [2] * len(episodes[2])
    assert both.task == one.task + two.task


def test_in_joined_batches_rollouts_say_nothing_of_where_named_things_are(episodes) -> None:
    one = gather(episodes[:1], [np.array([0, 2])], 4, (0, 1))
    two = gather(episodes[1:2], [np.array([1])], 4, (0, 1))
    assert join([one, two]).referents is None
    told = replace(two, referents=np.full((1, 2, 2, 2), 0.25, np.float32))
    for batches, row in (([one, told], 2), ([told, one], 0)):
        referents = join(batches).referents
        assert referents.shape == (3, 2, 2, 2)
        assert (referents[row] == 0.25).all()
        assert referents.isnan().all((1, 2, 3)).sum() == 2


def test_a_reward_model_sees_every_moment_through_its_own_cameras(episodes) -> None:
    seen = frames(episodes, (1,))
    assert len(seen.images) == sum(len(e) + 1 for e in episodes)
    assert seen.images.shape[1] == 1
    assert np.array_equal(seen.images[0, 0], episodes[0].images[0, 1])
    assert (seen.time_s[seen.episode_index == 1] == episodes[1].time_s).all()


@pytest.fixture(scope="module")
def forgetful():
    """Return episodes of a policy that remembers nothing."""
    policy = small_policy(none.Config())
    return collect_rollouts(policy, TASK, episodes=3, seed=5, version=2, num_envs=2), policy


def test_without_memory_every_control_step_is_seen(forgetful) -> None:
    found, policy = forgetful
    for e in found:
        assert e.step.tolist() == list(range(e.steps + 1))
        np.testing.assert_allclose(e.time_s, e.step / 10)
        assert e.decision_index.tolist() == list(range(0, e.steps, policy.config.n_action_steps))
        assert len(e) == len(e.latents) == len(e.actions) == len(e.reward) == len(e.is_intervention)
        assert e.executed.sum() == e.steps
        assert len(e.images) == len(e.progress) == e.steps + 1


def test_without_memory_a_decision_stands_alone(forgetful) -> None:
    found, policy = forgetful
    e = found[1]
    batch = windows([e], [e.decision_index], policy.config.chunk_size, policy.views)
    assert batch.episode_index.tolist() == list(range(len(e)))
    with torch.no_grad():
        scores = policy.head.log_prob(policy.contexts(batch), torch.from_numpy(e.latents)).numpy()
    size = e.latents[0, 0].size
    np.testing.assert_allclose(scores / size, e.log_prob / size, atol=1e-5)
    # What was executed from the middle of a decision on is a lesson as well.
    values, pad = e.targets(np.array([e.decision_index[1] + 1]), 4)
    done = np.concatenate([a[:n] for a, n in zip(e.actions, e.executed, strict=True)])
    assert np.array_equal(values[0], done[e.decision_index[1] + 1 :][:4])
    assert not pad.any()


class FirstTwo(InterventionController):
    """Somebody else acts in the first two decisions of the episode with number 1."""

    def __init__(self) -> None:
        super().__init__(EpisodeControlConfig(), seed=0, remaining=1.0, scorer=None, views=())

    def needs_intervention(self, obs, rows, number, decision):
        return (number == 1) & (decision < 2)


def test_what_somebody_else_did_is_kept_as_such(episodes) -> None:
    found = collect_rollouts(
        small_policy(), TASK, episodes=3, seed=5, version=2, num_envs=3, controller=FirstTwo()
    )
    assert [e.is_intervention.sum() for e in found] == [0, 2, 0]
    assert np.array_equal(found[0].actions, episodes[0].actions)
    # The policy was asked all the same; something else was done.
    assert np.array_equal(found[1].latents[0], episodes[1].latents[0])
    assert np.abs(found[1].actions[0] - episodes[1].actions[0]).max() > 0.01


def test_bc_frames_are_successes_without_what_led_to_interventions_and_all_interventions(
    episodes,
) -> None:
    def lessons(good, *helped):
        marks = np.zeros(len(episodes[0]), np.int8)
        marks[list(helped)] = ActionSource.INTERVENTION
        return replace(episodes[0], action_source=marks).bc_indices(good).tolist()

    every = list(range(len(episodes[0])))
    assert lessons(True) == every
    assert lessons(False) == []
    assert lessons(True, 2, 3) == every[2:]
    assert lessons(False, 2, 3) == [2, 3]


@pytest.mark.parametrize(
    ("by", "good", "bad"),
    [
        # From the last way back on: what led to it, and the attempt before, are not cloned.
        (
            (
                ActionSource.POLICY,
                ActionSource.RETRACE,
                ActionSource.RETRACE,
                ActionSource.OFFSET_RETRY,
                ActionSource.RETRACE,
                ActionSource.RETRACE,
                ActionSource.OFFSET_RETRY,
                ActionSource.POLICY,
            ),
            (4, 5, 6, 7),
            (),
        ),
        # Help after it: what led to the help is not cloned either.
        (
            (
                ActionSource.POLICY,
                ActionSource.RETRACE,
                ActionSource.OFFSET_RETRY,
                ActionSource.OFFSET_RETRY,
                ActionSource.INTERVENTION,
                ActionSource.POLICY,
                ActionSource.INTERVENTION,
            ),
            (4, 5, 6),
            (4, 6),
        ),
        # A lead before it is worth cloning whatever came of it.
        (
            (
                ActionSource.INTERVENTION,
                ActionSource.POLICY,
                ActionSource.POLICY,
                ActionSource.RETRACE,
                ActionSource.OFFSET_RETRY,
                ActionSource.POLICY,
            ),
            (0, 3, 4, 5),
            (0,),
        ),
    ],
)
def test_lessons_begin_with_the_last_attempt(by, good, bad) -> None:
    told = replace(episode(len(by)), action_source=np.array(by, np.int8))
    assert told.bc_indices(success=True).tolist() == list(good)
    assert told.bc_indices(success=False).tolist() == list(bad)


def test_lessons_without_memory_are_all_control_steps_of_their_decisions(forgetful) -> None:
    found, policy = forgetful
    marks = np.zeros(len(found[0]), np.int8)
    marks[1] = ActionSource.INTERVENTION
    span = policy.config.n_action_steps
    assert replace(found[0], action_source=marks).bc_indices(False).tolist() == list(
        range(span, 2 * span)
    )


def test_an_instruction_that_changes_within_an_episode_is_refused() -> None:
    task = named_once.Config(names=(1, 1), delay_steps=(16, 16), act_steps=8)
    with pytest.raises(ValueError, match=r"task: the instruction changes .*by vla train"):
        collect_rollouts(small_policy(), task, episodes=1, seed=0, version=0)
