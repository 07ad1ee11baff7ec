"""A point that is pushed to a goal, with faults on demand: for tests and studies of faults.

Options: `fault`, one of `FAULTS` or "", and `at`: "open", or which step goes wrong.
"""

import ctypes
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "sim" / "adapters"))
from _rows import Rows, episode_seed

FAULTS = ("raise", "exit", "quit", "crash", "hang", "hold", "chatter", "helper")
PX = 16
REACHED = 0.15
GOALS = ("push the point to the left", "push the point to the right")


class World:
    """Positions in [-1, 1], one of two goals; leaving the field is an irrevocable failure."""

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
        """Draw position and goal of the point."""
        rng = np.random.default_rng(episode_seed(seed, index))
        self.position = rng.uniform(-0.6, 0.6, 2)
        side = int(rng.integers(2))
        self.goal = np.array([-0.9 + 1.8 * side, 0.0])
        self._begin = self._distance()
        return GOALS[side]

    def step(self, action):
        """Move by a fifth of the action; fail at the chosen step."""
        self._steps += 1
        if self._steps == self._at:
            misbehave(self._fault)
        self.position = self.position + 0.2 * action
        return bool(np.abs(self.position).max() > 1.2)

    def success(self):
        """Return whether the point is at the goal."""
        return bool(self._distance() < REACHED)

    def progress(self):
        """Return the completed share of the distance; 1 exactly with success."""
        if self.success():
            return 1.0
        return float(np.clip(1.0 - self._distance() / self._begin, 0.0, 0.99))

    def observe(self):
        """Return images with a white point, and its position."""
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
    """Fail as simulators do."""
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
    if fault == "hold":  # while it holds the global interpreter lock
        re.match(r"(a+)+$", "a" * 60 + "b")
    if fault == "chatter":
        print("x" * 1000000)
    if fault == "helper":
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1e6)"])
        os._exit(7)


def open_adapter(options):
    """Return the adapter of the rows in `options`."""
    return Rows(World, options)
