"""Robosuite's tasks of one Panda arm with pose control of the hand (OSC_POSE); no expert."""

import logging

import numpy as np
from _panda import PandaWorld
from _rows import Rows, episode_seed

# It warns of missing settings.
logging.disable(logging.WARNING)

import robosuite  # noqa: E402  its first lines already warn

STATE = "object-state"
"""The suite's numbers of all objects."""


class World(PandaWorld):
    """One task; options: `task`, such as "Lift", and `instruction`."""

    max_episode_steps = 400

    def __init__(self, options):
        self.instructions = [options["instruction"]]
        controller = robosuite.load_composite_controller_config(controller="BASIC", robot="Panda")
        env = robosuite.make(
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
        self.take(env)
        state = env.observation_spec().get(STATE, ())
        self.privileged_state_names = ["state/%d" % i for i in range(len(state))]

    def reset(self, seed, index):
        """Begin the episode of this seed and number; return the instruction."""
        drawn = np.random.default_rng(episode_seed(seed, index))
        # All samplers share this generator.
        self._env.rng.bit_generator.state = drawn.bit_generator.state
        self._seen, self._reward = self._env.reset(), 0.0
        return self.instructions[0]

    def privileged_state(self):
        """Return the suite's state of all objects, f64 [p]."""
        return self._seen[STATE]

    def success(self):
        """Return the suite's success."""
        return bool(self._env._check_success())

    def progress(self):
        """Return the suite's shaped reward, which is at most 1; 1 exactly with success."""
        return 1.0 if self.success() else float(np.clip(self._reward, 0.0, 0.99))


def open_adapter(options):
    """Return the adapter of the rows in `options`."""
    return Rows(World, options)
