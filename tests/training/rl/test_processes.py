"""Processes beside the learner, one by one: what is left to do, who may begin, how they end."""

import os
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch

from tests.training.rl.made_up import episode
from tests.training.rl.runs import config, start
from tests.training.small_policy import small_policy
from training.rl import store
from training.rl.config import RuntimeConfig
from training.rl.judge import Verdict
from training.rl.processes import actor, parts, scoring
from training.rl.processes.member import Job, Member
from training.rl.processes.weights import Board
from training.rl.rewards import Worth

ROUND = "round-000000"


def apart(lag: int = 1, **changes):
    return config(runtime=RuntimeConfig(processes=True, lag=lag, **changes))


def worth(value: float) -> Worth:
    return Worth(
        reward=np.array([value], np.float32), potential=np.array([np.nan, value], np.float32),
        success=True,
    )  # fmt: skip


def test_what_is_missing_is_seen_in_the_folder(tmp_path) -> None:
    run = apart()
    assert actor.missing(run, tmp_path) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    parts.keep(tmp_path, ROUND, episode(1, number=1))
    parts.keep(tmp_path, "round-000001", episode(1, number=0))
    assert actor.missing(run, tmp_path) == [(0, 0), (1, 1)]
    parts.keep(tmp_path, ROUND, episode(2, number=0))
    (tmp_path / f".{ROUND}.parts" / ".episode-000001.new-77").mkdir()
    parts.finish(tmp_path, ROUND)
    assert actor.missing(run, tmp_path) == [(1, 1)]
    assert [(e.number, len(e)) for e in store.read_round(tmp_path, ROUND)] == [(0, 2), (1, 1)]
    assert sorted(p.name for p in (tmp_path / ROUND).iterdir()) == [
        "episode-000000", "episode-000001",
    ]  # fmt: skip


def test_a_verdict_comes_back_beside_its_episode(tmp_path) -> None:
    parts.keep(tmp_path, ROUND, episode(1, number=3))
    for number, foreign in ((3, worth(0.5)), (4, None)):
        parts.judge(tmp_path, ROUND, number, Verdict(worth=worth(0.25), foreign=foreign))
    told = parts.read_verdict(tmp_path, ROUND, 3)
    assert told.foreign is not None
    for one, value in ((told.worth, 0.25), (told.foreign, 0.5)):
        assert one.success is True
        np.testing.assert_array_equal(one.reward, worth(value).reward)
        np.testing.assert_array_equal(one.potential, worth(value).potential)
    assert parts.read_verdict(tmp_path, ROUND, 4).foreign is None
    assert parts.there(tmp_path, ROUND) == ({3}, {3, 4})
    (tmp_path / f".{ROUND}.parts" / "verdict-000004.safetensors").write_bytes(b"x")
    with pytest.raises(ValueError, match="damaged verdict .* delete it to have it judged anew"):
        parts.read_verdict(tmp_path, ROUND, 4)


def test_what_was_judged_of_a_round_is_not_judged_again(tmp_path) -> None:
    made = [episode(1, number=number) for number in (0, 1)]
    for one in made:
        parts.keep(tmp_path, ROUND, one)
        parts.judge(tmp_path, ROUND, one.number, Verdict(worth=worth(one.number), foreign=None))
    parts.finish(tmp_path, ROUND)
    found = parts.told(tmp_path, ROUND, store.read_round(tmp_path, ROUND))
    assert found is not None
    assert [one.worth.reward.tolist() for one in found] == [[0.0], [1.0]]
    (tmp_path / ROUND / "verdict-000001.safetensors").unlink()
    assert parts.told(tmp_path, ROUND, made) is None


def test_with_lag_what_waits_is_judged_and_without_it_whole_rounds(tmp_path) -> None:
    parts.keep(tmp_path, ROUND, episode(1, number=1))
    assert scoring.waiting(apart(lag=1), tmp_path) == (ROUND, [1])
    assert scoring.waiting(apart(lag=0), tmp_path) is None
    parts.judge(tmp_path, ROUND, 1, Verdict(worth=worth(0), foreign=None))
    parts.keep(tmp_path, ROUND, episode(1, number=0))
    assert scoring.waiting(apart(lag=1), tmp_path) == (ROUND, [0])
    # All of it again, though one is judged: a call of another size would round otherwise.
    assert scoring.waiting(apart(lag=0), tmp_path) == (ROUND, [0, 1])
    parts.judge(tmp_path, ROUND, 0, Verdict(worth=worth(0), foreign=None))
    assert scoring.waiting(apart(lag=0), tmp_path) is None


@pytest.mark.parametrize(("lag", "begun"), [(0, [2, 0, 0, 2, 0]), (1, [2, 2, 0, 2, 0])])
def test_a_round_begins_once_the_weights_are_new_enough(lag, begun) -> None:
    """Three rounds of two episodes, each followed by two updates; lanes for two at a time."""
    policy = small_policy()
    payload = safetensors.torch.save(policy.state_dict())
    board = Board(len(payload))
    run = replace(apart(lag), rounds=3, steps=6)
    cast = actor.Cast(run, policy, board, lambda number: None)
    left = deque(actor.missing(run, Path("nowhere")))
    assert cast.ready(left, 2) == []  # nothing is published yet
    found = []
    for published in (0, None, None, 2, None):
        if published is not None:
            board.publish(published, payload)
        found.append(cast.ready(left, 2))
    assert [len(now) for now in found] == begun
    for acting, _ in (pair for now in found for pair in now):
        number = run.round_of(acting.seed)
        assert run.oldest(number) <= acting.version <= run.begins(number)
    board.close()


def test_lag_needs_processes() -> None:
    with pytest.raises(ValueError, match=r"runtime.lag: got 1 in one process.*--runtime.processes"):
        RuntimeConfig(lag=1)
    with pytest.raises(ValueError, match=r"silent_s: got 0\.0"):
        RuntimeConfig(silent_s=0.0)


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
    member = Member("worker", complains, job(tmp_path))
    member.process.join(60)
    with pytest.raises(ValueError, match="the worker failed: ValueError: there is no table"):
        member.tend_(lambda: 0)
    member.close()


def test_a_silent_process_is_started_anew_but_not_for_ever(tmp_path, capsys) -> None:
    member = Member("worker", goes_on, job(tmp_path, silent_s=0.01))
    for _ in range(5):
        time.sleep(0.02)  # less than it takes to begin
        member.tend_(lambda: 0)
    assert member.restarts == 5
    assert capsys.readouterr().err.count("showed no sign of life") == 5
    time.sleep(0.02)
    with pytest.raises(ValueError, match="6 times in a row with nothing finished"):
        member.tend_(lambda: 0)
    member.close()


def test_it_ends_with_the_learner_however_that_ends(tmp_path) -> None:
    member = Member("worker", goes_on, job(tmp_path))
    until = time.monotonic() + 60
    while not list(tmp_path.iterdir()) and time.monotonic() < until:
        time.sleep(0.05)
    member.tend_(lambda: 0)
    assert member.restarts == 0
    member._pipe.close()  # what the system does when the learner dies
    member.process.join(10)
    assert member.process.exitcode == 0
    member.close()
