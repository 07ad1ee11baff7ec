"""Several policies in the same episodes: the same actions as one after the other."""

import numpy as np
import pytest

from benchmarks.training.evaluate_together import evaluate_together
from tests.training.small_policy import TASK, small_policy
from training.evaluation.evaluate import evaluate
from vla.memory import gru, none
from vla.policies.vla import VLAPolicy

EPISODES = dict(episodes=5, seed=3, environments=3)


def spied(policy: VLAPolicy) -> list[tuple[float, np.ndarray]]:
    """Return a list that fills with the time and the chunk of every row of every decision."""
    decisions: list[tuple[float, np.ndarray]] = []
    act = policy.act

    def spy(obs, state, noise):
        chunk, after = act(obs, state, noise)
        decisions.extend(zip(obs.time_s.tolist(), chunk.values.numpy(), strict=True))
        return chunk, after

    policy.act = spy
    return decisions


def test_actions_and_outcomes_are_those_of_one_policy_after_the_other() -> None:
    policies = [small_policy(), small_policy(gru.Config()), small_policy(none.Config())]
    decisions = [spied(policy) for policy in policies]
    found = evaluate_together(policies, TASK, **EPISODES)
    together = [list(seen) for seen in decisions]
    for ended, policy, seen, later in zip(found, policies, together, decisions, strict=True):
        later.clear()
        alone = evaluate(policy, TASK, **EPISODES)
        assert [outcome.number for outcome in ended] == [0, 1, 2, 3, 4]
        assert [outcome.success for outcome in ended] == alone.success
        assert [outcome.terminated for outcome in ended] == alone.decided
        free = [(time, chunk) for time, chunk in seen if time]  # idle rows stay at 0
        assert len(free) >= 5
        assert len(free) < len(later) / 2
        for time, chunk in free:
            same = [other for at, other in later if at == time]
            assert min(np.abs(chunk - other).max() for other in same) < 1e-6


def test_nothing_to_run_gets_a_sentence() -> None:
    with pytest.raises(ValueError, match="policies, episodes: got 0 and 5, expected 1 or more"):
        evaluate_together([], TASK, episodes=5, seed=3)
