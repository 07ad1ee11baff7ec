"""One environment as a Gymnasium env, with the observation keys of LeRobot's evaluation."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sim.core.render import Camera, shared_renderer
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.vec_env import load_robot, load_task
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec


class MnemeEnv(gymnasium.Env[dict[str, Any], np.ndarray]):
    """A task of `sim/tasks`: position targets in, `pixels` and `agent_pos` out.

    `reset(seed=s)` starts episode 0 of seed s, each `reset()` after it the next one. `info` holds
    `is_success`, `progress` (simulator truth, not for policies) and `task` (the instruction).
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self,
        task: str,
        robot: str | RobotSpec | None = None,
        task_config: PluginConfig | None = None,
        randomize: bool = True,
        render_mode: str | None = None,
    ) -> None:
        """Make one environment; the arguments are those of `sim.vec_env.make`.

        Raises:
            ValueError: a name is unknown, or robot and model do not fit.
        """
        if render_mode not in (None, *self.metadata["render_modes"]):
            raise ValueError(f"render_mode: got {render_mode!r}, expected 'rgb_array' or None")
        scene = compile_scene(load_task(task, task_config), load_robot(robot))
        self.render_mode = render_mode
        self._world = MujocoWorld(scene, vary=randomize)
        self._camera = Camera(shared_renderer(scene), self._world)
        self._seed: int | None = None
        self._index = 0
        self.instructions = scene.task.instructions
        self._max_episode_steps = scene.task.max_episode_steps  # LeRobot reads this name
        low = np.array(scene.robot.low, np.float32)
        high = np.array(scene.robot.high, np.float32)
        self.action_space = spaces.Box(low, high)
        _, height, width, _ = scene.image_shape
        image = spaces.Box(0, 255, (height, width, 3), np.uint8)
        # Joint limits are soft: a joint that is pushed gives way a little.
        slack = 0.5 * (high - low)
        self.observation_space = spaces.Dict(
            {
                "pixels": spaces.Dict({c.name: image for c in scene.robot.cameras}),
                "agent_pos": spaces.Box(low - slack, high + slack),
            }
        )

    @property
    def task_description(self) -> str:
        """The instruction of the episode, under the name that LeRobot asks for."""
        return self._world.instruction

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start episode 0 of a seed, or the next episode; there are no options."""
        super().reset(seed=seed)
        if seed is not None or self._seed is None:
            self._seed = int(self.np_random.integers(2**31)) if seed is None else seed
            self._index = 0
        else:
            self._index += 1
        self._world.reset(self._seed, self._index)
        return self._observe(), self._info()

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Apply one action for one control step.

        Raises:
            ValueError: the shape is wrong or a value is not finite.
        """
        if np.shape(action) != self.action_space.shape or not np.isfinite(action).all():
            raise ValueError(
                f"action: got {action!r}, expected {self.action_space.shape} finite targets"
            )
        reward, terminated, truncated = self._world.step(action)
        return self._observe(), reward, terminated, truncated, self._info()

    def render(self) -> np.ndarray | None:
        """Return the image of the first camera, uint8 (height, width, 3)."""
        if self.render_mode is None:
            return None
        return self._camera.render()[0].copy()

    def _observe(self) -> dict[str, Any]:
        images = self._camera.render()
        names = (c.name for c in self._world.robot.cameras)
        return {
            "pixels": {name: image.copy() for name, image in zip(names, images, strict=True)},
            "agent_pos": self._world.proprio,
        }

    def _info(self) -> dict[str, Any]:
        return {
            "is_success": self._world.succeeded,
            "progress": self._world.progress(),
            "task": self._world.instruction,
        }
