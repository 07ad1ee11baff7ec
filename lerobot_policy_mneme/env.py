"""Environment `mneme` of LeRobot: every task of `vla tasks`, with indexed episodes.

`reset(seed=s)` starts episode s of one seed: `lerobot-eval --seed=0` runs those of `vla eval`.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs import registration
from lerobot.configs.types import PolicyFeature
from lerobot.envs.configs import EnvConfig
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE

from lerobot_policy_mneme.batch import CLOCK
from lerobot_policy_mneme.configuration_mneme import features
from sim import vec_env
from vla.contracts import config as configs
from vla.contracts import registry
from vla.contracts.config import PluginConfig, validate_min
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Observation

PACKAGE = "lerobot_policy_mneme"
SUITE = "suite"
"""Name under which all tasks of suites are registered: their names may have other characters."""


@EnvConfig.register_subclass("mneme")
@dataclass
class MnemeEnvConfig(EnvConfig):
    """Settings `--env.NAME` of LeRobot's commands."""

    task: str | None = "pick_place"
    """A file name under sim/tasks, or SUITE/TASK (`vla env add SUITE`)."""
    fps: int = 0
    """Control steps per second; 0 for the arm's rate."""
    robot: str = ""
    """Arm: a file name under vla/robots; the task's usual one if empty."""
    episodes_seed: int = 0
    """Seed of the episodes, the --seed of `vla eval`; LeRobot's --seed is the index of the first
    episode."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings of the task: {delay_steps: [16, 64]}."""

    def __post_init__(self) -> None:
        """Set the features; ValueError if a name, a setting or a number is not valid."""
        validate_min(self, fps=0, episodes_seed=0)
        _, robot = resolve(self.task or "", self.robot, self.fps, self.settings)
        cameras = {camera.name: (camera.height_px, camera.width_px) for camera in robot.cameras}
        inputs, outputs = features(cameras, len(robot.channels))
        # LeRobot's commands turn height, width, 3 of an environment into 3, height, width.
        images = {
            f"pixels/{name}": dataclasses.replace(inputs[f"{OBS_IMAGES}.{name}"], shape=(*size, 3))
            for name, size in cameras.items()
        }
        self.features: dict[str, PolicyFeature] = {
            **outputs, "agent_pos": inputs[OBS_STATE], **images,
        }  # fmt: skip
        self.features_map: dict[str, str] = {
            ACTION: ACTION, "agent_pos": OBS_STATE,
            **{f"pixels/{name}": f"{OBS_IMAGES}.{name}" for name in cameras},
        }  # fmt: skip

    @property
    def package_name(self) -> str:
        """Package that registers the tasks."""
        return PACKAGE

    @property
    def gym_id(self) -> str:
        """Gymnasium's name of the task."""
        task = self.task or ""
        return f"{PACKAGE}/{SUITE if '/' in task else task}"

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        """Arguments of `MnemeTask`."""
        return {
            "task": self.task, "robot": self.robot, "fps": self.fps, "settings": self.settings,
            "episodes_seed": self.episodes_seed,
        }  # fmt: skip


def resolve(
    task: str, robot: str, fps: int, settings: dict[str, Any]
) -> tuple[PluginConfig, RobotSpec]:
    """Return a task's configuration and the arm that acts in it.

    Raises:
        ValueError: a name or a setting is unknown.
    """
    config = vec_env.load_task(task)
    if settings:
        changed = {**configs.to_json(config), **settings}
        config = configs.from_json(None, changed, "env.settings", vec_env.TASKS)
    arm = vec_env.load_arm(config, robot or None)
    return config, dataclasses.replace(arm, control_hz=float(fps)) if fps else arm


class MnemeTask(gymnasium.Env[dict[str, Any], np.ndarray]):
    """One environment: takes position targets, returns images, joints and the episode's clock.

    `reset(seed=s)` starts episode s of `episodes_seed`, `reset()` the next one.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}

    def __init__(
        self, task: str, robot: str = "", fps: int = 0, episodes_seed: int = 0,
        settings: dict[str, Any] | None = None, render_mode: str = "rgb_array",
    ) -> None:  # fmt: skip
        """Make one environment; the arguments are the settings of `MnemeEnvConfig`.

        Raises:
            ValueError: a name is unknown, or a suite is not installed.
        """
        config, arm = resolve(task, robot, fps, settings or {})
        self._env = vec_env.make(task, 1, robot=arm, task_config=config)
        self.render_mode, self.task = render_mode, task
        self.metadata = {**self.metadata, "render_fps": round(arm.control_hz)}
        self._max_episode_steps = self._env.spec.max_episode_steps  # LeRobot reads this name
        self._names = tuple(camera.name for camera in arm.cameras)
        self._seed, self._episode, self._steps = episodes_seed, -1, 0
        low, high = np.array(arm.low, np.float32), np.array(arm.high, np.float32)
        self.action_space = spaces.Box(low, high)
        images: dict[str, spaces.Space[Any]] = {
            c.name: spaces.Box(0, 255, (c.height_px, c.width_px, 3), np.uint8) for c in arm.cameras
        }
        whole = np.iinfo(np.int64)
        self.observation_space = spaces.Dict(
            {
                "pixels": spaces.Dict(images),
                "agent_pos": spaces.Box(-np.inf, np.inf, low.shape, np.float32),
                "robot_state": spaces.Dict({CLOCK: spaces.Box(0, whole.max, (3,), np.int64)}),
            }
        )

    @property
    def task_description(self) -> str:
        """The instruction of the episode, under LeRobot's name."""
        return self._obs.task[0]

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode; there are no options."""
        super().reset(seed=seed)
        self._episode = self._episode + 1 if seed is None else seed
        self._steps = 0
        row, number = np.zeros(1, np.int64), np.array([self._episode])
        obs = self._env.begin(row, np.array([self._seed]), number)
        return self._observed(obs), {"is_success": False, "progress": 0.0}

    def step(self, action: np.ndarray) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Apply one action for one control step.

        Raises:
            ValueError: the shape is wrong or a value is not finite.
        """
        step = self._env.step(np.asarray(action, np.float32)[None])
        self._steps += 1
        info = {
            "is_success": bool(step.info["success"][0]),
            "progress": float(step.info["progress"][0]),
        }
        ended = bool(step.terminated[0]), bool(step.truncated[0])
        return self._observed(step.final_obs), float(step.reward[0]), *ended, info

    def render(self) -> np.ndarray:
        """Return the last image of the first camera, uint8 (height, width, 3)."""
        first: np.ndarray = self._obs.images[0, 0]
        return first

    def close(self) -> None:
        """Stop the processes of a suite."""
        self._env.close()

    def _observed(self, obs: Observation) -> dict[str, Any]:
        self._obs = obs
        return {
            "pixels": dict(zip(self._names, obs.images[0], strict=True)),
            "agent_pos": obs.proprio[0],
            "robot_state": {CLOCK: np.array([self._steps, self._episode, self._seed])},
        }


def register() -> None:
    """Register all tasks with Gymnasium; may be called twice."""
    for task in (*registry.names("sim.tasks"), SUITE):
        name = f"{PACKAGE}/{task}"
        if name not in registration.registry:
            # Without wrappers: LeRobot reads the instruction from the environment.
            registration.register(
                id=name, entry_point=f"{PACKAGE}.env:MnemeTask", order_enforce=False,
                disable_env_checker=True, kwargs={} if task == SUITE else {"task": task},
            )  # fmt: skip
