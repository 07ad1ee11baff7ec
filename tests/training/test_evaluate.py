"""Evaluation: every episode counted once, under its own number and noise, whatever the batch."""

import numpy as np
import pytest
import torch

from sim.tasks import reach
from tests.fakes import fake_observation, fake_policy, rows
from tests.training.small_policy import small_policy
from training.evaluation import evaluate
from vla.contracts.types import ActionChunk, EnvStep
from vla.memory import none
from vla.policies import vla
from vla.runtime.noise import episode_noise

STEPS = 2
"""Control steps per decision."""


class ScriptedEnv:
    """Episode k lasts k % 3 + 1 decisions, succeeds if k is even and ends at progress k / 10."""

    def __init__(self, envs: int) -> None:
        self.episode, self.done = np.arange(envs), np.zeros(envs, np.int64)
        self.rng, self.closed = np.random.default_rng(0), False

    def reset(self, seed: int):
        self.seed = seed
        return self._observe()

    def _observe(self):
        return fake_observation(self.rng, len(self.episode), list(0.2 * self.done))

    def step_chunk(self, actions: np.ndarray, use_expert=None, frozen=None) -> EnvStep:
        envs = len(self.episode)
        assert use_expert is None
        assert frozen is None
        assert actions.shape == (envs, STEPS, 2)
        self.done = self.done + 1
        ended = self.done == self.episode % 3 + 1
        episode, success = self.episode.copy(), ended & (self.episode % 2 == 0)
        final = self._observe()
        self.episode, self.done = self.episode + envs * ended, self.done * ~ended
        return EnvStep(
            obs=self._observe(), reward=success.astype(np.float32), terminated=ended & success,
            truncated=ended & ~success, final_obs=final,
            info={
                "success": success, "progress": (episode / 10).astype(np.float32),
                "steps": np.full(envs, STEPS, np.int32), "episode": episode,
            },
        )  # fmt: skip

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> list[ScriptedEnv]:
    made: list[ScriptedEnv] = []

    def make(task: str, num_envs: int, **_: object) -> ScriptedEnv:
        made.append(ScriptedEnv(num_envs))
        return made[-1]

    monkeypatch.setattr(evaluate.vec_env, "make", make)
    return made


@pytest.mark.parametrize("environments", [1, 3, 32])
def test_every_episode_is_counted_once_under_its_number(environments: int, scripted) -> None:
    policy = fake_policy(vla.Config(chunk_size=4, n_action_steps=STEPS))
    result = evaluate.evaluate(
        policy, reach.Config(), episodes=7, seed=5, environments=environments
    )
    assert result.success == [True, False, True, False, True, False, True]
    assert result.steps == [2, 4, 6, 2, 4, 6, 2]  # two control steps per decision
    np.testing.assert_allclose(result.progress, np.arange(7) / 10, atol=1e-6)
    np.testing.assert_allclose(result.max_progress, result.progress, atol=1e-6)
    assert scripted[0].seed == 5
    assert scripted[0].closed
    assert result.rate == 4 / 7
    assert result.interval[0] < 4 / 7 < result.interval[1]
    assert result.to_json()["task"]["type"] == "reach"
    assert "reach: 4 of 7 episodes succeeded, 57.1%" in result.summary()


def test_noise_depends_on_seed_episode_and_decision_alone(scripted, monkeypatch) -> None:
    policy = fake_policy(vla.Config(chunk_size=4, n_action_steps=STEPS))
    act, seen = policy.act, []

    def recorded(obs, state, noise):
        seen.append((scripted[0].episode.tolist(), scripted[0].done.tolist(), noise))
        return act(obs, state, noise)

    monkeypatch.setattr(policy, "act", recorded)
    evaluate.evaluate(policy, reach.Config(), episodes=5, seed=5, environments=2)
    for episodes, decisions, noise in seen:
        for row, pair in enumerate(zip(episodes, decisions, strict=True)):
            alone = episode_noise(5, *(np.array([x]) for x in pair), policy.noise_shape)
            np.testing.assert_array_equal(noise[row], alone[0])
    shape = (1000,)
    drawn = [
        episode_noise(s, np.array([e]), np.array([d]), shape)[0]
        for s, e, d in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    correlation = np.corrcoef(drawn) - np.eye(4)
    assert np.abs(correlation).max() < 0.2
    assert abs(np.mean(drawn)) < 0.1


def test_in_the_simulator_the_figures_do_not_depend_on_the_batch(monkeypatch) -> None:
    """To the bit, where the policy decides row by row: in a batch matrix products round otherwise,
    by 1e-7 (`test_a_row_is_decided_alike_alone_and_in_any_company`), which a contact may amplify.
    """
    policy = small_policy(none.Config())
    act = policy.act

    def alone(obs, state, noise):
        empty = policy.initial_state(1)  # and stays so: it has no memory
        chunks = [act(rows(obs, [r]), empty, noise[r : r + 1])[0] for r in range(len(noise))]
        values = torch.cat([chunk.values for chunk in chunks])
        return ActionChunk(values=values, start_s=torch.as_tensor(obs.time_s)), state

    monkeypatch.setattr(policy, "act", alone)
    results = [
        evaluate.evaluate(policy, reach.Config(), episodes=4, seed=3, environments=n)
        for n in (1, 4)
    ]
    assert results[0].success == results[1].success
    assert results[0].steps == results[1].steps
    assert results[0].progress == results[1].progress


def test_no_episodes_is_refused() -> None:
    with pytest.raises(ValueError, match="episodes must be at least 1, got 0"):
        evaluate.evaluate(small_policy(), reach.Config(), episodes=0, seed=0)


def test_the_rate_of_several_tasks_is_their_mean_and_each_is_told() -> None:
    def result(success: list[bool], task: str) -> evaluate.Evaluation:
        return evaluate.Evaluation(
            task={"type": task}, seed=0, success=success, progress=[0.0] * len(success),
            steps=[1] * len(success), decided=success, seconds=1.0,
        )  # fmt: skip

    first, other = result([True, True], "reach"), result([True, False, False, False], "push")
    both = evaluate.MultiTaskEvaluation.of(first, [other])
    assert both.rate == (1.0 + 0.25) / 2
    assert both.seconds == 2.0
    told = both.to_json()
    assert (told["rate"], told["mean_rate"]) == (1.0, both.rate)
    assert told["others"] == [other.to_json()]
    assert [line.split(":")[0] for line in both.summary().splitlines()] == ["reach", "push"]
