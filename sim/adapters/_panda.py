"""The Panda of robosuite and LIBERO: its hand is moved and turned, and two cameras see it."""

import numpy as np
from _drawing import Drawing, DrawnWorld
from _hand_pose import hand

OPEN_M = 0.04
"""Position of a finger when the hand is wide open."""


class PandaWorld(DrawnWorld):
    """The common part of their `World`s."""

    channels = ("dx", "dy", "dz", "droll", "dpitch", "dyaw", "grip")
    low, high = (-1.0,) * 7, (1.0,) * 7
    control_hz = 20
    cameras = ("agentview", "robot0_eye_in_hand")

    def take(self, env):
        """Take an environment of robosuite."""
        self._env, sim = env, env.sim
        self._data = sim.data._data
        # Collision geoms are group 0 and cover the visible ones.
        self._drawing = Drawing(sim.model._model, self.cameras, (96, 96), groups=(1,))

    def step(self, action):
        """Move and turn the hand; return False, since nothing is irrevocable."""
        self._seen, self._reward, _, _ = self._env.step(action)
        return False

    def observe(self):
        """Return images u8 [2, 96, 96, 3] and the hand: position, rotation and opening, f32 [7]."""
        seen = self._seen
        opening = np.abs(seen["robot0_gripper_qpos"]).mean() / OPEN_M
        proprio = hand(seen["robot0_eef_pos"], seen["robot0_eef_quat"], opening)
        return self._drawing.draw(self._data), proprio
