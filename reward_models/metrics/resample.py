"""Bootstrap intervals of metrics: tasks are resampled, then the episodes within each task.

A metric is prepared once for a set of episodes and is then a function of the number of times each
was drawn; so hundreds of samples cost little.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from reward_models.metrics.episodes import Episodes

SAMPLES = 200
TAIL = 0.025
"""Share of the samples left out on each side: 95 % lie within."""


class Draw(NamedTuple):
    """One resampled evaluation set."""

    task: np.ndarray
    """i64 [k], the tasks drawn: positions in `Episodes.tasks`."""
    weight: np.ndarray
    """f64 [k, n], how often each episode of that task was drawn."""


Statistic = Callable[[Draw], float]
"""A metric of a resampled set; NaN where it is undefined."""
Weighted = Callable[[np.ndarray], float]
"""A metric of frames, or of episodes, as a function of their weights."""


def whole(episodes: Episodes) -> Draw:
    """Return the set itself: every task once, every episode once."""
    task = np.arange(len(episodes.tasks))
    return Draw(task, (episodes.task_of == task[:, None]).astype(np.float64))


def draws(episodes: Episodes, rng: np.random.Generator, samples: int = SAMPLES) -> Iterator[Draw]:
    """Yield sets drawn with replacement: tasks first, then episodes within each task drawn."""
    members = [np.flatnonzero(episodes.task_of == t) for t in range(len(episodes.tasks))]
    for _ in range(samples):
        task = rng.integers(len(members), size=len(members))
        weight = np.zeros((len(task), len(episodes.task)))
        for row, t in enumerate(task):
            chosen = rng.choice(members[t], size=len(members[t]))
            weight[row] = np.bincount(chosen, minlength=len(episodes.task))
        yield Draw(task, weight)


def interval_over(statistic: Statistic, samples: Iterable[Draw]) -> tuple[float, float]:
    """Return the 95 % interval of a prepared metric over resampled sets."""
    values = np.array([statistic(draw) for draw in samples])
    values = values[~np.isnan(values)]
    if not len(values):
        return float("nan"), float("nan")
    low, high = np.quantile(values, [TAIL, 1 - TAIL])
    return float(low), float(high)


def mean_over_tasks(values: np.ndarray) -> Statistic:
    """Return the mean over tasks of the mean over their episodes of `values` f64 [n].

    Episodes with NaN do not count, nor do tasks that have no other episodes.
    """
    valid = ~np.isnan(values)
    filled = np.where(valid, values, 0.0)

    def statistic(draw: Draw) -> float:
        count = draw.weight @ valid
        return _mean((draw.weight @ filled)[count > 0] / count[count > 0])

    return statistic


def each_task(episodes: Episodes, build: Callable[[np.ndarray], Weighted]) -> Statistic:
    """Return the mean over tasks of a metric that is computed for each task.

    Given the episodes of a task, i64 [m], `build` returns its metric as a function of their weights
    f64 [m]. Tasks where it is NaN do not count.
    """
    members = [np.flatnonzero(episodes.task_of == t) for t in range(len(episodes.tasks))]
    metrics = [build(chosen) for chosen in members]

    def statistic(draw: Draw) -> float:
        rows = zip(draw.task, draw.weight, strict=True)
        values = np.array([metrics[t](weight[members[t]]) for t, weight in rows])
        return _mean(values[~np.isnan(values)])

    return statistic


def over_frames(episodes: Episodes, metric: Weighted) -> Statistic:
    """Return a metric of all frames together, a function of their weights f64 [f]."""
    return lambda draw: metric(draw.weight.sum(0)[episodes.episode])


def over_episodes(metric: Weighted) -> Statistic:
    """Return a metric of all episodes together, a function of their weights f64 [n]."""
    return lambda draw: metric(draw.weight.sum(0))


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else float("nan")
