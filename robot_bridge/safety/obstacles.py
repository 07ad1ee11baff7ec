"""Loads the collision stage, which needs MuJoCo."""

from collections.abc import Sequence

from robot_bridge.motion.workspace import Workspace
from robot_bridge.safety.gate_config import Obstacles
from vla.contracts.specs import RobotSpec


def of_model(
    robot: RobotSpec, workspace: Workspace | None, margin: float
) -> tuple[Obstacles, Sequence[str]]:
    """Return what keeps an arm's model from collisions, and the pairs of links it leaves out.

    Raises:
        ValueError: MuJoCo is not installed, or the model is wrong.
    """
    try:
        from robot_bridge.safety import clearance, collision
    except ModuleNotFoundError as error:
        if error.name != "mujoco":
            raise
        raise ValueError(
            "collision: true needs MuJoCo, which is not installed; pip install 'mujoco>=3.8'"
        ) from error
    distances = clearance.Clearance(robot, workspace, margin)
    return collision.Collision(distances, margin), distances.left_out
