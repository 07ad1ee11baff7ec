"""Robosuite's tasks of one Panda arm with pose control of the hand (OSC_POSE); no expert."""

import logging

import numpy as np
from _drawing import Drawing
from _hand_pose import hand
from _rows import Rows, episode_seed

# It warns of missing settings.
logging.disable(logging.WARNING)

import robosuite  # noqa: E402  its first lines already warn

OPEN_M = 0.04
"""Position of a finger when the hand is wide open."""


class World:
    """One task; options: `task`, such as "Lift", and `instruction`."""

    max_episode_steps = 400
    image_shape = (2, 96, 96, 3)
    channels = ("dx", "dy", "dz", "droll", "dpitch", "dyaw", "grip")
    low, high = (-1.0,) * 7, (1.0,) * 7
    control_hz = 20
    cameras = ("agentview", "robot0_eye_in_hand")
    has_expert = False

    def __init__(self, options):
        self.instructions = [options["instruction"]]
        controller = robosuite.load_composite_controller_config(controller="BASIC", robot="Panda")
        self._env = robosuite.make(
            options["task"],
            robots="Panda",
            controller_configs=controller,
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            control_freq=self.control_hz,
            ignore_done=True,
            reward_shaping=True,
            hard_reset=False,  # rebuilds the model, which takes half a second
            seed=0,
        )
        sim = self._env.sim
        self._data = sim.data._data
        # Collision geoms are group 0 and cover the visible ones.
        self._drawing = Drawing(sim.model._model, self.cameras, (96, 96), groups=(1,))

    def reset(self, seed, index):
        """Begin the episode of this seed and number; return the instruction."""
        drawn = np.random.default_rng(episode_seed(seed, index))
        # All samplers share this generator.
        self._env.rng.bit_generator.state = drawn.bit_generator.state
        self._seen, self._reward = self._env.reset(), 0.0
        return self.instructions[0]

    def step(self, action):
        """Move and turn the hand; return False, since nothing is irrevocable."""
        self._seen, self._reward, _, _ = self._env.step(action)
        return False

    def success(self):
        """Return the suite's success."""
        return bool(self._env._check_success())

    def progress(self):
        """Return the suite's shaped reward, which is at most 1; 1 exactly with success."""
        return 1.0 if self.success() else float(np.clip(self._reward, 0.0, 0.99))

    def observe(self):
        """Return images u8 [2, 96, 96, 3] and the hand: position, rotation and opening, f32 [7]."""
        seen = self._seen
        opening = np.abs(seen["robot0_gripper_qpos"]).mean() / OPEN_M
        proprio = hand(seen["robot0_eef_pos"], seen["robot0_eef_quat"], opening)
        return self._drawing.draw(self._data), proprio

    def close(self):
        """Close renderer and simulator."""
        self._drawing.close()
        self._env.close()


def open_adapter(options):
    """Return the adapter of the rows in `options`."""
    return Rows(World, options)
