"""The study of online RL on the worst goals: what it chooses, trains and tests."""

from dataclasses import replace

import pytest

from benchmarks import harness
from benchmarks.rl import weakest_goals
from benchmarks.rl.weakest_goals import OTHERS, WORST
from sim.tasks._language import Goal
from training.commands import train_rl


def study(tmp_path, *words: str):
    return harness.read(
        weakest_goals.Study,
        [str(tmp_path / "p"), "--dataset", str(tmp_path / "a"), str(tmp_path / "b"), *words],
        "rl.weakest_goals",
    )


def test_the_goals_of_the_lowest_success_are_chosen():
    cell = {
        "goals": [3, 3, 1, 1, 2, 2, 2],
        "success": [True, False, True, True, False, False, True],
    }
    assert weakest_goals.worst(cell, 2) == [2, 3]


def test_the_others_are_all_others_and_tasks_are_tested_as_well():
    tests = weakest_goals.tests([1, 40], ["reach"])
    assert tests[WORST].goals == (1, 40)
    assert len(tests[OTHERS].goals) == len(weakest_goals.GOALS) - 2
    assert not {1, 40} & set(tests[OTHERS].goals)
    assert list(tests) == [WORST, OTHERS, "reach"]


def test_the_command_trains_on_the_goals_and_keeps_the_data_sets(tmp_path):
    args = study(tmp_path, "--algo", "asymmetric_ac", "--more", "--algo.retention.kl-coef", "2")
    words = weakest_goals.train(args, args.policies[0], [1, 40], tmp_path / "out")
    run = train_rl.parse(words[2:])
    assert run.train.task.goals == (1, 40)
    assert run.train.reward == "sparse"
    assert run.train.algo.retention.datasets == tuple(map(str, args.dataset))
    assert run.train.algo.retention.kl_coef == 2
    told = study(tmp_path, "--reward-model", "r")
    assert (
        train_rl.parse(weakest_goals.train(told, args.policies[0], [1], tmp_path)[2:]).train.reward
        == "learned"
    )


def test_the_control_of_filtered_bc_differs_by_its_rollouts_alone(tmp_path):
    args = study(tmp_path)
    of = (args, args.policies[0], [1, 40], tmp_path / "out")
    run = train_rl.parse(weakest_goals.train(*of)[2:]).train
    control = train_rl.parse(weakest_goals.control(*of)[2:]).train
    assert not run.algo.stochastic_denoising
    assert run.n_iterations * run.episodes_per_iteration == 1200
    assert control == replace(run, n_iterations=1, episodes_per_iteration=1)


def test_changes_are_in_points_and_policies_are_pooled():
    cell = lambda right: {"success": [True] * right + [False] * (10 - right), "goals": [0] * 10}  # noqa: E731
    ((name, *shares, change, episodes),) = weakest_goals.rows(
        {WORST: [(cell(2), cell(5), cell(6)), (cell(4), cell(5), cell(6))]}
    )
    assert (name, change, episodes) == (WORST, "+30.0", "20")
    assert [share.split()[0] for share in shares] == ["30.0%", "50.0%", "60.0%"]


def test_failures_are_told_by_what_was_done_instead():
    lift, touch, behind = (
        weakest_goals.GOALS.index(Goal(*goal))
        for goal in (("lift", 1), ("touch", 1), ("behind", 1, 2))
    )
    other = weakest_goals.GOALS.index(Goal("touch", 3))
    cell = {
        "success": [True, False, False, False, False, False],
        "goals": [lift, lift, behind, behind, behind, behind],
        "achieved": [lift, -1, touch, touch, lift, other],
        "max_progress": [1.0, 0.1, 0.2, 0.8, 0.5, 0.1],
    }
    found = weakest_goals.failures([cell, cell])
    assert found == dict.fromkeys(weakest_goals.FAILURES, 2)


@pytest.mark.parametrize("words", [["--goals", "44"], ["--episodes", "0"]])
def test_what_makes_no_sense_is_refused(tmp_path, words):
    with pytest.raises(ValueError, match="goals|episodes"):
        study(tmp_path, *words)
