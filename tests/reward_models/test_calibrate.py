"""Logistic fits: known weights come back, separable data stay finite."""

import numpy as np
import pytest

from reward_models.core import calibration
from reward_models.core.calibration import Calibration


def test_the_logistic_curve_does_not_overflow() -> None:
    np.testing.assert_allclose(calibration.sigmoid(np.array([-1e4, 0.0, 1e4])), [0.0, 0.5, 1.0])
    assert calibration.sigmoid(np.array([np.log(3.0)]))[0] == pytest.approx(0.75)


def test_a_share_becomes_its_logit() -> None:
    # 3 of 4 rows: the likeliest constant logit is ln 3
    w = calibration.fit_logistic(np.ones((4, 1)), np.array([True, True, True, False]))
    assert w[0] == pytest.approx(np.log(3), abs=0.02)


def test_known_weights_come_back() -> None:
    rng = np.random.default_rng(0)
    x = np.stack([np.ones(40_000), rng.standard_normal(40_000)], 1)
    y = rng.random(40_000) < calibration.sigmoid(x @ [-1.0, 2.0])
    np.testing.assert_allclose(calibration.fit_logistic(x, y), [-1.0, 2.0], atol=0.08)


def test_separable_data_give_finite_weights() -> None:
    x = np.stack([np.ones(10), np.arange(10.0)], 1)
    w = calibration.fit_logistic(x, np.arange(10) >= 5)
    assert np.isfinite(w).all()
    assert ((x @ w > 0) == (np.arange(10) >= 5)).all()


def test_nothing_to_fit_on_is_refused() -> None:
    with pytest.raises(ValueError, match="0 frames"):
        calibration.fit_logistic(np.zeros((0, 2)), np.zeros(0, bool))


def test_the_features_of_confidence_by_hand() -> None:
    found = calibration.features(np.array([0.0, 0.75]), np.array([0.1, 0.2]), np.array([0.3, 0.4]))
    np.testing.assert_allclose(found, [[1, 0.1, 0.3, 0.0], [1, 0.2, 0.4, 0.5]])


def test_confidence_and_done_are_fitted_to_what_came_true() -> None:
    rng = np.random.default_rng(0)
    n = 20_000
    truth = rng.random(n)
    spread, disagreement = rng.uniform(0.0, 0.3, (2, n))
    # A value is 0.09 off where it is right, 0.11 where it is not: that shows in nothing else.
    expected = calibration.sigmoid(3.0 - 12.0 * spread - 12.0 * disagreement)
    off = np.where(rng.random(n) < expected, 0.09, 0.11)
    value = truth + rng.choice([-1, 1], n) * off
    logit = rng.normal(0, 2, n)
    success = rng.random(n) < calibration.sigmoid(-1.0 + 0.5 * logit)
    nothing = np.zeros(n)
    fitted = calibration.fit(
        value=value, spread=spread, disagreement=disagreement, done_logit=logit, progress=truth,
        success=success, true_trend=np.ones(n, np.int64),
        trend=calibration.trend_features(np.zeros((n, 3)), nothing, nothing),
    )  # fmt: skip
    np.testing.assert_allclose(fitted.done, (-1.0, 0.5), atol=0.1)
    assert fitted.trend != Calibration().trend  # fitted, too
    seen = calibration.features(value, spread, disagreement)
    confidence = calibration.sigmoid(seen @ np.array(fitted.confidence))
    assert np.abs(confidence - expected).mean() < 0.02


def test_the_default_is_surer_of_narrow_and_agreeing_predictions() -> None:
    seen = calibration.features(np.full(3, 0.5), np.array([0, 0.2, 0]), np.array([0, 0, 0.2]))
    sure, wide, divided = calibration.sigmoid(seen @ np.array(Calibration().confidence))
    assert sure > 0.9
    assert max(wide, divided) < sure - 0.3


def test_the_default_trend_is_that_of_the_logits() -> None:
    logits = np.array([[0.3, -0.2, 1.1], [2.0, 0.0, -1.0]])
    seen = calibration.trend_features(logits, np.array([0.5, -0.5]), np.array([0.1, 0.2]))
    expected = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    found = calibration.trend_probability(Calibration().trend, *seen)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_a_fitted_trend_is_mirrored_with_the_order() -> None:
    rng = np.random.default_rng(0)
    logits, change = rng.normal(size=(5, 3)), rng.normal(size=5)
    weights = (-0.5, 1.2, 0.3, 4.0, 2.0)
    forth = calibration.trend_probability(
        weights, *calibration.trend_features(logits, change, 0.5 * change)
    )
    back = calibration.trend_probability(
        weights, *calibration.trend_features(logits[:, ::-1], -change, -0.5 * change)
    )
    np.testing.assert_allclose(forth, back[:, ::-1], atol=1e-12)


def test_rare_regress_is_found_though_the_logits_are_shy_of_it() -> None:
    rng = np.random.default_rng(1)
    trend = rng.choice(3, p=(0.04, 0.6, 0.36), size=4000)
    change = (trend - 1) * 0.2 + rng.normal(0, 0.05, 4000)
    # Logits that never say regress; what was compared still tells.
    logits = np.stack([np.full(4000, -3.0), np.zeros(4000), 8.0 * change], 1)
    seen = calibration.trend_features(logits, change, change)
    weights = calibration.fit_trend(*seen, trend)
    found = calibration.trend_probability(weights, *seen).argmax(1)
    assert (found[trend == 0] == 0).mean() > 0.9
    assert (found[trend == 1] == 1).mean() > 0.9
    plain = calibration.trend_probability(Calibration().trend, *seen).argmax(1)
    assert (plain[trend == 0] == 0).mean() < 0.1
