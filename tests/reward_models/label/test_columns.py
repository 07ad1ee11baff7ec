"""From scored frames to columns of every frame and figures of every episode."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reward_models.label.columns import (
    Derivation,
    episode_metrics,
    frame_columns,
    interpolate,
    reward,
    smoothed,
)
from reward_models.label.source import Segment, Source, steps_to_score
from vla.data.info import DatasetInfo

HOW = Derivation(
    reward="potential", gamma=0.9, done_threshold=0.5, stride_s=0.2, horizon_s=1.0, smooth=False
)
NAN = math.nan


def source(*segments: tuple[int, int], fps: float = 10.0, stride_s: float = 0.2) -> Source:
    """Return one episode made of segments of (first frame, frames)."""
    parts = tuple(
        Segment(
            episode=0, first=first, frames=frames, task="press",
            steps=first + steps_to_score(frames, fps, stride_s),
        )
        for first, frames in segments
    )  # fmt: skip
    total = sum(frames for _, frames in segments)
    info = DatasetInfo(
        path=Path("nowhere"), fps=fps, robot=None, cameras=(), state_names=(), action_names=(),
        scalars=(), tasks=("press",), offsets=np.array([0, total]), video_start={}, video_file={},
        recording=None,
    )  # fmt: skip
    return Source(info=info, segments=(parts,), index=np.arange(total), truth=None)


def scored(data: Source, progress: list[float], **others: Any) -> dict[str, np.ndarray]:
    """Return what was scored of the episode, sure and never done unless told otherwise."""
    steps = [segment.steps for segment in data.segments[0]]
    frame = np.concatenate(steps)
    assert len(frame) == len(progress)
    count = len(frame)
    columns = {
        "frame": frame,
        "segment": np.repeat(np.arange(len(steps)), [len(s) for s in steps]),
        "progress": np.array(progress, np.float32),
        "delta": np.zeros(count, np.float32),
        "trend": np.ones(count, np.int8),
        "done_prob": np.zeros(count, np.float32),
        "match": np.ones(count, np.float32),
        "confidence": np.ones(count, np.float32),
    }
    return {**columns, **{name: np.array(v, columns[name].dtype) for name, v in others.items()}}


def test_frames_to_score_are_the_same_moments_at_every_rate_and_end_with_the_last() -> None:
    assert steps_to_score(8, 10.0, 0.2).tolist() == [0, 2, 4, 6, 7]
    assert steps_to_score(36, 50.0, 0.2).tolist() == [0, 10, 20, 30, 35]
    assert steps_to_score(31, 50.0, 0.2).tolist() == [0, 10, 20, 30]
    assert steps_to_score(5, 5.0, 0.2).tolist() == [0, 1, 2, 3, 4]
    assert steps_to_score(4, 2.0, 0.2).tolist() == [0, 1, 2, 3]
    assert steps_to_score(1, 10.0, 0.2).tolist() == [0]


def test_frames_between_scored_ones_are_interpolated_and_say_so() -> None:
    data = source((0, 5))
    found = frame_columns(data, {0: scored(data, [0.0, 0.4, 0.8], trend=[0, 1, -1])}, HOW)
    np.testing.assert_allclose(found["progress"], [0.0, 0.2, 0.4, 0.6, 0.8], atol=1e-6)
    assert found["progress.scored"].tolist() == [True, False, True, False, True]
    assert found["progress.trend"].tolist() == [0, 0, 1, 1, -1]


def test_an_abstained_frame_silences_those_beside_it_and_no_measured_one() -> None:
    found = interpolate(np.array([0, 2, 4]), np.array([0.1, NAN, 0.5]), 5)
    np.testing.assert_array_equal(np.isnan(found), [False, True, True, True, False])
    np.testing.assert_allclose(found[[0, 4]], [0.1, 0.5])


def test_rewards_of_a_potential_add_up_to_what_the_end_is_worth() -> None:
    progress = np.array([0.2, 0.3, 0.7, 0.6, 1.0], np.float32)
    gamma = 0.9**0.5  # per frame: two frames lie between scored ones
    got = reward(progress, progress, True, 10.0, HOW)
    np.testing.assert_allclose(got[1], gamma * 0.7 - 0.3, rtol=1e-5)
    discounted = (gamma ** np.arange(5) * got).sum()
    np.testing.assert_allclose(discounted, gamma**4 * 1.0 - 0.2, rtol=1e-5)


def test_the_return_is_that_of_the_same_curve_at_another_rate() -> None:
    slow = np.interp(np.arange(11) / 10, [0, 1], [0.1, 0.9]).astype(np.float32)
    fast = np.interp(np.arange(51) / 50, [0, 1], [0.1, 0.9]).astype(np.float32)
    returns = []
    for progress, fps in ((slow, 10.0), (fast, 50.0)):
        gamma = HOW.gamma_per_frame(fps)
        got = reward(progress, progress, True, fps, HOW)
        returns.append((gamma ** np.arange(len(got)) * got).sum())
    np.testing.assert_allclose(returns[0], returns[1], rtol=1e-5)


def test_silence_pays_nothing_and_what_changed_meanwhile_is_settled_after_it() -> None:
    progress = np.array([0.2, NAN, 0.5, 0.5], np.float32)
    gamma = 0.9**0.5
    got = reward(progress, progress, False, 10.0, HOW)
    expected = [0.0, gamma * 0.5 - 0.2, (gamma - 1) * 0.5, -0.5]
    np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_an_end_that_is_not_done_pays_nothing_for_having_come_near() -> None:
    progress = np.array([0.0, 0.4, 0.8], np.float32)
    how = dataclasses.replace(HOW, gamma=1.0)
    assert reward(progress, progress, False, 10.0, how).sum() == pytest.approx(0.0, abs=1e-6)
    assert reward(progress, progress, True, 10.0, how).sum() == pytest.approx(1.0, abs=1e-6)


def test_a_fall_in_silence_cannot_be_hidden() -> None:
    cycle = [0.2, 0.8, NAN]
    progress = np.array(cycle * 5 + [0.2], np.float32)
    how = dataclasses.replace(HOW, gamma=1.0)
    # From 0.2 to 0.2, and the potential of the end is given back: whatever happened, -0.2.
    assert reward(progress, progress, False, 10.0, how).sum() == pytest.approx(-0.2, abs=1e-5)


def test_the_raw_delta_as_reward_warns_that_loops_earn_reward() -> None:
    how = dataclasses.replace(HOW, reward="delta")
    with pytest.warns(UserWarning, match="over and over"):
        got = reward(np.zeros(3, np.float32), np.array([0.0, 0.3, NAN]), True, 10.0, how)
    share = 1 / (10.0 * HOW.horizon_s)  # a delta is over the horizon, a reward over a frame
    np.testing.assert_allclose(got, [0.3 * share, 0.0, 0.0], rtol=1e-6)


def test_success_is_told_one_frame_before_it_is_seen_and_done_at_the_last() -> None:
    data = source((0, 5))
    found = frame_columns(data, {0: scored(data, [0.0, 0.5, 1.0], done_prob=[0, 0, 1])}, HOW)
    assert found["next.success"].tolist() == [False, False, False, True, True]
    assert found["next.done"].tolist() == [False, False, False, False, True]


def test_segments_do_not_mix() -> None:
    data = source((0, 3), (3, 3))
    found = frame_columns(
        data, {0: scored(data, [0.0, 1.0, 0.0, 1.0], done_prob=[0, 1, 0, 1])}, HOW
    )
    np.testing.assert_allclose(found["progress"], [0, 0.5, 1, 0, 0.5, 1])
    assert found["next.reward"][2] == 0.0  # 1 for being done, less the potential that is left
    assert found["next.success"].tolist() == [False, True, True, False, True, True]


def test_episodes_that_were_not_scored_say_nothing() -> None:
    found = frame_columns(source((0, 4)), {}, HOW)
    assert np.isnan(found["progress"]).all()
    assert not found["progress.confidence"].any()
    assert not found["progress.scored"].any()
    assert not found["next.reward"].any()
    assert found["next.done"].tolist() == [False, False, False, True]


def test_figures_of_an_episode_that_falls_back() -> None:
    data = source((0, 9))  # scored at 0, 2, 4, 6, 8
    columns = scored(
        data, [0.0, 0.6, 0.2, 0.2, 0.9], delta=[0.0, 0.6, -0.7, 0.0, 0.9], trend=[0, 1, -1, 0, 1],
        done_prob=[0.0, 0.0, 0.0, 0.0, 0.9],
    )  # fmt: skip
    got = episode_metrics(data, 0, columns, HOW)
    # ranks 1 4 2.5 2.5 5 against 1 2 3 4 5: covariance 6.5, variances 9.5 and 10
    assert got["labels/voc"] == pytest.approx(6.5 / math.sqrt(95))
    assert got["labels/negative_rate"] == pytest.approx(1 / 4)
    assert got["labels/max_regression"] == pytest.approx(0.4)
    assert got["labels/stagnation_ratio"] == pytest.approx(2 / 5)
    assert got["labels/success_prob"] == pytest.approx(0.9)
    assert got["labels/first_done_frame"] == 8
    assert got["labels/review"] is False


@pytest.mark.parametrize(
    "changes",
    [
        {"done_prob": [0.0, 0.5]},  # unsure
        {"progress": [0.0, NAN], "done_prob": [0.0, 1.0]},  # silent
        {"progress": [0.0, 0.1], "done_prob": [0.0, 1.0]},  # at odds
        {"progress": [0.0, 1.0], "done_prob": [0.0, 1.0], "match": [0.2, 0.2]},  # out of place
    ],
)
def test_doubtful_episodes_are_flagged(changes: dict[str, list[float]]) -> None:
    data = source((0, 3))
    columns = scored(data, changes.pop("progress", [0.0, 0.5]), **changes)
    assert episode_metrics(data, 0, columns, HOW)["labels/review"] is True


def test_smoothing_looks_both_ways_and_keeps_silence() -> None:
    time_s = np.arange(5) * 0.2
    got = smoothed(time_s, np.array([0.0, 0.0, 1.0, 0.0, NAN], np.float32), 0.2)
    assert got[1] > 0
    assert got[2] < 1
    assert np.isnan(got[4])
    np.testing.assert_allclose(smoothed(time_s, np.full(5, 0.3, np.float32), 0.5), 0.3, rtol=1e-6)
