"""The two tasks of gym-aloha: two ViperX arms, positions of joints as actions; no expert.

The suite renders three large images with shadows at every step; that is off here, and two small
ones are rendered instead.
"""

import numpy as np
from _drawing import Drawing, DrawnWorld
from _rows import Rows, episode_seed
from dm_control.rl.control import PhysicsError
from gym_aloha.env import AlohaEnv

JOINTS = ("waist", "shoulder", "elbow", "forearm_roll", "wrist_angle", "wrist_rotate")
LOW = (-3.14158, -1.85005, -1.76278, -3.14158, -1.8675, -3.14158, 0.0)
HIGH = (3.14158, 1.25664, 1.6057, 3.14158, 2.23402, 3.14158, 1.0)
"""Limits of an arm's joints in radians, from its model, and of its hand: 0 closed, 1 open."""

GREATEST_REWARD = 4


class World(DrawnWorld):
    """One task; options: `task`, which is "transfer_cube" or "insertion", and `instruction`."""

    max_episode_steps = 400
    channels = tuple(
        "%s_%s" % (side, joint) for side in ("left", "right") for joint in (*JOINTS, "gripper")
    )
    low, high = LOW * 2, HIGH * 2
    control_hz = 50
    cameras = ("top", "angle")

    def __init__(self, options):
        self.instructions = [options["instruction"]]
        self._env = AlohaEnv(options["task"], obs_type="pixels_agent_pos")
        self._physics, task = self._env._env.physics, self._env._env.task
        undrawn = {"top": np.zeros((0, 0, 3), np.uint8)}
        task.get_observation = lambda physics: {"qpos": task.get_qpos(physics), "images": undrawn}
        self._drawing = Drawing(self._physics.model.ptr, self.cameras, (96, 96))

    def reset(self, seed, index):
        """Begin the episode of this seed and number; return the instruction."""
        seen, _ = self._env.reset(seed=episode_seed(seed, index))
        self._seen, self._reward = seen["agent_pos"], 0
        return self.instructions[0]

    def step(self, action):
        """Move both arms; return whether the physics failed."""
        try:
            seen, self._reward, _, _, _ = self._env.step(action)
        except PhysicsError:
            return True
        self._seen = seen["agent_pos"]
        return False

    def success(self):
        """Return whether the last of the suite's four stages is reached."""
        return self._reward == GREATEST_REWARD

    def progress(self):
        """Return the reached stage of the suite's four as a share."""
        return self._reward / GREATEST_REWARD

    def observe(self):
        """Return images u8 [2, 96, 96, 3] and positions of the channels, f32 [14]."""
        return self._drawing.draw(self._physics.data.ptr), self._seen.astype(np.float32)


def open_adapter(options):
    """Return the adapter of the rows in `options`."""
    return Rows(World, options)
