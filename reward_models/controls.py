"""What a critic must beat: predictors that cannot understand, with the arrays a critic would give.

A clock, a constant, the distance of pixels to a goal picture, the done probability alone, and
proprioception without images. The language-blind control is the critic itself, told nothing. Each
control sees the truth of training episodes only.
"""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float32, UInt8

from reward_models.calibrate import WITHIN
from reward_models.metrics.episodes import Episodes
from reward_models.truth import trend_of

SMALL_PX = 16
"""Side of the pictures whose pixels are compared."""
CHUNK = 256
"""Frames made small at once: sums are wide numbers."""
FEATURES = 256
RIDGE = 1e-3
"""Ridge per row of the regression on proprioception."""


def predict(
    episodes: Episodes, value: np.ndarray, done_prob: np.ndarray, confidence: float
) -> Episodes:
    """Return `episodes` with what a control says in place of what was said.

    Change and trend are those of the value itself; nothing is known of the instruction.

    Args:
        episodes: The set.
        value: Progress [f], clipped to [0, 1].
        done_prob: [f].
        confidence: Of every frame alike.
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
    """Return the share of values that are within 0.1 of the truth: what a control may promise."""
    return float(np.mean(np.abs(value - progress) <= WITHIN))


# --- nothing to fit, or a number -----------------------------------------------------------------


def clock(episodes: Episodes) -> Episodes:
    """Return t/T, done at the end: it looks at nothing and knows how long each episode is."""
    end_s = episodes.time_s[episodes.last][episodes.episode]
    share = episodes.time_s / np.maximum(end_s, 1e-9)
    return predict(episodes, share, share >= 1.0, confidence=0.5)


def classifier_only(episodes: Episodes) -> Episodes:
    """Return the critic's own probability of being complete as its progress."""
    return predict(episodes, episodes.done_prob, episodes.done_prob, confidence=0.5)


@dataclass(frozen=True, kw_only=True)
class Constant:
    """The same answer always: averages of the training episodes."""

    value: float
    """Mean progress."""
    done_prob: float
    """Share of complete frames."""
    confidence: float
    """Share of frames within 0.1 of the mean."""


def fit_constant(train: Episodes) -> Constant:
    """Return the averages of training episodes; of what was said of them nothing is read."""
    value = float(train.progress.mean())
    return Constant(
        value=value, done_prob=float(train.success.mean()),
        confidence=_within(np.full_like(train.progress, value), train.progress),
    )  # fmt: skip


def constant(fitted: Constant, episodes: Episodes) -> Episodes:
    """Return the same answer for every frame."""
    ones = np.ones(len(episodes.time_s))
    return predict(episodes, fitted.value * ones, fitted.done_prob * ones, fitted.confidence)


# --- pixels --------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class PixelDistance:
    """Goal pictures by instruction and what distance to them means by task."""

    goal: dict[str, np.ndarray]
    """Mean last picture of successful episodes, f64 [p], by instruction and by task."""
    knots: dict[str, tuple[np.ndarray, np.ndarray]]
    """Distances, rising, and the progress of frames that far away, falling; by task."""
    done: dict[str, tuple[np.ndarray, np.ndarray]]
    """The same distances, and the share of complete frames, falling; by task."""
    confidence: float
    """Share of training frames within 0.1 of the truth."""


def shrink(images: UInt8[np.ndarray, "f v h w 3"], px: int = SMALL_PX) -> np.ndarray:
    """Return small pictures, all views side by side, uint8 [f, v * px * px * 3].

    Raises:
        ValueError: the images are no multiple of `px` high and wide.
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
        # Rows first: neighbours in memory are then added to neighbours.
        rows = part.reshape(len(part), views, px, tall, width, 3).sum(3, dtype=np.uint32)
        blocks = rows.reshape(len(part), views, px, px, wide, 3).sum(4)
        small[start : start + CHUNK] = np.rint(blocks / (tall * wide))
    return small.reshape(frames, -1)


def fit_pixels(
    train: Episodes, pixels: UInt8[np.ndarray, "f p"], instruction: tuple[str, ...]
) -> PixelDistance:
    """Fit on training episodes; distances become progress by a falling (isotonic) fit per task.

    Args:
        train: Training episodes; of what was said of them nothing is read.
        pixels: What `shrink` returns of their frames.
        instruction: Of each of the N episodes.

    Raises:
        ValueError: a task has no successful episode to take a goal from.
    """
    last = pixels[train.last].astype(np.float64)
    goal = {}
    for names in (train.task, instruction):
        for name in sorted(set(names)):
            chosen = train.succeeded & (np.array(names) == name)
            if chosen.any():
                goal[name] = last[chosen].mean(0)
    lacking = sorted(set(train.tasks) - set(goal))
    if lacking:
        raise ValueError(
            f"no successful episode of {', '.join(lacking)} to take a goal picture from; expected "
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
    """Return what the distance to the goal picture says; see `fit_pixels`.

    An instruction without a goal picture of its own has that of its task.

    Raises:
        ValueError: a task was not among the training episodes.
    """
    _check_known(episodes, fitted.knots)
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
    apart = [part - goal.get(words, goal[task]) for part, words, task in parts]
    return np.sqrt(np.concatenate([np.mean(part**2, axis=1) for part in apart])) / 255.0


def falling(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the falling curve with the least squared error (pool adjacent violators).

    Args:
        x: [n].
        y: [n].

    Returns:
        Knots for `numpy.interp`: x rising and y falling.
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


# --- proprioception ------------------------------------------------------------------------------


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
    """Fit on training episodes: progress and success from where the arm is, and nothing else.

    Random features of a Gaussian kernel (Rahimi and Recht 2007) as wide as the data.

    Args:
        train: Training episodes; of what was said of them nothing is read.
        proprio: Of their frames.
        rng: Draws the features.
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
    """Return what proprioception alone says; see `fit_proprio`.

    Raises:
        ValueError: a task was not among the training episodes.
    """
    _check_known(episodes, fitted.weight)
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


def _check_known(episodes: Episodes, known: dict) -> None:
    unknown = sorted(set(episodes.tasks) - set(known))
    if unknown:
        raise ValueError(
            f"control was not fitted on {', '.join(unknown)}, only on {', '.join(sorted(known))}; "
            "add episodes of it to the training set"
        )
