"""What the settings of every policy have in common, held against the arm it is for."""

from typing import Any

from vla.contracts.specs import RobotSpec


def views(config: Any, robot: RobotSpec) -> list[int]:
    """Return which of an arm's cameras a policy looks through, by their places.

    Args:
        config: Settings with `cameras`, `chunk` and `execute`.
        robot: The arm.

    Raises:
        ValueError: a camera the robot does not have, or more actions executed than predicted.
    """
    known = tuple(camera.name for camera in robot.cameras)
    missing = [name for name in config.cameras if name not in known]
    if missing or not config.cameras:
        raise ValueError(f"policy.cameras: {robot.name} has cameras {known}, got {config.cameras}")
    if not 1 <= config.execute <= config.chunk:
        raise ValueError(
            f"policy.execute must lie in [1, chunk = {config.chunk}], got {config.execute}"
        )
    return [known.index(name) for name in config.cameras]
