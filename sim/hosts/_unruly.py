"""A point that is pushed to a goal, and misbehaves when told to: for studies of faults and tests.

Options: `fault`, one of `FAULTS` or "", and `at`: "open", or which step goes wrong.
"""

import ctypes
import os
import re
import subprocess
import sys
import time

import numpy as np
from _rows import Rows, episode_seed

FAULTS = ("raise", "exit", "quit", "crash", "hang", "hold", "chatter", "helper")
PX = 16
REACHED = 0.15
GOALS = ("push the point to the left", "push the point to the right")


class World:
    """Positions in [-1, 1], one of two goals; leaving the field is a mistake for good."""

    instructions = GOALS
    max_episode_steps = 20
    image_shape = (2, PX, PX, 3)
    channels = ("x", "y")
    low, high = (-1.0, -1.0), (1.0, 1.0)
    control_hz = 10
    cameras = ("front", "wrist")
    has_expert = True

    def __init__(self, options):
        self._fault, self._at = options.get("fault", ""), options.get("at")
        self._steps = 0
        if self._at == "open":
            misbehave(self._fault)

    def reset(self, seed, index):
        """Draw where the point is, and which goal it has."""
        rng = np.random.default_rng(episode_seed(seed, index))
        self.position = rng.uniform(-0.8, 0.8, 2)
        side = int(rng.integers(2))
        self.goal = np.array([-0.9 + 1.8 * side, 0.0])
        self._begin = self._distance()
        return GOALS[side]

    def step(self, action):
        """Move by a fifth of the action; go wrong if it is time."""
        self._steps += 1
        if self._steps == self._at:
            misbehave(self._fault)
        self.position = self.position + 0.2 * action
        return bool(np.abs(self.position).max() > 1.2)

    def success(self):
        """Return whether the point is at the goal."""
        return bool(self._distance() < REACHED)

    def progress(self):
        """Return the share of the way; 1 exactly with success."""
        if self.success():
            return 1.0
        return float(np.clip(1.0 - self._distance() / self._begin, 0.0, 0.99))

    def observe(self):
        """Return pictures in which the point is white, and where it is."""
        images = np.zeros(self.image_shape, np.uint8)
        column, row = np.clip((self.position + 1.0) * PX / 2, 0, PX - 1).astype(int)
        images[:, row, column] = 255
        return images, self.position.astype(np.float32)

    def expert(self):
        """Return the action that goes straight to the goal."""
        return np.clip((self.goal - self.position) / 0.2, -1.0, 1.0)

    def close(self):
        """Do nothing."""

    def _distance(self):
        return float(np.abs(self.goal - self.position).max())


def misbehave(fault):
    """Do what simulators do now and then."""
    if fault == "raise":
        raise RuntimeError("the solver did not converge")
    if fault == "exit":
        sys.exit(3)
    if fault == "quit":
        print("licence expired")
        os._exit(7)
    if fault == "crash":
        ctypes.string_at(0)
    if fault == "hang":
        time.sleep(1e6)
    if fault == "hold":  # with the lock without which no thread of Python runs
        re.match(r"(a+)+$", "a" * 60 + "b")
    if fault == "chatter":
        print("x" * 1000000)
    if fault == "helper":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"])
        os._exit(7)


def open_host(options):
    """Return the host of some such worlds."""
    return Rows(World, options)
