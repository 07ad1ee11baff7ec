"""LIBERO's 130 tasks of one Panda arm (the package hf-libero); no expert.

Episodes begin where the task's own description (BDDL) lets objects be, drawn from the seed: the
benchmark's recorded initial states are pickles, which run code when read. So success differs
slightly from published results. Scenes and objects are not part of the package.
"""

import importlib.util
import logging
import os
import re
import sys
from typing import Any

import numpy as np
from _panda import PandaWorld
from _rows import Rows, episode_seed

SETTLE_STEPS = 10
"""Control steps in which objects come to rest, as in LIBERO's evaluations."""
STILL = (0.0,) * 6 + (-1.0,)

PARTS = {"spatial": 220, "object": 280, "goal": 300, "10": 520, "90": 400}
"""Part of the benchmark -> time limit of its evaluations in control steps."""


def find():
    """Return the folder of the package without importing it, since that asks questions.

    Raises:
        ValueError: its scenes and objects are missing.
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
    """Return LIBERO's wrapper of environments, with the paths of its files set."""
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
    logging.disable(logging.WARNING)  # robosuite warns of missing settings
    from libero.libero.envs.env_wrapper import ControlEnv

    return ControlEnv


def stems(folder, part):
    """Return the names of the tasks of a part, in the benchmark's order."""
    # The package of this file imports torch for the pickles.
    file = os.path.join(folder, "benchmark", "libero_suite_task_map.py")
    spec: Any = importlib.util.spec_from_file_location("libero_suite_task_map", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.libero_task_map["libero_" + part]


def instruction_of(stem):
    """Return the benchmark's instruction of a task from its name."""
    return re.sub(r"^[A-Z_]+SCENE\d+_", "", stem).replace("_", " ")


class World(PandaWorld):
    """One task; options: `task`, such as "spatial-0"."""

    def __init__(self, options):
        part, number = options["task"].split("-")
        folder = find()
        stem = stems(folder, part)[int(number)]
        self.max_episode_steps = PARTS[part]
        self.instructions = [instruction_of(stem)]
        env = import_environments(folder)(
            os.path.join(folder, "bddl_files", "libero_" + part, stem + ".bddl"),
            has_offscreen_renderer=False,
            use_camera_obs=False,
            control_freq=self.control_hz,
            ignore_done=True,
            hard_reset=False,  # rebuilds the model, which takes seconds
        )
        self.take(env)

    def reset(self, seed, index):
        """Begin the episode of this seed and number; return the instruction."""
        self._env.seed(episode_seed(seed, index))  # LIBERO uses numpy's global generator
        self._env.reset()
        # A reset does not restore this.
        gripper = self._env.robots[0].gripper
        gripper.current_action = np.zeros_like(gripper.current_action)
        for _ in range(SETTLE_STEPS):
            self.step(np.array(STILL))
        return self.instructions[0]

    def success(self):
        """Return whether all goals of the task's description hold."""
        return bool(self._env.check_success())

    def progress(self):
        """Return 1 with success and 0 before: LIBERO has no other progress."""
        return float(self.success())


def open_adapter(options):
    """Return the adapter of the rows in `options`."""
    return Rows(World, options)
