"""LIBERO's 130 tasks of one Panda arm (the package hf-libero); no expert.

Episodes begin where the task's own description (BDDL) lets objects be, drawn from the seed: the
benchmark's recorded beginnings are pickles, which run code when read. So success is not comparable
to the digit with published figures. Scenes and objects are no part of the package.
"""

import importlib.util
import logging
import os
import re
import sys
from typing import Any

import numpy as np
from _drawing import Drawing
from _rows import Rows, episode_seed
from _turned import hand

OPEN_M = 0.04
"""Where a finger is when the hand is wide open."""
SETTLE_STEPS = 10
"""What LIBERO's evaluations wait for objects to come to rest."""
STILL = (0.0,) * 6 + (-1.0,)

PARTS = {"spatial": 220, "object": 280, "goal": 300, "10": 520, "90": 400}
"""Parts of the benchmark, and the control steps after which evaluations give up."""


def find():
    """Return the folder of the package, without importing it: it would ask questions.

    Raises:
        ValueError: its scenes and objects are not there.
    """
    package: Any = importlib.util.find_spec("libero")
    folder = os.path.join(package.submodule_search_locations[0], "libero")
    assets = os.path.join(folder, "assets")
    if not os.path.isdir(assets):
        raise ValueError(
            "libero: its scenes and objects are not in %s; where there is a network, `hf download "
            "lerobot/libero-assets --repo-type dataset --local-dir %s` fetches them"
            % (assets, assets)
        )
    return folder


def import_environments(folder):
    """Return LIBERO's wrapper of environments, told where its own files are."""
    settings = os.path.join(sys.prefix, "libero")
    os.environ["LIBERO_CONFIG_PATH"] = settings
    os.makedirs(settings, exist_ok=True)
    places = {"bddl_files": "bddl_files", "init_states": "init_files", "assets": "assets"}
    part = os.path.join(settings, "config.%d" % os.getpid())
    with open(part, "w") as file:
        file.writelines(
            "%s: %s\n" % (key, os.path.join(folder, place)) for key, place in places.items()
        )
    os.replace(part, os.path.join(settings, "config.yaml"))
    logging.disable(logging.WARNING)  # robosuite warns that nobody has written settings
    from libero.libero.envs.env_wrapper import ControlEnv

    return ControlEnv


def stems(folder, part):
    """Return the names of the tasks of a part, in the benchmark's order."""
    # The package of this file imports torch, for the pickles.
    file = os.path.join(folder, "benchmark", "libero_suite_task_map.py")
    spec: Any = importlib.util.spec_from_file_location("libero_suite_task_map", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.libero_task_map["libero_" + part]


def words(stem):
    """Return the instruction of a task as the benchmark makes it, from the task's name."""
    return re.sub(r"^[A-Z_]+SCENE\d+_", "", stem).replace("_", " ")


class World:
    """One task; options: `task`, such as "spatial-0"."""

    image_shape = (2, 96, 96, 3)
    channels = ("dx", "dy", "dz", "droll", "dpitch", "dyaw", "grip")
    low, high = (-1.0,) * 7, (1.0,) * 7
    control_hz = 20
    cameras = ("agentview", "robot0_eye_in_hand")
    has_expert = False

    def __init__(self, options):
        part, number = options["task"].split("-")
        folder = find()
        stem = stems(folder, part)[int(number)]
        self.max_episode_steps = PARTS[part]
        self.instructions = [words(stem)]
        self._env = import_environments(folder)(
            os.path.join(folder, "bddl_files", "libero_" + part, stem + ".bddl"),
            has_offscreen_renderer=False,
            use_camera_obs=False,
            control_freq=self.control_hz,
            ignore_done=True,
            hard_reset=False,  # builds the model anew, which takes seconds
        )
        sim = self._env.sim
        self._data = sim.data._data
        # What collides is group 0 and lies over what is to be seen.
        self._drawing = Drawing(sim.model._model, self.cameras, (96, 96), groups=(1,))

    def reset(self, seed, index):
        """Begin the episode of this seed and number; return the instruction."""
        self._env.seed(episode_seed(seed, index))  # numpy's global one: LIBERO has no other
        self._env.reset()
        # The one thing that a reset leaves as the last episode had it.
        gripper = self._env.robots[0].gripper
        gripper.current_action = np.zeros_like(gripper.current_action)
        for _ in range(SETTLE_STEPS):
            self.step(np.array(STILL))
        return self.instructions[0]

    def step(self, action):
        """Move and turn the hand; return False, for nothing is irrevocable."""
        self._seen, _, _, _ = self._env.step(action)
        return False

    def success(self):
        """Return whether all that the task's description asks for is so."""
        return bool(self._env.check_success())

    def progress(self):
        """Return 1 with success and 0 before: LIBERO grades nothing in between."""
        return float(self.success())

    def observe(self):
        """Return pictures u8 [2, 96, 96, 3] and the hand: position, turn and opening, f32 [7]."""
        seen = self._seen
        opening = np.abs(seen["robot0_gripper_qpos"]).mean() / OPEN_M
        proprio = hand(seen["robot0_eef_pos"], seen["robot0_eef_quat"], opening)
        return self._drawing.draw(self._data), proprio

    def close(self):
        """Close the pictures and the simulator."""
        self._drawing.close()
        if self._data is not None:
            self._env.close()
        self._data = None


def open_host(options):
    """Return the host of some such worlds."""
    return Rows(World, options)
