"""Turns spreads and logits into probabilities by logistic fits on validation tasks; numpy only."""

from dataclasses import dataclass

import numpy as np

WITHIN = 0.1
"""`confidence` is the probability that progress is within this distance of the truth."""
CLASS_WEIGHTS = (2.0, 1.0, 1.0)
"""Weights of regress, stagnation and progress in the fit of the trend."""
RIDGE = 1e-6
"""Per row: enough to keep separable data finite, too little to flatten weights of -12."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Fitted numbers; the defaults are for a reward model that was not calibrated."""

    done: tuple[float, float] = (0.0, 1.0)
    """Offset and factor of the done logit."""
    confidence: tuple[float, ...] = (3.0, -12.0, -12.0, 0.0)
    """Weights of 1, spread, disagreement, and distance from the middle, on the logit."""
    trend: tuple[float, ...] = (0.0, 1.0, 0.0, 0.0, 0.0)
    """Weights of 1, the logits of progress and regress (both minus stagnation), the compared change
    and the change of the curve, on the logit of progress; mirrored, on that of regress."""

    def __post_init__(self) -> None:
        for name, count in (("confidence", 4), ("trend", 5)):
            if len(getattr(self, name)) != count:
                raise ValueError(
                    f"{name}: got {len(getattr(self, name))} weights, expected {count}"
                )
        for name in ("done", "confidence", "trend"):
            if not np.isfinite(getattr(self, name)).all():
                raise ValueError(f"{name}: got {getattr(self, name)}, expected finite numbers")


def features(value: np.ndarray, spread: np.ndarray, disagreement: np.ndarray) -> np.ndarray:
    """Return the features of confidence, f64 [n, 4]."""
    middle = 1.0 - 2.0 * np.abs(value - 0.5)
    return np.stack([np.ones_like(value), spread, disagreement, middle], 1).astype(np.float64)


def trend_features(
    logits: np.ndarray, difference: np.ndarray, change: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the features of regress and of progress, f64 [n, 5] each: the same, mirrored.

    They are made of logits [n, 3] of regress, stagnation and progress, and of the change over the
    horizon [n] as compared and as of the fused curve.
    """
    regress, progress = logits[:, 0] - logits[:, 1], logits[:, 2] - logits[:, 1]
    ones = np.ones_like(regress)
    return (
        np.stack([ones, regress, progress, -difference, -change], 1).astype(np.float64),
        np.stack([ones, progress, regress, difference, change], 1).astype(np.float64),
    )


def trend_probability(
    weights: tuple[float, ...], backward: np.ndarray, forward: np.ndarray
) -> np.ndarray:
    """Return probabilities of regress, stagnation, progress [n, 3] for `trend_features`."""
    logit = np.stack([backward @ weights, np.zeros(len(backward)), forward @ weights], 1)
    odds = np.exp(logit - logit.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def fit_trend(
    backward: np.ndarray, forward: np.ndarray, trend: np.ndarray, steps: int = 50
) -> tuple[float, ...]:
    """Return the weights that fit `trend` (0, 1, 2) [n] best, with classes balanced.

    Regress is rare and costs most if missed, so it counts twice: these probabilities favour the
    rare classes. A conditional logit (McFadden 1974), by Newton's method.
    """
    count = np.bincount(trend, minlength=3)
    weight = (np.array(CLASS_WEIGHTS) * len(trend) / (3.0 * np.maximum(count, 1)))[trend]
    w = np.array(Calibration().trend)
    start, strength = w.copy(), 1e-4 * len(trend)
    ridge = strength * np.eye(len(w))

    def cost(w: np.ndarray) -> float:
        p = trend_probability(tuple(w), backward, forward)[np.arange(len(trend)), trend]
        return float(
            -weight @ np.log(np.maximum(p, 1e-300)) + 0.5 * strength * np.sum((w - start) ** 2)
        )

    for _ in range(steps):
        p = trend_probability(tuple(w), backward, forward)
        mean = p[:, :1] * backward + p[:, 2:] * forward
        hit = (trend == 0)[:, None] * backward + (trend == 2)[:, None] * forward
        gradient = weight @ (mean - hit) + ridge @ (w - start)
        curvature = (backward.T * (weight * p[:, 0])) @ backward
        curvature += (forward.T * (weight * p[:, 2])) @ forward
        curvature += ridge - (mean.T * weight) @ mean
        step = np.linalg.solve(curvature, gradient)
        # Far from the optimum a full Newton step overshoots: backtrack.
        while cost(w - step) > cost(w) - 1e-4 * gradient @ step and np.abs(step).max() > 1e-8:
            step = 0.5 * step
        w = w - step
        if np.abs(step).max() < 1e-8:
            break
    return tuple(float(v) for v in w)


def sigmoid(logit: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-logit)) without overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * logit))


def fit_logistic(x: np.ndarray, y: np.ndarray, steps: int = 50) -> np.ndarray:
    """Return the weights w [k] that maximise the likelihood of bool `y` [n] under sigmoid(x @ w).

    Newton's method with a small ridge, so that separable data give finite weights.

    Raises:
        ValueError: there are no rows.
    """
    if not len(x):
        raise ValueError("nothing to calibrate on: 0 frames, expected some of every task")
    x = np.asarray(x, np.float64)
    w = np.zeros(x.shape[1])
    ridge = RIDGE * len(x) * np.eye(x.shape[1])
    for _ in range(steps):
        p = sigmoid(x @ w)
        gradient = x.T @ (p - y) + ridge @ w
        step = np.linalg.solve((x * (p * (1 - p))[:, None]).T @ x + ridge, gradient)
        w = w - np.clip(step, -5.0, 5.0)
        if np.abs(step).max() < 1e-8:
            break
    return w


def fit(
    *,
    value: np.ndarray,
    spread: np.ndarray,
    disagreement: np.ndarray,
    done_logit: np.ndarray,
    trend: tuple[np.ndarray, np.ndarray],
    progress: np.ndarray,
    success: np.ndarray,
    true_trend: np.ndarray,
) -> Calibration:
    """Fit on frames of validation tasks, shape [n] each.

    `trend` is the result of `trend_features`; `progress`, `success` (bool) and `true_trend` (0
    regress, 1 stagnation, 2 progress) are the truth, all others predictions.
    """
    right = np.abs(value - progress) <= WITHIN
    offset = np.stack([np.ones_like(done_logit), done_logit], 1)
    intercept, factor = fit_logistic(offset, success).tolist()
    return Calibration(
        done=(intercept, factor),
        trend=fit_trend(*trend, true_trend),
        confidence=tuple(
            float(v) for v in fit_logistic(features(value, spread, disagreement), right)
        ),
    )
