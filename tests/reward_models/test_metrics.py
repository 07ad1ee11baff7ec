"""Figures of reward models on sets small enough to work out by hand."""

from dataclasses import replace

import jaxtyping
import numpy as np
import pytest

from reward_models.core.truth import frame_at_lag, trend_of
from reward_models.metrics import confidence, grounding, outcome, progress
from reward_models.metrics.episodes import Episodes, with_predictions
from reward_models.metrics.resample import Statistic, draws, interval_over, whole
from tests.fake_reward_models import judged, value
from vla.contracts.types import Progress

NAN = float("nan")


def of(statistic: Statistic, episodes: Episodes) -> float:
    return statistic(whole(episodes))


def interval(metric, episodes: Episodes, rng: np.random.Generator, samples: int = 200):
    return interval_over(metric(episodes), draws(episodes, rng, samples))


# --- the set -------------------------------------------------------------------------------------


def test_arrays_that_do_not_describe_one_set_are_refused() -> None:
    good = judged([[0, 1], [0, 1]])
    with pytest.raises(ValueError, match="behaviour: got 1 names, expected 2"):
        replace(good, behaviour=("expert",))
    with pytest.raises(ValueError, match="every number from 0 to 1, got 1 different"):
        replace(good, episode=np.zeros(4, np.int64))
    with pytest.raises(ValueError, match="in order of episode"):
        replace(good, time_s=np.array([0.0, 1.0, 1.0, 0.0]))


def test_arrays_of_other_length_are_refused_where_shapes_are_not_checked() -> None:
    good = judged([[0, 1], [0, 1]])
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(ValueError, match="confidence: got 3 rows, expected 4"):
            replace(good, confidence=np.zeros(3, np.float32))
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_the_newest_frame_a_horizon_earlier_is_of_the_same_episode() -> None:
    episode, time_s = np.array([0, 0, 0, 1, 1]), np.array([0.0, 0.4, 1.4, 0.0, 1.0])
    # 1.4 - 1 = 0.4 is frame 1; frame 1 has none and takes the first; frame 4 goes back to 3
    assert frame_at_lag(episode, time_s, 1.0).tolist() == [0, 0, 1, 3, 3]


def test_the_last_word_counts_and_silence_is_no_claim() -> None:
    episodes = judged([[0.1, 0.7, NAN], [NAN, NAN]], progress=[[0, 0, 0], [0, 0]])
    np.testing.assert_allclose(episodes.final_value, [0.7, 0.0])


def test_what_a_reward_model_says_takes_its_place() -> None:
    half = np.full(2, 0.5, np.float32)
    said = Progress(
        value=half, delta=half, trend=np.full((2, 3), 1 / 3, np.float32), done_prob=half,
        match=half, confidence=half,
    )  # fmt: skip
    episodes = with_predictions(judged([[0, 1]]), said)
    assert episodes.value.tolist() == [0.5, 0.5]
    assert episodes.progress.tolist() == [0.0, 1.0]


# --- order ---------------------------------------------------------------------------------------


def test_order_counts_successful_episodes_and_a_mean_over_tasks() -> None:
    # push: +1 and (ranks 2 1 3 with time) 1 - 6 * 2 / 24 = 0.5; pick: -1; the failure is left out
    episodes = judged(
        [[0.1, 0.2, 0.9], [0.2, 0.1, 0.9], [0.9, 0.5, 0.1], [0.1, 0.2, 0.3]],
        success=[[0, 0, 1], [0, 0, 1], [0, 0, 1], [0, 0, 0]],
        task=["push", "push", "pick", "pick"],
    )
    assert value(progress.voc, episodes) == pytest.approx((0.75 - 1.0) / 2)


def test_frames_without_a_value_are_left_out_of_the_order() -> None:
    episodes = judged([[0.1, NAN, 0.5, 0.9]], success=[[0, 0, 0, 1]])
    assert value(progress.voc, episodes) == pytest.approx(1.0)


def test_reversed_videos_must_fall_and_the_harmonic_mean_takes_both() -> None:
    own = judged([[0.0, 0.5, 1.0]])
    falling = judged([[0.9, 0.1, 0.3]], success=[[1, 0, 0]])  # ranks 3 1 2: 1 - 6 * 6 / 24 = -0.5
    assert value(progress.vroc, falling) == pytest.approx(0.5)
    assert of(progress.voc_f1(own, falling), own) == pytest.approx(2 * 0.5 / 1.5)
    clock = judged([[0.0, 0.5, 1.0]], success=[[1, 0, 0]])
    assert value(progress.vroc, clock) == pytest.approx(-1.0)
    assert of(progress.voc_f1(own, clock), own) == 0.0


def test_against_the_truth_hundredths_are_ties() -> None:
    # 0.501 and 0.499 both round to 0.50: value and truth tie where the truth does, so order is full
    episodes = judged([[0.1, 0.501, 0.499, 0.8]], progress=[[0, 0.5, 0.5, 1]])
    assert value(progress.truth_correlation, episodes) == pytest.approx(1.0)
    assert value(progress.truth_error, episodes) == pytest.approx((0.1 + 0 + 0 + 0.2) / 4)


def test_a_task_whose_truth_stands_still_does_not_count() -> None:
    episodes = judged(
        [[0.1, 0.9], [0.1, 0.9]], progress=[[0, 1], [0.3, 0.3]], task=["push", "wait"]
    )
    assert value(progress.truth_correlation, episodes) == pytest.approx(1.0)
    assert value(progress.truth_error, episodes) == pytest.approx(0.1)


def test_a_constant_correlates_with_nothing() -> None:
    assert value(progress.truth_correlation, judged([[0.5, 0.5]], progress=[[0, 1]])) == 0.0


def test_coverage_and_the_share_of_negative_changes() -> None:
    episodes = judged(
        [[0.1, NAN, 0.3, 1.0], [0.2]], success=[[0, 0, 0, 1], [0]],
        delta=np.array([0.0, NAN, -0.1, 0.7, -1.0], np.float32),
    )  # fmt: skip
    assert value(progress.coverage, episodes) == pytest.approx(4 / 5)
    assert value(progress.negative_rate, episodes) == pytest.approx(1 / 3)  # the failure is out


# --- direction -----------------------------------------------------------------------------------


def test_a_change_of_the_dead_band_is_still_stagnation() -> None:
    change = np.array([-0.06, -0.05, 0.0, 0.05, 0.06])
    assert trend_of(change).tolist() == [0, 1, 1, 1, 2]


def test_level_probabilities_are_stagnation() -> None:
    trend = np.array([[1, 1, 1], [0.5, 0.0, 0.5], [0.6, 0.0, 0.4]], np.float32)
    assert progress.predicted_direction(trend).tolist() == [1, 2, 0]


def test_the_true_direction_looks_back_over_the_horizon() -> None:
    # 0.5 s apart and a horizon of 1 s: two frames back
    episodes = judged([[0.0, 0.04, 0.08, 0.08, 0.0]], period_s=0.5)
    assert progress.true_direction(episodes).tolist() == [1, 1, 2, 1, 0]


def test_direction_by_hand() -> None:
    # truth of the frames after the first: + + 0 - -; said: + 0 0 - 0
    episodes = judged(
        [[0, 0.5, 1, 1, 0.5, 0]], success=[[0, 0, 1, 1, 0, 0]], trend=[[0, 2, 1, 1, 0, 1]]
    )
    # f1: progress 2 * 1 / (2 + 1), stagnation 2 * 1 / (1 + 3), regress 2 * 1 / (2 + 1)
    assert value(progress.direction_f1, episodes) == pytest.approx((2 / 3 + 1 / 2 + 2 / 3) / 3)
    assert value(progress.regress_recall, episodes) == pytest.approx(1 / 2)
    assert value(progress.regress_precision, episodes) == pytest.approx(1.0)


def test_directions_that_never_occur_do_not_count() -> None:
    episodes = judged([[0, 0.5, 1]], trend=[[1, 2, 2]])
    assert value(progress.direction_f1, episodes) == pytest.approx(1.0)
    assert np.isnan(value(progress.regress_recall, episodes))
    assert np.isnan(value(progress.regress_precision, episodes))


def test_false_gain_is_the_climb_above_the_beginning_per_second() -> None:
    assert progress.gain_per_s(np.array([0.2, 0.5, 0.1]), np.array([0, 1, 3])) == pytest.approx(0.1)
    assert progress.gain_per_s(np.array([0.2, 0.1]), np.array([0, 1])) == 0.0
    assert progress.gain_per_s(np.array([NAN, NAN]), np.array([0, 1])) == 0.0
    frozen = judged([[0.2, 0.4, 0.6], [0.5, NAN, 0.5]])
    assert value(progress.false_gain, frozen) == pytest.approx((0.2 + 0.0) / 2)


# --- done ----------------------------------------------------------------------------------------


def test_done_is_ranked_over_all_frames() -> None:
    episodes = judged(
        [[0, 0, 0], [0, 0]], success=[[0, 0, 1], [0, 1]], done=[[0.1, 0.6, 0.9], [0.2, 0.6]]
    )
    # positives 0.9, 0.6; negatives 0.1, 0.6, 0.2: 3 + 2.5 of 6
    assert value(outcome.done_auroc, episodes) == pytest.approx(5.5 / 6)
    # 0.9: precision 1, recall 1/2; 0.6: precision 2/3
    assert value(outcome.done_auprc, episodes) == pytest.approx((1 + 2 / 3) / 2)
    assert value(outcome.done_false_positives, episodes) == pytest.approx(1 / 3)


def test_latency_counts_frames_and_what_is_never_found_counts_to_the_end() -> None:
    episodes = judged(
        [[0] * 5, [0] * 4, [0] * 3, [0] * 2],
        success=[[0, 1, 1, 1, 1], [0, 0, 1, 1], [0, 1, 1], [0, 0]],
        done=[[0, 0, 0, 0.5, 0.9], [0.9, 0.9, 0.9, 0.9], [0, 0, 0], [0.9, 0.9]],
    )
    # 2 frames late; at once; never, with 2 frames left; never true, so left out
    assert value(outcome.done_latency, episodes) == pytest.approx((2 + 0 + 2) / 3)
    assert value(outcome.done_recall, episodes) == pytest.approx(2 / 3)


def test_undone_is_found_by_who_saw_it_come_and_go() -> None:
    undone = [0, 1, 1, 0, 0]
    episodes = judged(
        [[0] * 5] * 4, success=[undone, undone, undone, [0, 1, 0, 0, 1]],
        done=[[0, 0, 0.9, 0.9, 0.1], [0, 0.9, 0.9, 0.9, 0.9], [0] * 5, [0.9] * 5],
    )  # fmt: skip
    # found; still called done; never called done; complete again at the end, so left out
    assert value(outcome.undone_recall, episodes) == pytest.approx(1 / 3)


# --- outcome -------------------------------------------------------------------------------------


def outcomes() -> Episodes:
    """Success, success, partial, failure of one task; a lone success of another."""
    return judged(
        [[0, 0.9], [0, 0.5], [0, 0.5], [0, 0.6], [0, 0.1]],
        progress=[[0, 1], [0, 1], [0, 0.3], [0.9, 0.29], [0, 1]],
        done=[[0, 0.9], [0, 0.9], [0, 0.6], [0, 0.1], [0, 0.9]],
        task=["push"] * 4 + ["pick"],
        behaviour=["expert", "expert", "near_miss", "drop", "near_miss"],
    )


def test_levels_are_those_of_the_end() -> None:
    assert outcome.outcome_level(outcomes()).tolist() == [2, 2, 1, 0, 2]


def test_outcomes_are_ranked_within_their_task() -> None:
    # successes 0.9, 0.5 against 0.5, 0.6: 2 + 0.5 of 4; by done all 4 of 4
    assert value(outcome.outcome_auroc, outcomes()) == pytest.approx(2.5 / 4)
    assert value(outcome.outcome_auroc_of_done, outcomes()) == pytest.approx(1.0)
    # pairs: 0.9 above both (+2), 0.5 level with 0.5 (0), below 0.6 (-1), and partial 0.5 below 0.6
    assert value(outcome.outcome_tau, outcomes()) == pytest.approx((2 - 1 - 1) / 5)


def test_a_near_miss_that_succeeds_is_none() -> None:
    assert value(outcome.near_miss_rate, outcomes()) == 1.0
    assert value(outcome.false_done_rate, outcomes()) == 0.5  # the near miss, not the drop


# --- language and consistency --------------------------------------------------------------------


def test_language_by_hand() -> None:
    own = judged([[0, 0.9], [0, 0.4]], success=[[0, 1], [0, 0]])
    foreign = judged([[0.3, 0.05], [0, 0.2]], success=[[0, 0], [0, 0]], done=[[0, 0.4], [0, 0]])
    assert of(grounding.diagonal_margin(own, foreign), own) == pytest.approx(0.85)
    assert value(grounding.mismatch_rejected, foreign) == pytest.approx(1 / 2)
    assert value(grounding.mismatch_rejected_throughout, foreign) == 0.0
    silent = replace(foreign, value=np.full(4, NAN, np.float32))
    assert value(grounding.mismatch_rejected_throughout, silent) == 1.0


def test_a_match_of_its_own_words_stands_above_that_of_foreign_ones() -> None:
    own = judged([[0, 0], [0]], match=np.array([0.9, 0.6, 0.5], np.float32))
    foreign = judged([[0], [0]], match=np.array([0.6, 0.1], np.float32))
    # 0.9 > both, 0.6 = 0.6 (half) and > 0.1, 0.5 < 0.6 and > 0.1: 4.5 of 6
    assert of(grounding.match_auroc(own, foreign), own) == pytest.approx(4.5 / 6)


def test_paths_agree_by_how_far_apart_they_are_where_two_or_more_know() -> None:
    own = judged([[0.0, 0.5, 1.0]])
    curves = np.array([[0.0, 0.5, 1.0], [0.1, NAN, 0.8], [0.0, NAN, 0.9]], np.float32)
    assert of(grounding.path_agreement(own, curves), own) == pytest.approx(1 - (0.1 + 0.2) / 2)


def test_mirror_and_rate_errors_are_the_largest_of_the_set() -> None:
    own = judged([[0.0, 0.5], [0.25, 1.0]])
    changes = np.array([[0, 0.5, 0, 0.75], [0, -0.5, 0, -0.5]], np.float32)
    assert of(grounding.mirror_error(own, changes), own) == pytest.approx(0.25)
    other = np.array([0.0, NAN, 0.5, 1.0], np.float32)
    assert of(grounding.rate_error(own, other), own) == pytest.approx(0.25)


# --- confidence ----------------------------------------------------------------------------------


def test_calibration_error_by_hand() -> None:
    # bin 0.9: two rows of 0.95, one right: |0.95 - 0.5|; bin 0.2: one row of 0.2, wrong: 0.2
    error = confidence.calibration_error(
        np.array([0.95, 0.95, 0.2]), np.array([True, False, False])
    )
    assert error(np.ones(3)) == pytest.approx((2 * 0.45 + 0.2) / 3)
    assert error(np.array([1.0, 0.0, 0.0])) == pytest.approx(0.05)


def test_confidence_is_held_against_being_within_a_tenth() -> None:
    episodes = judged(
        [[0.5, 0.5, NAN]], progress=[[0.55, 0.75, 0.5]],
        confidence=np.array([0.8, 0.3, 0.9], np.float32),
    )  # fmt: skip
    assert value(confidence.confidence_ece, episodes) == pytest.approx((0.2 + 0.3) / 2)


def test_probabilities_that_come_true_as_often_as_they_say_have_no_error() -> None:
    episodes = judged([[0] * 4], success=[[1, 0, 0, 0]], done=[[0.25] * 4])
    assert value(confidence.done_ece, episodes) == pytest.approx(0.0, abs=1e-7)


def test_the_error_at_a_coverage_leaves_out_the_least_confident() -> None:
    miss, sure = np.array([0.0] * 9 + [1.0]), np.array([0.9] * 9 + [0.1])
    assert confidence.risk(sure, miss)(np.ones(10), 0.9)[0] == pytest.approx(0.0)
    assert confidence.risk(1 - sure, miss)(np.ones(10), 0.9)[0] == pytest.approx(1 / 9)


def test_equal_confidence_has_the_mean_error_at_every_coverage() -> None:
    at_coverage, area = confidence.risk(np.ones(4), np.array([0.0, 0.0, 0.0, 1.0]))(np.ones(4), 0.9)
    assert at_coverage == pytest.approx(0.25)
    assert area == pytest.approx(0.25)


def test_the_area_is_the_mean_error_over_coverages() -> None:
    # error over coverage c: 0 up to 1/2, then (c - 1/2) / c; its mean is 1/2 - ln(2) / 2
    _, area = confidence.risk(np.array([0.9, 0.1]), np.array([0.0, 1.0]))(np.ones(2), 0.9)
    assert area == pytest.approx(0.5 - 0.5 * np.log(2), abs=1e-3)


# --- intervals -----------------------------------------------------------------------------------


def random_set(rng: np.random.Generator, episodes: int = 40) -> Episodes:
    truth = [np.clip(np.linspace(0, end, 10), 0, 1) for end in rng.uniform(0.2, 1.4, episodes)]
    said = [np.clip(row + rng.normal(0, 0.2, 10), 0, 1) for row in truth]
    return judged(said, progress=truth, task=[f"task {i % 3}" for i in range(episodes)])


def test_every_round_draws_as_many_tasks_and_episodes_of_them_as_there_are() -> None:
    episodes = judged([[0, 1]] * 5, task=["a", "a", "a", "b", "b"])
    for draw in draws(episodes, np.random.default_rng(0), 20):
        assert len(draw.task) == 2
        for task, weight in zip(draw.task, draw.weight, strict=True):
            members = episodes.task_of == task
            assert weight[members].sum() == members.sum()
            assert not weight[~members].any()


def test_equal_generators_give_equal_intervals_that_hold_the_figure() -> None:
    episodes = random_set(np.random.default_rng(0))
    for metric in (progress.truth_error, outcome.outcome_auroc, outcome.outcome_tau):
        a, b = (interval(metric, episodes, np.random.default_rng(1), 100) for _ in range(2))
        assert a == b
        assert a[0] <= value(metric, episodes) <= a[1]


def test_the_interval_of_a_mean_of_one_task_is_that_of_the_textbook() -> None:
    # one task, n = 400 shares of 0 or 1: the standard error is sqrt(p (1 - p) / n)
    rng = np.random.default_rng(0)
    right = rng.random(400) < 0.3
    episodes = judged([[0, 0]] * 400, success=[[0, 0]] * 400, done=[[0, float(r)] for r in right])
    low, high = interval(outcome.false_done_rate, episodes, rng, 2000)
    half = 1.96 * np.sqrt(right.mean() * (1 - right.mean()) / 400)
    assert (high - low) / 2 == pytest.approx(half, rel=0.1)


def test_a_figure_that_is_never_defined_has_no_interval() -> None:
    low, high = interval(outcome.undone_recall, judged([[0, 1]]), np.random.default_rng(0), 5)
    assert np.isnan(low)
    assert np.isnan(high)
