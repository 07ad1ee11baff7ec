"""Sub-tasks found in made-up motion whose every frame is known."""

import numpy as np
import pytest

from reward_models.core.segments import (
    arm_speed,
    pseudo_progress,
    resting,
    segments,
    turns,
)

FPS = 10.0
HAND = 1
OPENING = (0.0, 1.0)  # closed, wide open


def episode(arm: list[float], hand: list[float], told: list[float]) -> tuple[np.ndarray, ...]:
    """Return state and action of a one-jointed arm with a hand, f32 [t, 2]."""
    state = np.array([arm, hand], np.float32).T
    return state, np.array([arm, told], np.float32).T


def pick() -> tuple[np.ndarray, np.ndarray]:
    """Move for 5 frames, close on something 0.4 wide for 4, carry for 6, open for 2."""
    arm = [0.0, 0.2, 0.4, 0.6, 0.8, *[1.0] * 4, 1.2, 1.4, 1.6, 1.8, 2.0, 2.0, 2.0]
    #       told to close at 5, moves from 6 to 7, stopped at 8; told to open at 14
    hand = [*[1.0] * 6, 0.7, 0.4, *[0.4] * 7, 0.7]
    told = [*[1.0] * 5, *[0.0] * 9, 1.0, 1.0]
    return episode(arm, hand, told)


def found(state: np.ndarray, action: np.ndarray, **changes) -> list[int]:
    given = {"fps": FPS, "gripper_index": HAND, "opening": OPENING, **changes}
    return segments(state, action, **given).tolist()


def test_a_grasp_ends_when_the_hand_has_stopped_and_a_hold_when_it_is_told_to_open() -> None:
    assert found(*pick()) == [8, 14]


def test_a_hand_that_turns_the_other_way_round_gives_the_same() -> None:
    state, action = (x * [1, -1] + [0, 1] for x in pick())
    assert found(state, action, opening=(1.0, 0.0)) == [8, 14]


def test_a_little_play_of_the_hand_is_no_cut() -> None:
    state, action = pick()
    action[:5, HAND] -= np.array([0.0, 0.15, 0.0, 0.15, 0.0], np.float32)
    assert found(state, action) == [8, 14]


def test_a_cut_settles_where_the_arm_comes_to_rest_and_stays_if_it_does_not() -> None:
    told = [1.0, *[0.0] * 5, *[1.0] * 10]
    arm = [0.0, 0.0, 0.0] + [0.2 * t for t in range(5)] + [1.0] * 8
    # told to close at 1, stopped at 2; told to open at 6, when the arm moves until 8, rests at 9
    assert found(*episode(arm, told, told)) == [2, 9]
    arm = [0.0, 0.0, 0.0] + [0.2 * t for t in range(13)]
    assert found(*episode(arm, told, told)) == [2, 6]


def test_to_open_before_anything_was_taken_ends_nothing() -> None:
    state, action = pick()
    begin = np.array([[0.0, 0.2]], np.float32).repeat(3, 0)
    opened = found(np.concatenate([begin, state]), np.concatenate([begin, action]))
    assert opened == [3 + 8, 3 + 14]


def test_an_arm_whose_hand_does_nothing_has_one_sub_task() -> None:
    arm = [0.1 * t for t in range(10)]
    still = [0.5] * 10
    assert found(*episode(arm, still, still)) == []


def test_turns_are_found_where_the_way_back_exceeds_the_least() -> None:
    signal = np.array([0.0, 0.1, 0.3, 0.6, 0.5, 0.2, 0.2, 0.5])
    # up past 0.25 at frame 2; down from the top 0.6 past 0.35 at 5; up from 0.2 past 0.45 at 7
    assert turns(signal, 0.25) == [(2, 1), (5, -1), (7, 1)]


def test_the_arm_rests_where_it_stands_still_whatever_the_hand_does() -> None:
    arm = [0.0, 1.0, 2.0, 2.0, 2.0, 2.0, 3.0, 4.0, 4.0, 4.0]
    hand = [0.1 * t for t in range(10)]
    state, _ = episode(arm, hand, hand)
    # speed by central differences: 10, 10, 5, 0, 0, 5, 10, 5, 0, 0 per second
    expected = [10, 10, 5, 0, 0, 5, 10, 5, 0, 0]
    np.testing.assert_allclose(arm_speed(state, fps=FPS, gripper_index=HAND), expected)
    assert resting(state, fps=FPS, gripper_index=HAND).tolist() == [s == 0 for s in expected]


def test_pseudo_progress_shares_out_sub_tasks_alike_and_stands_still_with_the_arm() -> None:
    arm = [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 2.0, 2.0, 2.0]
    state, _ = episode(arm, arm, arm)
    progress = pseudo_progress(state, np.array([5]), fps=FPS, gripper_index=HAND)
    # speed by central differences, summed by trapezoids: 0, 0, 0, 0.25, 1, 1.75, then 0.25 more
    np.testing.assert_allclose(
        progress, [0, 0, 0, 0.25 / 1.75 / 2, 1 / 1.75 / 2, 0.5, 1, 1, 1], atol=1e-6
    )


def test_a_sub_task_of_the_hand_alone_goes_by_time() -> None:
    still = [0.3] * 5
    state, _ = episode(still, still, still)
    progress = pseudo_progress(state, np.array([], np.int64), fps=FPS, gripper_index=HAND)
    np.testing.assert_allclose(progress, [0, 0.25, 0.5, 0.75, 1])


def test_pseudo_progress_never_falls_and_ends_at_one() -> None:
    rng = np.random.default_rng(0)
    state = rng.standard_normal((40, 3)).astype(np.float32).cumsum(0)
    progress = pseudo_progress(state, np.array([0, 7, 20, 39]), fps=FPS, gripper_index=2)
    assert (np.diff(progress) >= 0).all()
    assert progress[0] == 0.0
    assert progress[-1] == 1.0
    assert progress[7] == pytest.approx(1 / 3)  # cuts on the first and last frame are none


def test_wrong_use_is_explained() -> None:
    state, action = pick()
    with pytest.raises(ValueError, match=r"action: got shape \(3, 2\), expected that of state"):
        found(state, action[:3])
    with pytest.raises(ValueError, match="expected different positions closed and open"):
        found(state, action, opening=(0.5, 0.5))
    with pytest.raises(ValueError, match="expected two frames or more"):
        found(state[:1], action[:1])
    with pytest.raises(ValueError, match="gripper_index: got 2, expected 0 to 1"):
        found(state, action, gripper_index=2)
