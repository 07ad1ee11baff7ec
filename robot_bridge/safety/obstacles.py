"""Loads the stages that need MuJoCo: collision, and the bound on the tool's speed."""

import importlib
from collections.abc import Sequence
from typing import Any

from robot_bridge.motion.workspace import Workspace
from robot_bridge.safety.stages import Obstacles, ToolSpeedBound, Unbounded
from vla.contracts.specs import RobotSpec


def of_model(
    robot: RobotSpec, workspace: Workspace | None, margin: float
) -> tuple[Obstacles, Sequence[str]]:
    """Return what keeps an arm's model from collisions, and the pairs of links it leaves out.

    Raises:
        ValueError: MuJoCo is not installed, or the model is wrong.
    """
    clearance, collision = _needs_mujoco("collision", "clearance", "collision")
    distances = clearance.Clearance(robot, workspace, margin)
    return collision.Collision(distances, margin), distances.left_out


def tool_speed(robot: RobotSpec, bound_m_s: float, dt_s: float) -> ToolSpeedBound:
    """Return what bounds the speed of an arm's tool; 0: nothing.

    Raises:
        ValueError: MuJoCo is not installed, or the model is wrong.
    """
    if not bound_m_s:
        return Unbounded()
    (module,) = _needs_mujoco("max_tool_speed", "tool_speed")
    bound: ToolSpeedBound = module.ToolSpeed(robot, bound_m_s, dt_s)
    return bound


def _needs_mujoco(what: str, *names: str) -> list[Any]:
    """Return modules of this folder that import MuJoCo."""
    try:
        return [importlib.import_module(f"robot_bridge.safety.{name}") for name in names]
    except ModuleNotFoundError as error:
        if error.name != "mujoco":
            raise
        raise ValueError(
            f"{what} needs MuJoCo, which is not installed; pip install 'mujoco>=3.8'"
        ) from error
