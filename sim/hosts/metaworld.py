"""MetaWorld's 50 tasks, with their scripted experts.

The goal of an episode is drawn from its seed and its number, as MetaWorld draws its own. It is
shown in the pictures and to the expert, never in the proprioception.
"""

import warnings

import numpy as np
from _drawing import Drawing
from _rows import Rows, episode_seed
from metaworld.env_dict import ENV_CLS_MAP
from metaworld.policies import ENV_POLICY_MAP

CORNER = ((0.0, 0.68, 0.1), 1.15, 150.0, -35.0)
"""A view of the work from in front of it. MetaWorld's own corner cameras stand on their heads and
show the work small."""

HIDDEN = (
    ("right_arm_base_link", "pedestal", "head", "right_l0"),
    ("head", "right_l1", "right_l2", "right_l3", "right_l4", "right_l5"),
)
"""Links that a camera never sees, which are half of what there is to draw."""

GREATEST_REWARD = 10.0


class World:
    """One task; options: `task`, `instruction`, `draw` (False leaves the pictures black)."""

    max_episode_steps = 250
    image_shape = (2, 96, 96, 3)
    channels = ("dx", "dy", "dz", "grip")
    low, high = (-1.0,) * 4, (1.0,) * 4
    control_hz = 80
    cameras = ("corner", "gripper")
    has_expert = True

    def __init__(self, options):
        # The experts warn of what they do all the time: ask for more than the limits.
        warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")
        name = options["task"]
        self.instructions = [options["instruction"]]
        env = ENV_CLS_MAP[name]()
        # What `set_task` would unpickle; the goal is seen so that it reaches the expert.
        env._set_task_called = True
        env._freeze_rand_vec, env.seeded_rand_vec = False, True
        env._partially_observable = False
        env.__dict__.pop("sawyer_observation_space", None)  # cached while the goal was hidden
        self._env, self._expert = env, ENV_POLICY_MAP[name]
        self._draws = options.get("draw", True)
        self._drawing = Drawing(env.model, (CORNER, "gripperPOV"), (96, 96), HIDDEN)

    def reset(self, seed, index):
        """Begin the episode of this seed and number; return the instruction."""
        self._env.seed(episode_seed(seed, index))
        self._seen, _ = self._env.reset()
        self._policy = self._expert()
        self._solved, self._progress = False, 0.0
        return self.instructions[0]

    def step(self, action):
        """Move the hand by up to a centimetre an axis; return False, for nothing is irrevocable."""
        self._seen, reward, _, _, info = self._env.step(action)
        self._solved = bool(info["success"])
        self._progress = float(np.clip(reward / GREATEST_REWARD, 0.0, 0.99))
        return False

    def success(self):
        """Return what MetaWorld calls success after the last step."""
        return self._solved

    def progress(self):
        """Return the share of the greatest reward; 1 exactly with success."""
        return 1.0 if self._solved else self._progress

    def observe(self):
        """Return pictures u8 [2, 96, 96, 3] and the hand's position and opening, f32 [4]."""
        proprio = self._seen[:4].astype(np.float32)
        if not self._draws:
            return np.zeros(self.image_shape, np.uint8), proprio
        data = self._env.data
        # A step leaves the goals' marks where the model file has them.
        for site, position in self._env._target_site_config:
            data.site(site).xpos = position
        return self._drawing.draw(data), proprio

    def expert(self):
        """Return the scripted expert's action, f64 [4]."""
        return np.clip(self._policy.get_action(self._seen), self.low, self.high)

    def close(self):
        """Close the pictures and the simulator."""
        self._drawing.close()
        self._env.close()


def open_host(options):
    """Return the host of some such worlds."""
    return Rows(World, options)
