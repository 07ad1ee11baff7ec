"""Checks that a policy's settings fit the arm it drives."""

from typing import Any

from vla.contracts.specs import RobotSpec


def views(config: Any, robot: RobotSpec) -> list[int]:
    """Return the indices of the cameras that a policy uses among the arm's.

    Raises:
        ValueError: a camera the robot does not have, or more actions executed than predicted.
    """
    names = tuple(camera.name for camera in robot.cameras)
    if not config.cameras or not set(config.cameras) <= set(names):
        raise ValueError(f"policy.cameras: {robot.name} has cameras {names}, got {config.cameras}")
    if not 1 <= config.n_action_steps <= config.chunk_size:
        raise ValueError(
            f"policy.n_action_steps: got {config.n_action_steps}, expected 1 to chunk_size = "
            f"{config.chunk_size}"
        )
    return [names.index(name) for name in config.cameras]
