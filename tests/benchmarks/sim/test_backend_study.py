"""The study of experts on two backends, on few episodes."""

import numpy as np
import pytest

from benchmarks.sim import backend_study
from sim.experts.episode import record_episode
from vla import cli


def test_it_plays_the_episodes_that_it_names_whatever_their_number_at_a_time():
    played = backend_study.play("reach", "mujoco_cpu", 3, 2, seed=5)
    expected = [record_episode("reach", 5, i, render=False).success[-1] for i in range(3)]
    np.testing.assert_array_equal(played.success, expected)
    assert not played.fault.any()


def test_it_prints_both_shares_and_their_difference(capsys):
    words = [
        "--backends",
        "mujoco_cpu",
        "mujoco_cpu",
        "--tasks",
        "reach",
        "--episodes",
        "2",
        "--envs",
        "2",
    ]
    assert backend_study.main(words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "2 of 2 (34.2% to 100.0%), 0 faults" in lines[0]
    assert "difference   +0.0 points" in lines[2]
    assert "bar 2: met" in lines[2]


def test_a_difference_beyond_the_bar_is_said_and_the_exit_code_is_1(monkeypatch, capsys):
    solved = {"mujoco_cpu": np.ones(10, np.bool_), "mujoco_warp": np.arange(10) > 0}

    def play(task, backend, episodes, num_envs, seed):
        return backend_study.Played(solved[backend], np.zeros(10, np.bool_), 1.0)

    monkeypatch.setattr(backend_study, "play", play)
    assert backend_study.main(["--tasks", "reach", "--episodes", "10"]) == 1
    out = capsys.readouterr().out
    assert "difference   -10.0 points" in out
    assert "bar 2: missed), solved by one alone: 1 and 0" in out


@pytest.mark.parametrize("flag", ["--episodes", "--envs"])
def test_wrong_numbers_are_one_sentence(flag, capsys):
    assert cli.run("benchmarks.sim.backend_study:main", [flag, "0"]) == 1
    assert f"{flag[2:]}: got 0, expected at least 1" in capsys.readouterr().err
