"""Controls: what each may know, what it makes of it, and what none of them can."""

from dataclasses import replace

import numpy as np
import pytest

from reward_models.metrics import controls, outcome, progress
from reward_models.metrics.episodes import Episodes
from tests.fake_reward_models import judged, value

RED, BLUE = "press the red button", "press the blue button"


def recorded(rng: np.random.Generator, episodes: int = 20, frames: int = 12) -> Episodes:
    """Return episodes that end at success or a little short of it, of two tasks."""
    ends = np.where(np.arange(episodes) % 4 == 3, 0.6, 1.0)
    truth = [end * np.linspace(0, 1, frames) ** rng.uniform(0.5, 2) for end in ends]
    return judged(truth, task=["push" if i % 2 else "pick" for i in range(episodes)])


def test_a_clock_is_in_perfect_order_and_knows_no_outcome() -> None:
    said = controls.clock(recorded(np.random.default_rng(0)))
    assert value(progress.voc, said) == pytest.approx(1.0)
    assert value(outcome.outcome_auroc, said) == 0.5
    assert value(outcome.outcome_tau, said) == 0.0
    assert value(outcome.false_done_rate, said) == 1.0


def test_a_clock_by_hand() -> None:
    said = controls.clock(judged([[0, 0, 0], [0]]))
    np.testing.assert_allclose(said.value, [0.0, 0.5, 1.0, 0.0])
    # the horizon is one frame: it always goes forward
    assert progress.predicted_direction(said.trend).tolist() == [1, 2, 2, 1]


def test_a_constant_answers_with_the_averages_of_the_training_episodes() -> None:
    train = judged([[0.0, 0.5, 0.5, 1.0]])
    fitted = controls.fit_constant(train)
    assert fitted == controls.Constant(value=0.5, done_prob=0.25, confidence=0.5)
    said = controls.constant(fitted, recorded(np.random.default_rng(0)))
    assert set(said.value.tolist()) == {0.5}
    assert value(progress.truth_correlation, said) == 0.0
    assert value(outcome.outcome_auroc, said) == 0.5


def test_the_classifier_alone_takes_done_for_progress() -> None:
    said = controls.classifier_only(judged([[0.3, 0.4]], done=[[0.1, 0.9]]))
    np.testing.assert_allclose(said.value, [0.1, 0.9])
    np.testing.assert_allclose(said.delta, [0.0, 0.8], atol=1e-6)


def test_a_control_keeps_the_truth_and_the_names() -> None:
    episodes = recorded(np.random.default_rng(0))
    said = controls.clock(episodes)
    assert said.task == episodes.task
    np.testing.assert_array_equal(said.progress, episodes.progress)
    np.testing.assert_array_equal(said.success, episodes.success)


# --- pixels --------------------------------------------------------------------------------------


def test_small_pictures_are_means_of_blocks() -> None:
    images = np.zeros((1, 1, 4, 4, 3), np.uint8)
    images[0, 0, :2, 2:, 0] = 200
    images[0, 0, 0, 0, 1] = 8
    small = controls.shrink(images, 2).reshape(2, 2, 3)
    assert small[0, 1].tolist() == [200, 0, 0]
    assert small[0, 0].tolist() == [0, 2, 0]
    assert not small[1].any()


def test_sizes_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="images are 6 x 6 px, expected multiples of 4"):
        controls.shrink(np.zeros((1, 1, 6, 6, 3), np.uint8), 4)


@pytest.mark.parametrize("seed", range(3))
def test_the_falling_fit_is_that_of_scipy(seed: int) -> None:
    optimize = pytest.importorskip("scipy.optimize")
    rng = np.random.default_rng(seed)
    x, y = np.arange(40.0), rng.random(40) - 0.02 * np.arange(40)
    place, level = controls.falling(x, y)
    expected = optimize.isotonic_regression(y, increasing=False).x
    np.testing.assert_allclose(np.interp(x, place, level), expected)


def test_the_falling_fit_takes_equal_places_together() -> None:
    place, level = controls.falling(np.array([0.0, 1.0, 1.0, 2.0]), np.array([1.0, 0.0, 1.0, 0.6]))
    # means 1, 0.5, 0.6: the last two rise, so they share (0.5 * 2 + 0.6) / 3
    assert place.tolist() == [0, 1, 2]
    np.testing.assert_allclose(level, [1.0, 1.6 / 3, 1.6 / 3])


def filmed(episodes: Episodes) -> np.ndarray:
    """Return pixels that move from dark to the goal as true progress does, uint8 [f, 4]."""
    return np.rint(np.outer(episodes.progress, [0, 60, 120, 240])).astype(np.uint8)


def test_where_pixels_show_progress_their_distance_tells_it() -> None:
    rng = np.random.default_rng(0)
    train, test = recorded(rng), recorded(rng)
    fitted = controls.fit_pixels(train, filmed(train), train.task)
    said = controls.pixel_distance(fitted, test, filmed(test), test.task)
    assert value(progress.truth_error, said) < 0.02
    assert value(outcome.outcome_auroc, said) == 1.0
    assert value(outcome.done_auroc, said) == 1.0


def test_every_instruction_has_a_goal_of_its_own_and_an_unknown_one_that_of_its_task() -> None:
    train = judged([[0, 1], [0, 1]], task=["press", "press"])
    pixels = np.array([[0, 0], [200, 0], [0, 0], [0, 200]], np.uint8)
    fitted = controls.fit_pixels(train, pixels, (RED, BLUE))
    assert fitted.goal[RED].tolist() == [200, 0]
    assert fitted.goal[BLUE].tolist() == [0, 200]
    assert fitted.goal["press"].tolist() == [100, 100]
    test = judged([[1, 1]], task=["press"])
    end = np.array([[200, 0], [0, 200]], np.uint8)
    red = controls.pixel_distance(fitted, test, end, (RED,))
    assert red.value[0] == pytest.approx(1.0)
    assert red.value[1] < 0.5
    other = controls.pixel_distance(fitted, test, end, ("press the lamp",))
    assert other.value[0] == other.value[1]


def test_without_a_success_there_is_no_goal() -> None:
    train = judged([[0, 0.5], [0, 1]], task=["push", "pick"])
    with pytest.raises(ValueError, match="no successful episode of push"):
        controls.fit_pixels(train, np.zeros((4, 3), np.uint8), train.task)


def test_a_task_that_was_not_trained_on_is_refused() -> None:
    train = judged([[0, 1]], task=["push"])
    other = judged([[0, 1]], task=["pick"])
    fitted = controls.fit_pixels(train, np.zeros((2, 3), np.uint8), train.task)
    with pytest.raises(ValueError, match="not fitted on pick, only on push"):
        controls.pixel_distance(fitted, other, np.zeros((2, 3), np.uint8), other.task)


# --- proprioception ------------------------------------------------------------------------------


def moved(episodes: Episodes, rng: np.random.Generator) -> np.ndarray:
    """Return a joint that swings with progress, and one that does not care; f32 [f, 2]."""
    swing = np.sin(3 * episodes.progress)
    return np.stack([swing, rng.standard_normal(len(swing))], 1).astype(np.float32)


def test_proprioception_tells_what_the_arm_tells_and_no_more() -> None:
    rng = np.random.default_rng(0)
    train, test = recorded(rng, 60), recorded(rng, 20)
    fitted = controls.fit_proprio(train, moved(train, rng), rng)
    said = controls.proprio_only(fitted, test, moved(test, rng))
    # sin(3 p) folds over at p = 0.52: it cannot tell p from 1.05 - p
    error = value(progress.truth_error, said)
    flat = value(progress.truth_error, controls.constant(controls.fit_constant(train), test))
    assert 0.05 < error < flat
    assert 0.5 < value(outcome.done_auroc, said) <= 1.0


def test_where_the_arm_tells_all_the_fit_is_close() -> None:
    rng = np.random.default_rng(0)
    train, test = recorded(rng, 60), recorded(rng, 20)
    fitted = controls.fit_proprio(train, train.progress[:, None], rng)
    said = controls.proprio_only(fitted, test, test.progress[:, None])
    assert value(progress.truth_error, said) < 0.02
    assert said.confidence[0] > 0.95
    assert np.all((said.done_prob >= 0) & (said.done_prob <= 1))


def test_the_features_are_a_function_of_the_generator() -> None:
    train = recorded(np.random.default_rng(0))
    arm = train.progress[:, None]
    a, b = (controls.fit_proprio(train, arm, np.random.default_rng(5)) for _ in range(2))
    np.testing.assert_array_equal(a.weight["push"], b.weight["push"])


def test_predictions_do_not_look_at_what_was_said_or_at_the_truth() -> None:
    rng = np.random.default_rng(0)
    train, test = recorded(rng), recorded(rng)
    arm, hidden = test.progress[:, None], replace(
        test, progress=np.zeros_like(test.progress), success=np.zeros_like(test.success)
    )  # fmt: skip
    fitted = controls.fit_proprio(train, train.progress[:, None], rng)
    for control in (controls.clock, lambda e: controls.proprio_only(fitted, e, arm)):
        np.testing.assert_array_equal(control(test).value, control(hidden).value)
