"""Makes batched environments by name; the work is done by the plug-ins in `sim/backends`."""

from typing import Any

from vla.contracts import registry
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.specs import RobotSpec

DEFAULT_ROBOT = "so101"
DEFAULT_BACKEND = "mujoco_cpu"


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
        task: Name of a file in `sim/tasks`.
        num_envs: Number E of environments.
        robot: Name of a file in `vla/robots` or a RobotSpec of your own; so101 if None.
        workers: Processes among which the environments are shared out.
        randomize: Whether episodes differ in colour, light, camera pose, friction and mass.
        task_config: The task's `Config`; its defaults if None.
        backend: Name of a file in `sim/backends`; or its `Config`, which says how many workers and
            whether episodes differ.

    Raises:
        ValueError: a name is unknown, a number out of range, or robot and model do not fit.
    """
    config = load_task(task, task_config)
    runner = backend
    if isinstance(runner, str):
        kind = registry.load("sim.backends", runner).Config
        runner = kind(workers=workers, randomize=randomize)
    return runner.build(config, load_robot(robot), num_envs)


def load_task(name: str, config: PluginConfig | None = None) -> PluginConfig:
    """Return the configuration of a task: the one given, checked against the name, or defaults.

    Raises:
        ValueError: no such task, or the configuration belongs to another one.
    """
    module = registry.load("sim.tasks", name)
    if config is None:
        return module.Config()
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
    return registry.load("vla.robots", robot or DEFAULT_ROBOT).SPEC
