"""MIKASA-Robo-VLA's tasks, with an expert that is told what is to be remembered.

SAPIEN draws with Vulkan; without a GPU, with a driver in software such as SwiftShader
(`VK_ICD_FILENAMES`). Images are drawn when they are asked for, and no more often than the option
`image_steps` says: until then the last ones are given again, as by a slower camera.
"""

import importlib
import sys
from typing import Any

import gymnasium
import numpy as np
import sapien
from _hand_pose import hand
from _images import shrink
from _rows import Rows, episode_seed

# The torch of this interpreter; the project does not depend on it.
torch = importlib.import_module("torch")

SIZE_PX = 96
STEP_M = 0.1
"""How far an action of 1 moves the hand along an axis, the benchmark's `pd_ee_delta_pose`."""
FASTEST = 0.6
"""The expert's greatest action along an axis."""
ABOVE_M = 0.03
"""How far above its middle the expert touches a thing."""
OPEN_M = 0.04
"""Position of a finger when the hand is wide open."""
OPEN = 1.0
SENSORS = ("base_camera", "hand_camera")
HIDDEN = 2.0
"""As in `vla.contracts.referents`."""


def import_environments():
    """Import the benchmark so that it also runs without a GPU of NVIDIA."""
    if not torch.cuda.is_available():
        # ManiSkill asks for CUDA by name, where SAPIEN would take any Vulkan driver.
        render_system = sapien.render.RenderSystem
        sapien.render.RenderSystem = lambda device=None: render_system()
        torch.cuda.synchronize = lambda device=None: None
    torch.set_num_threads(1)
    import mikasa_robo_suite.vla.memory_envs  # noqa: F401  registers its environments


def project(camera, point):
    """Return where a camera with square images sees a point of the world, as
    `vla.contracts.referents` says.
    """
    rotated = camera.get_extrinsic_matrix()[0].numpy() @ np.append(point, 1.0)
    focal = camera.get_intrinsic_matrix()[0].numpy()[0, 0] / (camera.width / 2)
    image = focal * rotated[:2] / max(rotated[2], 1e-6)
    return image if rotated[2] > 0.0 and np.abs(image).max() < 1.0 else np.full(2, HIDDEN)


class World:
    """One task; options: `task` and `instruction`."""

    channels = ("dx", "dy", "dz", "droll", "dpitch", "dyaw", "grip")
    low, high = (-1.0,) * 7, (1.0,) * 7
    control_hz = 20
    cameras = ("base", "hand")
    image_shape = (2, SIZE_PX, SIZE_PX, 3)
    has_expert = True

    def __init__(self, options):
        if "mikasa_robo_suite" not in sys.modules:
            import_environments()
        name = options["task"]
        self._image_steps = options["image_steps"]
        self.max_episode_steps = gymnasium.spec(name).max_episode_steps
        self.instructions = [options["instruction"]]
        made: Any = gymnasium.make(
            name, num_envs=1, obs_mode="rgb", control_mode="pd_ee_delta_pose", sim_backend="cpu",
            render_backend="gpu" if torch.cuda.is_available() else "cpu",
        )  # fmt: skip
        self._env = made.unwrapped
        # It would draw after every step.
        self._env.get_obs = lambda info=None: {}

    def reset(self, seed, index):
        """Begin the episode of this seed and number; return the instruction."""
        self._env.reset(seed=episode_seed(seed, index))
        self._info = self._env.evaluate()
        self._drawn = -1
        self._farthest = 1e-3
        return self.instructions[0]

    def step(self, action):
        """Move the hand; return False: nothing is irrevocable in this benchmark."""
        _, _, _, _, self._info = self._env.step(np.asarray(action, np.float32)[None])
        return False

    def success(self):
        """Return the benchmark's success after the last step."""
        return bool(self._info["success"])

    def progress(self):
        """Return the share of the way to the right thing since it may be touched; 1 exactly with
        success.
        """
        if self.success():
            return 1.0
        if not self._may_touch():
            return 0.0
        distance = float(np.linalg.norm(self._way()))
        self._farthest = max(self._farthest, distance)
        return 0.95 * (1.0 - distance / self._farthest)

    def observe(self):
        """Return images u8 [2, 96, 96, 3] and the hand: position, rotation and opening, f32 [7]."""
        number = int(self._env.elapsed_steps[0]) // self._image_steps
        if number > self._drawn:
            data = self._env._get_obs_sensor_data()
            views = [data[name]["rgb"][0].numpy() for name in SENSORS]
            self._images, self._drawn = shrink(np.stack(views), SIZE_PX), number
        pose = self._env.agent.tcp.pose.raw_pose[0].numpy()  # quaternion wxyz
        opening = float(self._env.agent.robot.get_qpos()[0, -1]) / OPEN_M
        return self._images, hand(pose[:3], np.roll(pose[3:], -1), opening)

    def expert(self):
        """Return the action that touches the right thing once it may be touched, f64 [7]."""
        action = np.zeros(7)
        action[6] = OPEN
        if self._may_touch():
            way = self._way() + (0.0, 0.0, ABOVE_M)
            action[:3] = np.clip(way / STEP_M, -FASTEST, FASTEST)
        return action

    def referents(self):
        """Return where the right thing is in the images once it may be touched, f64 [2, 2, 2]:
        first as the object, then as the place, of which there is none; NaN before.
        """
        places = np.full((len(SENSORS), 2, 2), np.nan)
        if self._may_touch():
            point = self._env.agent.tcp.pose.p[0].numpy() + self._way()
            for view, name in enumerate(SENSORS):
                places[view, 0] = project(self._env._sensors[name].camera, point)
        return places

    def close(self):
        """Release the simulator."""
        self._env.close()

    def _may_touch(self):
        """Return whether cue and delay are over."""
        env = self._env
        go = env.cue_steps_per_env + env.empty_steps_per_env
        return bool(env.elapsed_steps[0] >= go[0])

    def _way(self):
        """Return the vector from the hand to the right thing in metres."""
        return self._info["obj_to_goal_pos"][0].numpy().astype(np.float64)


def open_adapter(options):
    """Return the adapter of the rows in `options`."""
    return Rows(World, options)
