"""Intervals of figures: the bootstrap over tasks, and over the episodes of each task drawn.

A figure is prepared once for a set of episodes and is then a function of how often each of them was
drawn; so hundreds of rounds cost little.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from reward_models.metrics.episodes import Episodes

ROUNDS = 200
TAIL = 0.025
"""Share of the rounds left out on each side: 95 % lie within."""


class Draw(NamedTuple):
    """One resampled evaluation set."""

    task: np.ndarray
    """i64 [k], the tasks drawn: positions in `Episodes.tasks`."""
    weight: np.ndarray
    """f64 [k, n], how often each episode of that task was drawn."""


Statistic = Callable[[Draw], float]
"""A figure of a set of episodes; NaN where the set has nothing to say about it."""
Metric = Callable[[Episodes], Statistic]
Weighted = Callable[[np.ndarray], float]
"""A figure of frames, or of episodes, as a function of their weights."""


def whole(episodes: Episodes) -> Draw:
    """Return the set itself: every task once, every episode once."""
    task = np.arange(len(episodes.tasks))
    return Draw(task, (episodes.task_of == task[:, None]).astype(np.float64))


def draws(episodes: Episodes, rng: np.random.Generator, rounds: int = ROUNDS) -> Iterator[Draw]:
    """Yield sets drawn with replacement: tasks first, then episodes within each task drawn."""
    members = [np.flatnonzero(episodes.task_of == t) for t in range(len(episodes.tasks))]
    for _ in range(rounds):
        task = rng.integers(len(members), size=len(members))
        weight = np.zeros((len(task), len(episodes.task)))
        for row, t in enumerate(task):
            chosen = rng.choice(members[t], size=len(members[t]))
            weight[row] = np.bincount(chosen, minlength=len(episodes.task))
        yield Draw(task, weight)


def value(metric: Metric, episodes: Episodes) -> float:
    """Return a figure of a set of episodes."""
    return metric(episodes)(whole(episodes))


def interval(
    metric: Metric, episodes: Episodes, rng: np.random.Generator, rounds: int = ROUNDS
) -> tuple[float, float]:
    """Return the 95 % interval of a figure; NaN where it is defined in no round."""
    return interval_over(metric(episodes), draws(episodes, rng, rounds))


def interval_over(statistic: Statistic, rounds: Iterable[Draw]) -> tuple[float, float]:
    """Return the 95 % interval of a prepared figure over given draws."""
    found = np.array([statistic(draw) for draw in rounds])
    found = found[~np.isnan(found)]
    if not len(found):
        return float("nan"), float("nan")
    low, high = np.quantile(found, [TAIL, 1 - TAIL])
    return float(low), float(high)


# --- the three ways figures are put together -----------------------------------------------------


def mean_over_tasks(piece: np.ndarray) -> Statistic:
    """Return the mean over tasks of the mean over their episodes of `piece` f64 [n].

    Episodes whose piece is NaN do not count; nor do tasks without any other.
    """
    known = ~np.isnan(piece)
    filled = np.where(known, piece, 0.0)

    def statistic(draw: Draw) -> float:
        count = draw.weight @ known
        return _mean((draw.weight @ filled)[count > 0] / count[count > 0])

    return statistic


def each_task(episodes: Episodes, build: Callable[[np.ndarray], Weighted]) -> Statistic:
    """Return the mean over tasks of a figure that each task has by itself.

    Args:
        episodes: The set.
        build: Given the episodes of a task, i64 [m], prepares its figure: a function of their
            weights f64 [m]. Tasks where that is NaN do not count.
    """
    members = [np.flatnonzero(episodes.task_of == t) for t in range(len(episodes.tasks))]
    figures = [build(chosen) for chosen in members]

    def statistic(draw: Draw) -> float:
        rows = zip(draw.task, draw.weight, strict=True)
        found = np.array([figures[t](weight[members[t]]) for t, weight in rows])
        return _mean(found[~np.isnan(found)])

    return statistic


def over_frames(episodes: Episodes, figure: Weighted) -> Statistic:
    """Return a figure of all frames together, a function of their weights f64 [f]."""
    return lambda draw: figure(draw.weight.sum(0)[episodes.episode])


def over_episodes(figure: Weighted) -> Statistic:
    """Return a figure of all episodes together, a function of their weights f64 [n]."""
    return lambda draw: figure(draw.weight.sum(0))


def _mean(found: np.ndarray) -> float:
    return float(found.mean()) if len(found) else float("nan")
