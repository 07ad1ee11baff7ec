"""Makes batched environments by name, with the plug-ins in `sim/backends`.

Any backend runs the tasks of `sim/tasks`; a suite (`sim/suites`) brings its simulator and arm.
"""

from typing import Any

from vla.contracts import config as configs
from vla.contracts import registry, robot_file
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.protocols import HasPrivilegedState
from vla.contracts.specs import RobotSpec

DEFAULT_ROBOT = "so101"
DEFAULT_BACKEND = "mujoco_cpu"
SUITE_BACKEND = "process"
"""Backend of the tasks of suites."""
SUITES = "sim.suites"
TASKS = ("sim.tasks", SUITES)
"""Folders of tasks."""


def make(
    task: str,
    num_envs: int,
    *,
    robot: str | RobotSpec | None = None,
    workers: int = 1,
    randomize: bool = True,
    task_config: PluginConfig | None = None,
    backend: str | PluginConfig = DEFAULT_BACKEND,
) -> Any:
    """Return `num_envs` environments of a task: a `vla.contracts.protocols.VecEnv`.

    Args:
        task: Name of a file in `sim/tasks`, or SUITE/TASK with a file in `sim/suites`.
        num_envs: Number E of environments.
        robot: Name of a file in `vla/robots` or a RobotSpec; None is so101, or the suite's arm.
        workers: Processes that share the environments.
        randomize: Whether episodes differ in colour, light, camera pose, friction and mass.
        task_config: The task's `Config`; its defaults if None.
        backend: Name of a file in `sim/backends`, or its `Config`, which then holds `workers` and
            `randomize`. The task of a suite runs in the suite's simulator.

    Raises:
        ValueError: a name is unknown, a number out of range, or robot and model do not fit.
    """
    config = load_task(task, task_config)
    runner = backend
    if isinstance(runner, str):
        kind = registry.load("sim.backends", runner).Config
        runner = kind(workers=workers, randomize=randomize)
    if is_suite(config):
        runner = _suite_backend(config, runner)
    return runner.build(config, load_arm(config, robot), num_envs)


def with_privileged_state(env: Any) -> HasPrivilegedState:
    """Return environments as ones that know more of their state than images show.

    Raises:
        ValueError: they do not: an arm has only its sensors, and some suites tell no more.
    """
    task = env.spec.task
    if not isinstance(env, HasPrivilegedState):
        # What drives an arm holds the configuration of its backend.
        backend = type_name(getattr(env, "config", env))
        raise ValueError(
            f"the {backend} backend has no privileged state: an arm has only its sensors; use a "
            f"simulator, such as {DEFAULT_BACKEND}"
        )
    if not env.privileged_state_names:
        raise ValueError(
            f"the task {task} has no privileged state: its suite tells only images and "
            "proprioception; use one of our tasks, or one of metaworld, gymnasium_robotics or "
            "robosuite"
        )
    return env


def _suite_backend(task: PluginConfig, backend: PluginConfig) -> PluginConfig:
    """Return the backend of a suite's task in place of the requested one."""
    name = type_name(backend)
    if name == SUITE_BACKEND:
        return backend
    if name != DEFAULT_BACKEND:
        raise ValueError(
            f"backend: got {name!r} for {title(task)}, which brings its own simulator; leave the "
            "backend out"
        )
    kind = registry.load("sim.backends", SUITE_BACKEND).Config
    return kind(workers=backend.workers, randomize=backend.randomize)


def load_task(name: str, config: PluginConfig | None = None) -> PluginConfig:
    """Return the configuration of a task: `config`, checked against the name, or defaults.

    Args:
        name: A file in `sim/tasks`; a file in `sim/suites`, alone or as SUITE/TASK.
        config: Its configuration.

    Raises:
        ValueError: no such task, or the configuration belongs to another one.
    """
    plugin, slash, inner = name.partition("/")
    module = registry.load(SUITES if slash else TASKS, plugin)
    if config is None:
        return module.Config(name=inner) if slash else module.Config()
    if not isinstance(config, module.Config):
        raise ValueError(f"task_config: got that of {type_name(config)!r}, expected {name!r}'s")
    return config


def load_robot(robot: str | RobotSpec | None) -> RobotSpec:
    """Return a RobotSpec from a name in `vla/robots`; so101 for None.

    Raises:
        ValueError: no such robot.
    """
    if isinstance(robot, RobotSpec):
        return robot
    return robot_file.load(robot or DEFAULT_ROBOT)


def load_arm(task: PluginConfig, robot: str | RobotSpec | None = None) -> RobotSpec:
    """Return the arm of a task: `robot`, or the task's default for None.

    Raises:
        ValueError: no such robot, or the task's suite has another arm.
    """
    if not is_suite(task) or isinstance(robot, RobotSpec):
        return load_robot(robot)
    arm = task.arm()
    if robot not in (None, arm.name):
        raise ValueError(
            f"robot: got {robot!r}, expected {arm.name!r}, the arm of {title(task)}; leave it out"
        )
    return arm


def is_suite(task: PluginConfig) -> bool:
    """Return whether a task belongs to a suite, with its own simulator and arm."""
    return type(task).__module__.startswith(f"{SUITES}.")


def title(task: PluginConfig) -> str:
    """Return the name under which `load_task` finds a task."""
    return configs.title(configs.to_json(task))
