"""The lag between actions and states, also of episodes shorter than the longest lag."""

from types import SimpleNamespace

import numpy as np

from vla.data.inspection import numbers as detectors


def test_episodes_shorter_than_the_longest_lag_are_looked_at():
    rng = np.random.default_rng(0)
    action = rng.normal(size=(15, 2)).astype(np.float32)
    numbers = object.__new__(detectors.Numbers)
    for name, value in {
        "action": action,
        "state": np.concatenate([action[:1], action[:-1]]),
        "info": SimpleNamespace(num_episodes=2, offsets=np.array([0, 12, 15])),
    }.items():
        object.__setattr__(numbers, name, value)
    lag, correlation = detectors.best_lag(numbers)
    assert lag == 1
    assert correlation > 0.8
