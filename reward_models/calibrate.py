"""Turns spreads and logits into probabilities: logistic fits on validation tasks; numpy only."""

from dataclasses import dataclass

import numpy as np

WITHIN = 0.1
"""A value this close to the truth counts as right: what `confidence` is the probability of."""
RIDGE = 1e-6
"""Per row: enough to keep separable data finite, too little to flatten weights of -12."""


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Fitted numbers; the defaults stand for a critic that was not calibrated."""

    done: tuple[float, float] = (0.0, 1.0)
    """Offset and factor of the done logit."""
    confidence: tuple[float, ...] = (3.0, -12.0, -12.0, 0.0)
    """Weights of 1, spread, disagreement, and distance from the middle, on the logit."""


def features(value: np.ndarray, spread: np.ndarray, disagreement: np.ndarray) -> np.ndarray:
    """Return what confidence is computed from, f64 [n, 4]."""
    middle = 1.0 - 2.0 * np.abs(value - 0.5)
    return np.stack([np.ones_like(value), spread, disagreement, middle], 1).astype(np.float64)


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
    progress: np.ndarray,
    success: np.ndarray,
) -> Calibration:
    """Fit on frames of validation tasks, shape [n] each.

    Args:
        value: Progress the scorer reports.
        spread: Its spread.
        disagreement: Of the curves it was fused from.
        done_logit: Uncalibrated.
        progress: The truth.
        success: The truth, bool.
    """
    right = np.abs(value - progress) <= WITHIN
    offset = np.stack([np.ones_like(done_logit), done_logit], 1)
    at, factor = fit_logistic(offset, success).tolist()
    return Calibration(
        done=(at, factor),
        confidence=tuple(
            float(v) for v in fit_logistic(features(value, spread, disagreement), right)
        ),
    )
