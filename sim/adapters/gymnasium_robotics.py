"""Fetch's four tasks of Gymnasium-Robotics with two added cameras; no expert.

The suite's gripper camera sees the inside of the gripper, and its head camera no table.
"""

from typing import Any

import gymnasium
import gymnasium_robotics
import numpy as np
from _drawing import Drawing, DrawnWorld
from _rows import Rows, episode_seed

NEAR = (((1.3, 0.75, 0.5), 1.3, 132.0, -30.0), ((1.3, 0.75, 0.5), 1.2, 180.0, -40.0))
FAR = (((1.2, 0.75, 0.4), 1.9, 132.0, -35.0), ((1.2, 0.75, 0.4), 1.7, 180.0, -45.0))
"""Views of `FetchSlide`, whose table is longer."""
STATE = (("state", "observation"), ("goal", "desired_goal"))
"""Name and key of the parts of the suite's own state."""
OPEN_M = 0.1
"""Distance of the fingers when wide open."""


class World(DrawnWorld):
    """One task; options: `task`, such as "FetchPush-v4", and `instruction`."""

    max_episode_steps = 50
    channels = ("dx", "dy", "dz", "grip")
    low, high = (-1.0,) * 4, (1.0,) * 4
    control_hz = 25
    cameras = ("corner", "front")

    def __init__(self, options):
        gymnasium.register_envs(gymnasium_robotics)
        self.instructions = [options["instruction"]]
        # Without the wrappers: `_rows` has the time limit and the checks.
        env: Any = gymnasium.make(options["task"], max_episode_steps=1000).unwrapped
        self._env = env
        self.privileged_state_names = [
            "%s/%d" % (name, i)
            for name, key in STATE
            for i in range(env.observation_space[key].shape[0])
        ]
        slides = options["task"].startswith("FetchSlide")
        self._drawing = Drawing(
            self._env.model, FAR if slides else NEAR, (96, 96), hidden=(("robot0:mocap",),) * 2
        )

    def reset(self, seed, index):
        """Begin the episode of this seed and number; return the instruction."""
        self._seen, _ = self._env.reset(seed=episode_seed(seed, index))
        self._solved, self._begin = False, self._distance()
        return self.instructions[0]

    def step(self, action):
        """Move the hand; return False, since nothing is irrevocable."""
        self._seen, _, _, _, info = self._env.step(action)
        self._solved = bool(info["is_success"])
        return False

    def success(self):
        """Return whether the hand or the object is at the mark."""
        return self._solved

    def progress(self):
        """Return the completed share of the distance to the mark; 1 exactly with success."""
        if self._solved:
            return 1.0
        return float(np.clip(1.0 - self._distance() / max(self._begin, 1e-6), 0.0, 0.99))

    def observe(self):
        """Return images u8 [2, 96, 96, 3], and the hand's position and opening, f32 [4]."""
        self._env.data.site("target0").xpos = self._env.goal
        seen = self._seen["observation"]
        fingers = seen[9:11] if self._env.has_object else seen[3:5]
        proprio = np.append(seen[:3], fingers.sum() / OPEN_M).astype(np.float32)
        return self._drawing.draw(self._env.data), proprio

    def privileged_state(self):
        """Return the suite's state and the mark's position, f64 [p]."""
        return np.concatenate([self._seen[key] for _, key in STATE])

    def _distance(self):
        return float(np.linalg.norm(self._seen["achieved_goal"] - self._seen["desired_goal"]))


def open_adapter(options):
    """Return the adapter of the rows in `options`."""
    return Rows(World, options)
