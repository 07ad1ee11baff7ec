"""Processes beside the learner, one by one: what is left to do, who may begin, how they end."""

import os
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

from tests.training.rl.fake_rollouts import episode
from tests.training.rl.runs import config, start
from tests.training.small_policy import small_policy
from training.rl.config import RuntimeConfig
from training.rl.experience import episode_store
from training.rl.experience.rewards import EpisodeReward
from training.rl.processes import actor, incremental_store, scoring
from training.rl.processes.supervised_process import Job, SupervisedProcess
from training.rl.processes.weights import WeightBoard
from training.rl.rollout.reward_source import EpisodeScore

ROUND = "round-000000"


def apart(lag: int = 1, **changes):
    return config(runtime=RuntimeConfig(distributed=True, max_policy_lag=lag, **changes))


def rewarded(value: float) -> EpisodeReward:
    return EpisodeReward(
        reward=np.array([value], np.float32), potential=np.array([np.nan, value], np.float32),
        success=True,
    )  # fmt: skip


def test_what_is_missing_is_seen_in_the_folder(tmp_path) -> None:
    run = apart()
    assert actor.missing(run, tmp_path) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    incremental_store.write_episode(tmp_path, ROUND, episode(1, number=1))
    incremental_store.write_episode(tmp_path, "round-000001", episode(1, number=0))
    assert actor.missing(run, tmp_path) == [(0, 0), (1, 1)]
    incremental_store.write_episode(tmp_path, ROUND, episode(2, number=0))
    (tmp_path / f".{ROUND}.parts" / ".episode-000001.new-77").mkdir()
    incremental_store.publish(tmp_path, ROUND)
    assert actor.missing(run, tmp_path) == [(1, 1)]
    assert [(e.number, len(e)) for e in episode_store.read_iteration(tmp_path, ROUND)] == [
        (0, 2),
        (1, 1),
    ]
    assert sorted(p.name for p in (tmp_path / ROUND).iterdir()) == [
        "episode-000000", "episode-000001",
    ]  # fmt: skip


def test_a_verdict_comes_back_beside_its_episode(tmp_path) -> None:
    incremental_store.write_episode(tmp_path, ROUND, episode(1, number=3))
    for number, foreign in ((3, rewarded(0.5)), (4, None)):
        incremental_store.write_score(
            tmp_path, ROUND, number, EpisodeScore(reward=rewarded(0.25), mismatched=foreign)
        )
    told = incremental_store.read_score(tmp_path, ROUND, 3)
    assert told.mismatched is not None
    for one, value in ((told.reward, 0.25), (told.mismatched, 0.5)):
        assert one.success is True
        np.testing.assert_array_equal(one.reward, rewarded(value).reward)
        np.testing.assert_array_equal(one.potential, rewarded(value).potential)
    assert incremental_store.read_score(tmp_path, ROUND, 4).mismatched is None
    assert incremental_store.progress(tmp_path, ROUND) == ({3}, {3, 4})
    (tmp_path / f".{ROUND}.parts" / "verdict-000004.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match="damaged score .* delete it to have it computed again"):
        incremental_store.read_score(tmp_path, ROUND, 4)


def test_what_was_judged_of_a_round_is_not_judged_again(tmp_path) -> None:
    made = [episode(1, number=number) for number in (0, 1)]
    for one in made:
        incremental_store.write_episode(tmp_path, ROUND, one)
        incremental_store.write_score(
            tmp_path, ROUND, one.number, EpisodeScore(reward=rewarded(one.number), mismatched=None)
        )
    incremental_store.publish(tmp_path, ROUND)
    found = incremental_store.read_scores(
        tmp_path, ROUND, episode_store.read_iteration(tmp_path, ROUND)
    )
    assert found is not None
    assert [one.reward.reward.tolist() for one in found] == [[0.0], [1.0]]
    (tmp_path / ROUND / "verdict-000001.safetensors").unlink()
    assert incremental_store.read_scores(tmp_path, ROUND, made) is None


def test_with_lag_what_waits_is_judged_and_without_it_whole_rounds(tmp_path) -> None:
    incremental_store.write_episode(tmp_path, ROUND, episode(1, number=1))
    assert scoring.waiting(apart(lag=1), tmp_path) == (ROUND, [1])
    assert scoring.waiting(apart(lag=0), tmp_path) is None
    incremental_store.write_score(
        tmp_path, ROUND, 1, EpisodeScore(reward=rewarded(0), mismatched=None)
    )
    incremental_store.write_episode(tmp_path, ROUND, episode(1, number=0))
    assert scoring.waiting(apart(lag=1), tmp_path) == (ROUND, [0])
    # All of it again, though one is judged: a call of another size would round otherwise.
    assert scoring.waiting(apart(lag=0), tmp_path) == (ROUND, [0, 1])
    incremental_store.write_score(
        tmp_path, ROUND, 0, EpisodeScore(reward=rewarded(0), mismatched=None)
    )
    assert scoring.waiting(apart(lag=0), tmp_path) is None


@pytest.mark.parametrize(("lag", "begun"), [(0, [2, 0, 0, 2, 0]), (1, [2, 2, 0, 2, 0])])
def test_a_round_begins_once_the_weights_are_new_enough(lag, begun) -> None:
    """Three rounds of two episodes, each followed by two updates; lanes for two at a time."""
    policy = small_policy()
    payload = safetensors.torch.save(policy.state_dict())
    board = WeightBoard(len(payload))
    run = replace(apart(lag), n_iterations=3, steps=6)
    cast = actor.Actor(run, policy, board, lambda number: None)
    left = deque(actor.missing(run, Path("nowhere")))
    assert cast.next_episodes(left, 2) == []  # nothing is published yet
    found = []
    for published in (0, None, None, 2, None):
        if published is not None:
            board.publish(published, payload)
        found.append(cast.next_episodes(left, 2))
    assert [len(now) for now in found] == begun
    for acting, _ in (pair for now in found for pair in now):
        number = run.iteration_of(acting.seed)
        assert run.oldest_version(number) <= acting.version <= run.first_update(number)
    board.close()


def test_lag_needs_processes() -> None:
    with pytest.raises(
        ValueError, match=r"runtime.max_policy_lag: got 1 in one process.*--runtime.distributed"
    ):
        RuntimeConfig(max_policy_lag=1)
    with pytest.raises(ValueError, match=r"heartbeat_timeout_s: got 0\.0"):
        RuntimeConfig(heartbeat_timeout_s=0.0)


def complains(job, alive) -> None:
    raise ValueError("there is no table")


def goes_on(job, alive) -> None:
    (job.start.experience / str(os.getpid())).touch()
    while True:
        alive()
        time.sleep(0.01)


def job(folder: Path, **runtime) -> Job:
    return Job(
        config=apart(**runtime), start=replace(start(folder, folder), experience=folder),
        policy=small_policy().config, board="none",
    )  # fmt: skip


def test_what_is_wrong_with_a_process_is_told_in_its_words(tmp_path) -> None:
    member = SupervisedProcess("worker", complains, job(tmp_path))
    member.process.join(60)
    with pytest.raises(ValueError, match="the worker failed: ValueError: there is no table"):
        member.check(lambda: 0)
    member.close()


def test_a_silent_process_is_started_anew_but_not_for_ever(tmp_path, capsys) -> None:
    member = SupervisedProcess("worker", goes_on, job(tmp_path, heartbeat_timeout_s=0.01))
    for _ in range(5):
        time.sleep(0.02)  # less than it takes to begin
        member.check(lambda: 0)
    assert member.restarts == 5
    assert capsys.readouterr().err.count("sent no heartbeat") == 5
    time.sleep(0.02)
    with pytest.raises(ValueError, match="6 times in a row with nothing finished"):
        member.check(lambda: 0)
    member.close()


def test_it_ends_with_the_learner_however_that_ends(tmp_path) -> None:
    member = SupervisedProcess("worker", goes_on, job(tmp_path))
    until = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    member.check(lambda: 0)
    assert member.restarts == 0
    member._pipe.close()  # what the system does when the learner dies
    member.process.join(10)
    assert member.process.exitcode == 0
    member.close()
