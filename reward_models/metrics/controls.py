"""Controls that a reward model must beat, with the arrays of a reward model.

A clock, a constant, the pixel distance to a goal image, the done probability alone, and
proprioception without images. The language-blind control is the reward model with an empty
instruction. Controls are fitted on training episodes only.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float32, UInt8

from reward_models.core.calibration import WITHIN
from reward_models.core.truth import trend_of
from reward_models.metrics.episodes import Episodes

SMALL_PX = 16
"""Side of the images whose pixels are compared."""
CHUNK = 256
"""Frames resized at once: bounds memory."""
FEATURES = 256
RIDGE = 1e-3
"""Ridge per row of the regression on proprioception."""


def predict(
    episodes: Episodes, value: np.ndarray, done_prob: np.ndarray, confidence: float
) -> Episodes:
    """Return `episodes` with the predictions of a control: progress [f] is clipped to [0, 1].

    Change and trend are those of the value; the instruction is not used.
    """
    value = np.clip(value, 0.0, 1.0).astype(np.float32)
    delta = value - value[episodes.anchor]
    ones = np.ones(len(value), np.float32)
    return replace(
        episodes, value=value, delta=delta, trend=np.eye(3, dtype=np.float32)[trend_of(delta)],
        done_prob=np.asarray(done_prob, np.float32), match=0.5 * ones,
        confidence=np.float32(confidence) * ones,
    )  # fmt: skip


def _within(value: np.ndarray, progress: np.ndarray) -> float:
    """Return the share of values within 0.1 of the truth: the confidence of a control."""
    return float(np.mean(np.abs(value - progress) <= WITHIN))


def clock(episodes: Episodes) -> Episodes:
    """Return t/T, done at the end: it knows the length of each episode."""
    end_s = episodes.time_s[episodes.last][episodes.episode]
    share = episodes.time_s / np.maximum(end_s, 1e-9)
    return predict(episodes, share, share >= 1.0, confidence=0.5)


def classifier_only(episodes: Episodes) -> Episodes:
    """Return the reward model's probability of done as progress."""
    return predict(episodes, episodes.done_prob, episodes.done_prob, confidence=0.5)


@dataclass(frozen=True, kw_only=True)
class Constant:
    """Averages over the training episodes."""

    value: float
    """Mean progress."""
    done_prob: float
    """Share of complete frames."""
    confidence: float
    """Share of frames within 0.1 of the mean."""


def fit_constant(train: Episodes) -> Constant:
    """Return the averages of training episodes; their predictions are not read."""
    value = float(train.progress.mean())
    return Constant(
        value=value, done_prob=float(train.success.mean()),
        confidence=_within(np.full_like(train.progress, value), train.progress),
    )  # fmt: skip


def constant(fitted: Constant, episodes: Episodes) -> Episodes:
    """Return the averages for every frame."""
    ones = np.ones(len(episodes.time_s))
    return predict(episodes, fitted.value * ones, fitted.done_prob * ones, fitted.confidence)


@dataclass(frozen=True, kw_only=True)
class PixelDistance:
    """Goal images by instruction, and progress over distance by task."""

    goal: dict[str, np.ndarray]
    """Mean last image of successful episodes, f64 [p], by instruction and by task."""
    knots: dict[str, tuple[np.ndarray, np.ndarray]]
    """Distances, rising, and the progress of frames that far away, falling; by task."""
    done: dict[str, tuple[np.ndarray, np.ndarray]]
    """The same distances, and the share of complete frames, falling; by task."""
    confidence: float
    """Share of training frames within 0.1 of the truth."""


def shrink(images: UInt8[np.ndarray, "f v h w 3"], px: int = SMALL_PX) -> np.ndarray:
    """Return small images, all views concatenated, uint8 [f, v * px * px * 3].

    Raises:
        ValueError: height or width of the images is no multiple of `px`.
    """
    frames, views, height, width, _ = images.shape
    if height % px or width % px:
        raise ValueError(
            f"images are {height} x {width} px, expected multiples of {px}; choose another `px`"
        )
    tall, wide = height // px, width // px
    small = np.zeros((frames, views, px, px, 3), np.uint8)
    for start in range(0, frames, CHUNK):
        part = images[start : start + CHUNK]
        # Rows first: adds neighbours in memory.
        rows = part.reshape(len(part), views, px, tall, width, 3).sum(3, dtype=np.uint32)
        blocks = rows.reshape(len(part), views, px, px, wide, 3).sum(4)
        small[start : start + CHUNK] = np.rint(blocks / (tall * wide))
    return small.reshape(frames, -1)


def fit_pixels(
    train: Episodes, pixels: UInt8[np.ndarray, "f p"], instruction: tuple[str, ...]
) -> PixelDistance:
    """Fit progress over distance on training episodes, falling (isotonic), per task.

    Pixels are the result of `shrink`; predictions are not read.

    Raises:
        ValueError: a task has no successful episode.
    """
    last = pixels[train.last].astype(np.float64)
    goal = {}
    for names in (train.task, instruction):
        for name in sorted(set(names)):
            chosen = train.succeeded & (np.array(names) == name)
            if chosen.any():
                goal[name] = last[chosen].mean(0)
    missing = sorted(set(train.tasks) - set(goal))
    if missing:
        raise ValueError(
            f"no successful episode of {', '.join(missing)} to take a goal image from, expected "
            "one of every task among the training episodes"
        )
    distance = _distance(goal, train, pixels, instruction)
    task = train.task_of[train.episode]
    knots, done, value = {}, {}, np.zeros(len(distance))
    for t, name in enumerate(train.tasks):
        at = task == t
        knots[name] = falling(distance[at], train.progress[at])
        value[at] = np.interp(distance[at], *knots[name])
        done[name] = falling(distance[at], train.success[at])
    return PixelDistance(
        goal=goal, knots=knots, done=done, confidence=_within(value, train.progress)
    )


def pixel_distance(
    fitted: PixelDistance,
    episodes: Episodes,
    pixels: UInt8[np.ndarray, "f p"],
    instruction: tuple[str, ...],
) -> Episodes:
    """Return progress by the distance to the goal image; see `fit_pixels`.

    An instruction without a goal image uses that of its task.

    Raises:
        ValueError: a task was not among the training episodes.
    """
    _check_tasks(episodes, fitted.knots)
    distance = _distance(fitted.goal, episodes, pixels, instruction)
    value, done = np.zeros(len(distance)), np.zeros(len(distance))
    task = episodes.task_of[episodes.episode]
    for t, name in enumerate(episodes.tasks):
        at = task == t
        value[at] = np.interp(distance[at], *fitted.knots[name])
        done[at] = np.interp(distance[at], *fitted.done[name])
    return predict(episodes, value, done, fitted.confidence)


def _distance(
    goal: dict[str, np.ndarray],
    episodes: Episodes,
    pixels: np.ndarray,
    instruction: tuple[str, ...],
) -> np.ndarray:
    """Return the root mean squared distance of every frame to its goal, in [0, 1], f64 [f]."""
    parts = zip(episodes.cut(pixels), instruction, episodes.task, strict=True)
    error = [part - goal.get(text, goal[task]) for part, text, task in parts]
    return np.sqrt(np.concatenate([np.mean(part**2, axis=1) for part in error])) / 255.0


def falling(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the falling curve with the least squared error (pool adjacent violators).

    The result are knots for `numpy.interp`: x rising and y falling.
    """
    place, code, count = np.unique(x, return_inverse=True, return_counts=True)
    means = np.bincount(code, y) / count
    pools: list[tuple[float, float, int]] = []  # mean, weight, places
    for mean, weight in zip(means.tolist(), count.tolist(), strict=True):
        size = 1
        while pools and pools[-1][0] <= mean:
            other, more, places = pools.pop()
            mean = (mean * weight + other * more) / (weight + more)
            weight, size = weight + more, size + places
        pools.append((mean, weight, size))
    level = np.repeat([pool[0] for pool in pools], [pool[2] for pool in pools])
    return place, level


@dataclass(frozen=True, kw_only=True)
class Proprio:
    """Ridge regressions on random Fourier features of proprioception, one per task."""

    mean: np.ndarray
    """f64 [s]."""
    scale: np.ndarray
    """f64 [s], standard deviations."""
    frequency: np.ndarray
    """f64 [s, k], drawn."""
    phase: np.ndarray
    """f64 [k], drawn."""
    weight: dict[str, np.ndarray]
    """Of features on progress and success, f64 [k + 1, 2]; by task."""
    done: dict[str, tuple[np.ndarray, np.ndarray]]
    """Regressed success, negated, and the share of complete frames, falling; by task."""
    confidence: float
    """Share of training frames within 0.1 of the truth."""


def fit_proprio(
    train: Episodes, proprio: Float32[np.ndarray, "f s"], rng: np.random.Generator
) -> Proprio:
    """Fit progress and success over proprioception on training episodes.

    Random features of a Gaussian kernel (Rahimi and Recht 2007), scaled to the data. Predictions
    are not read.
    """
    channels = proprio.shape[1]
    scale = np.maximum(proprio.std(0, dtype=np.float64), 1e-6)
    features = Proprio(
        mean=proprio.mean(0, dtype=np.float64), scale=scale,
        frequency=rng.standard_normal((channels, FEATURES)) / np.sqrt(channels),
        phase=rng.uniform(0.0, 2 * np.pi, FEATURES), weight={}, done={}, confidence=0.0,
    )  # fmt: skip
    truth = np.stack([train.progress, train.success], 1).astype(np.float64)
    task = train.task_of[train.episode]
    weight, done, right = {}, {}, np.zeros(len(task), bool)
    for t, name in enumerate(train.tasks):
        at = task == t
        x, y = _fourier(features, proprio[at]), truth[at]
        ridge = RIDGE * len(x) * np.eye(x.shape[1])
        weight[name] = np.linalg.solve(x.T @ x + ridge, x.T @ y)
        regressed = x @ weight[name]
        done[name] = falling(-regressed[:, 1], train.success[at])
        right[at] = np.abs(np.clip(regressed[:, 0], 0, 1) - y[:, 0]) <= WITHIN
    return replace(features, weight=weight, done=done, confidence=float(right.mean()))


def proprio_only(
    fitted: Proprio, episodes: Episodes, proprio: Float32[np.ndarray, "f s"]
) -> Episodes:
    """Return progress by proprioception alone; see `fit_proprio`.

    Raises:
        ValueError: a task was not among the training episodes.
    """
    _check_tasks(episodes, fitted.weight)
    value, done = np.zeros(len(proprio)), np.zeros(len(proprio))
    task = episodes.task_of[episodes.episode]
    for t, name in enumerate(episodes.tasks):
        at = task == t
        regressed = _fourier(fitted, proprio[at]) @ fitted.weight[name]
        value[at] = regressed[:, 0]
        done[at] = np.interp(-regressed[:, 1], *fitted.done[name])
    return predict(episodes, value, done, fitted.confidence)


def _fourier(fitted: Proprio, proprio: np.ndarray) -> np.ndarray:
    """Return 1 and sqrt(2 / k) cos(x w + b), f64 [n, k + 1]."""
    x = (proprio - fitted.mean) / fitted.scale
    wave = np.sqrt(2.0 / len(fitted.phase)) * np.cos(x @ fitted.frequency + fitted.phase)
    return np.concatenate([np.ones((len(wave), 1)), wave], 1)


def _check_tasks(episodes: Episodes, fitted: dict) -> None:
    missing = sorted(set(episodes.tasks) - set(fitted))
    if missing:
        raise ValueError(
            f"control was not fitted on {', '.join(missing)}, only on {', '.join(sorted(fitted))}; "
            "add episodes of it to the training set"
        )
