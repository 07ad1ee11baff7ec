"""Check that a data set fits a robot."""

from pathlib import Path

from vla.contracts.specs import RobotSpec
from vla.data.store import EpisodeStore


def fits_robot(store: EpisodeStore, robot: RobotSpec, data: Path) -> None:
    """Raise ValueError unless the data set's channels and rate are those of the robot."""
    actions, names = store.info.action_names, robot.names
    if len(actions) != len(names) or store.info.state_dim != len(names):
        raise ValueError(
            f"{data}: {store.info.state_dim} states and {len(actions)} actions "
            f"({', '.join(actions)}), the robot has {len(names)} channels ({', '.join(names)}); "
            "name the recorded robot with --robot"
        )
    if store.info.fps != robot.control_hz:
        raise ValueError(
            f"{data}: recorded at {store.info.fps:g} Hz, {robot.name} acts at {robot.control_hz:g} "
            "Hz; record at that rate, or add a robot with the rate of the data to vla/robots"
        )
