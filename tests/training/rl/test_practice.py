"""Practice: whole episodes, the same whatever runs beside them, replayed to the same numbers."""

import numpy as np
import pytest
import torch

from tests.training.small_policy import TASK, small_policy
from training.rl.experience import frames, gather, join
from training.rl.practice import practise


@pytest.fixture(scope="module")
def episodes():
    return practise(small_policy(), TASK, episodes=3, seed=5, version=2, environments=3)


def test_episodes_are_whole_and_in_order_of_their_numbers(episodes) -> None:
    assert [e.number for e in episodes] == [0, 1, 2]
    for e in episodes:
        decisions = len(e)
        assert len(e.images) == len(e.proprio) == len(e.time_s) == len(e.progress) == decisions + 1
        assert e.time_s[0] == 0
        assert (np.diff(e.time_s) > 0).all()
        assert e.begins[0] == 0
        assert e.steps == round(e.time_s[-1] * 10)
        assert e.version == 2
        assert e.seed == 5
        assert e.task


def test_how_many_run_side_by_side_changes_nothing(episodes) -> None:
    alone = practise(small_policy(), TASK, episodes=3, seed=5, version=2, environments=1)
    for a, b in zip(episodes, alone, strict=True):
        assert np.array_equal(a.executed, b.executed)
        assert np.array_equal(a.images[0], b.images[0])
        np.testing.assert_allclose(a.latents, b.latents, atol=1e-4)


def test_a_replayed_episode_has_the_log_probabilities_it_was_collected_with(episodes) -> None:
    policy = small_policy()
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
    assert np.array_equal(values[1, : e.executed[last]], done[e.begins[last] :])
    assert (values[1, e.executed[last] :] == done[-1]).all()
    assert pad[1].sum() == 16 - e.executed[last]


def test_joined_batches_keep_rows_and_queries_apart(episodes) -> None:
    one = gather(episodes[:1], [np.array([0, 2])], 4, (0, 1))
    two = gather(episodes[1:], [np.array([1]), np.array([0])], 4, (0, 1))
    both = join([one, two])
    n, m = len(episodes[0]), len(episodes[1])
    assert both.query.tolist() == [0, 2, n + 1, n + m]
    assert both.row.tolist() == [0] * n + [1] * m + [2] * len(episodes[2])
    assert both.task == one.task + two.task


def test_a_critic_sees_every_moment_through_its_own_cameras(episodes) -> None:
    seen = frames(episodes, (1,))
    assert len(seen.images) == sum(len(e) + 1 for e in episodes)
    assert seen.images.shape[1] == 1
    assert np.array_equal(seen.images[0, 0], episodes[0].images[0, 1])
    assert (seen.time_s[seen.row == 1] == episodes[1].time_s).all()
