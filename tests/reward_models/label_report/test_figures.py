"""Figures of labels: those of the truth against hand-made cases, and who should be seen first."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from reward_models.label_report import doubt, figures
from reward_models.label_report.read import Episode, read
from tests.reward_models.label_report.made_up import write_labelled


def episode(progress: list[float], **fields) -> Episode:
    """Return an episode at 10 frames/s of which every frame was measured."""
    frames = len(progress)
    values = np.array(progress, np.float32)
    usual = {
        "index": 0, "task": "push", "fps": 10.0, "progress": values,
        "delta": np.zeros(frames, np.float32), "trend": np.zeros(frames, np.int8),
        "done_prob": np.zeros(frames, np.float32), "match": np.ones(frames, np.float32),
        "confidence": np.full(frames, 0.9, np.float32), "scored": np.ones(frames, np.bool_),
        "success_prob": float(values[-1]), "voc": 1.0, "negative_rate": 0.0,
        "max_regression": 0.0, "stagnation_ratio": 0.0, "first_done_frame": None, "review": False,
    }  # fmt: skip
    return Episode(**{**usual, **fields})


def test_confidence_is_right_where_progress_lies_within_a_tenth_of_the_truth():
    truth = np.array([0.0, 0.0, 0.5, 0.5], np.float32)
    e = episode([0.05, 0.2, np.nan, 0.45], truth=truth)
    predicted, right = figures.confidence_pairs([e])
    # The third frame was abstained from: nothing was said that could be right.
    assert right.tolist() == [True, False, True]
    # Two of three are right, 0.9 was promised.
    assert figures.calibration_error(predicted, right) == pytest.approx(0.9 - 2 / 3)


def test_interpolated_frames_are_no_evidence():
    scored = np.array([True, False, True])
    e = episode([0, 0.5, 1], scored=scored, success=np.array([False, True, True]))
    assert len(figures.done_pairs([e])[0]) == 2


def test_reliability_puts_predictions_into_ten_bins():
    bins = figures.reliability(
        np.array([0.05, 0.11, 0.19, 1.0]), np.array([False, False, True, True])
    )
    assert [(round(b.predicted, 3), b.observed, b.frames) for b in bins] == [
        (0.05, 0.0, 1), (0.15, 0.5, 2), (1.0, 1.0, 1)
    ]  # fmt: skip


def test_false_gain_counts_what_labels_climb_while_the_truth_stands_still():
    # 2 s of standing still on which labels climb 0.4, then 0.5 s of true progress.
    truth = np.array([0.2] * 21 + [0.4, 0.6, 0.8, 0.9, 1.0], np.float32)
    labels = np.concatenate([np.linspace(0.2, 0.6, 21), np.linspace(0.7, 1.0, 5)])
    assert figures.false_gain([episode(labels.tolist(), truth=truth)]) == pytest.approx(0.2)
    assert np.isnan(figures.false_gain([episode(labels.tolist())]))


def test_auroc_of_episodes_needs_both_outcomes():
    ends = [np.array([False, won]) for won in (True, True, False)]
    episodes = [
        episode([0, p], success_prob=p, success=end)
        for p, end in zip((0.9, 0.4, 0.6), ends, strict=True)
    ]
    # Of two pairs of a success and a failure, one is in order.
    truth = figures.task_figures("all", episodes).truth
    assert truth.outcome_auroc == 0.5
    assert truth.successes == 2
    assert np.isnan(figures.task_figures("won", episodes[:2]).truth.outcome_auroc)


def test_means_leave_out_what_is_not_known():
    episodes = [episode([0.0, 0.5]), episode([np.nan, np.nan], voc=float("nan"))]
    whole = figures.task_figures("all", episodes)
    assert (whole.final_progress, whole.voc, whole.abstained) == (0.5, 1.0, 0.5)
    assert whole.truth is None


def test_reasons_say_in_numbers_what_is_odd():
    assert doubt.reasons(episode([0, 1])) == []
    half = np.full(2, 0.3, np.float32)
    found = doubt.reasons(
        episode([0.1, np.nan], success_prob=0.95, confidence=half, match=half, first_done_frame=1)
    )
    assert found == [
        "success 0.95, but progress ends at 0.10",
        "confidence 0.30 on average",
        "abstained on 50% of the frames",
        "the scene may not fit the instruction, match 0.30",
        "done at 0.1 s, but not at the end",
    ]
    assert doubt.reasons(episode([0, 0.5])) == ["success 0.50 is undecided"]
    assert doubt.reasons(episode([0, 1], review=True)) == ["marked for review by the labeller"]


def test_a_person_sees_the_most_doubtful_first_and_the_report_the_most_wrong():
    sure = episode([0, 1], index=0, truth=np.array([0, 0.2], np.float32))
    unsure = replace(sure, index=1, confidence=np.full(2, 0.2, np.float32), truth=sure.progress)
    unknown = replace(sure, index=2, truth=None)
    assert [e.index for e in doubt.most_doubtful([sure, unknown, unsure])] == [1, 0, 2]
    assert [e.index for e in doubt.worst([sure, unknown, unsure])] == [0, 1, 2]


def test_a_data_set_is_read_with_its_labels_and_truth(tmp_path: Path):
    data = read(write_labelled(tmp_path / "data"))
    assert [e.behaviour for e in data.episodes] == ["expert", "freeze", "drop", "random"]
    right, frozen, unsure, _ = data.episodes
    np.testing.assert_allclose(right.progress, right.truth)
    # Frozen after 1 s of 4: at frame 10 of 39.
    assert frozen.truth[-1] == pytest.approx(10 / 39)
    assert frozen.final_progress == 1.0
    assert (unsure.abstained.sum(), unsure.review) == (20, True)
    assert (right.first_done_frame, frozen.first_done_frame) == (39, None)
    assert right.success_prob == pytest.approx(0.9)


def test_a_data_set_without_labels_or_truth(tmp_path: Path, fake_dataset: Path):
    with pytest.raises(ValueError, match=r"no column 'progress\.delta', so it is not labelled"):
        read(fake_dataset)
    data = read(write_labelled(tmp_path / "data", truth=False))
    assert {e.truth is None and e.behaviour is None for e in data.episodes} == {True}
    with pytest.raises(ValueError, match="got episode 7, expected one of the 4 labelled ones"):
        data.episode(7)
