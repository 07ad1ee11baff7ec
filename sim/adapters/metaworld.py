"""MetaWorld's 50 tasks, with their scripted experts.

The goal of an episode is drawn from its seed and number, as in MetaWorld. Images and the expert
see it, the proprioception does not.
"""

import warnings

import numpy as np
from _drawing import Drawing, DrawnWorld
from _rows import Rows, episode_seed
from metaworld.env_dict import ENV_CLS_MAP
from metaworld.policies import ENV_POLICY_MAP

CORNER = ((0.0, 0.68, 0.1), 1.15, 150.0, -35.0)
"""A view from the front. MetaWorld's corner cameras are upside down and far away."""

HIDDEN = (
    ("right_arm_base_link", "pedestal", "head", "right_l0"),
    ("head", "right_l1", "right_l2", "right_l3", "right_l4", "right_l5"),
)
"""Links that a camera never sees: half of the geometry."""

GREATEST_REWARD = 10.0

LIMIT = 250
LIMITS = {"push-back-v3": 400}
"""Control steps after which an episode is truncated: half of MetaWorld's 500, which lowers the
experts' success only in the task of `LIMITS`."""


class World(DrawnWorld):
    """One task; options: `task`, `instruction`, `draw` (False leaves the images black)."""

    channels = ("dx", "dy", "dz", "grip")
    low, high = (-1.0,) * 4, (1.0,) * 4
    control_hz = 80
    cameras = ("corner", "gripper")
    has_expert = True
    privileged_state_names = tuple("state/%d" % i for i in range(39))

    def __init__(self, options):
        # The experts' actions exceed the limits all the time.
        warnings.filterwarnings("ignore", message=r"Constant\(s\) may be too high")
        name = options["task"]
        self.max_episode_steps = LIMITS.get(name, LIMIT)
        self.instructions = [options["instruction"]]
        env = ENV_CLS_MAP[name]()
        # Replaces `set_task`, which unpickles; the goal is observable so that the expert gets it.
        env._set_task_called = True
        env._freeze_rand_vec, env.seeded_rand_vec = False, True
        env._partially_observable = False
        env.__dict__.pop("sawyer_observation_space", None)  # cached while the goal was hidden
        self._env, self._expert = env, ENV_POLICY_MAP[name]
        self._draws = options.get("draw", True)
        self._drawing = Drawing(env.model, (CORNER, "gripperPOV"), (96, 96), hidden=HIDDEN)

    def reset(self, seed, index):
        """Begin the episode of this seed and number; return the instruction."""
        self._env.seed(episode_seed(seed, index))
        self._seen, _ = self._env.reset()
        self._policy = self._expert()
        self._solved, self._progress = False, 0.0
        return self.instructions[0]

    def step(self, action):
        """Move the hand by up to a centimetre per axis; return False: nothing is irrevocable."""
        self._seen, reward, _, _, info = self._env.step(action)
        self._solved = bool(info["success"])
        self._progress = float(np.clip(reward / GREATEST_REWARD, 0.0, 0.99))
        return False

    def success(self):
        """Return MetaWorld's success after the last step."""
        return self._solved

    def progress(self):
        """Return the share of the greatest reward; 1 exactly with success."""
        return 1.0 if self._solved else self._progress

    def observe(self):
        """Return images u8 [2, 96, 96, 3] and the hand's position and opening, f32 [4]."""
        proprio = self._seen[:4].astype(np.float32)
        if not self._draws:
            return np.zeros(self.image_shape, np.uint8), proprio
        data = self._env.data
        # A step leaves the goals' marks where the model file has them.
        for site, position in self._env._target_site_config:
            data.site(site).xpos = position
        return self._drawing.draw(data), proprio

    def privileged_state(self):
        """Return MetaWorld's own state with the goal, f64 [39]."""
        return self._seen

    def expert(self):
        """Return the scripted expert's action, f64 [4]."""
        return np.clip(self._policy.get_action(self._seen), self.low, self.high)


def open_adapter(options):
    """Return the adapter of the rows in `options`."""
    return Rows(World, options)
