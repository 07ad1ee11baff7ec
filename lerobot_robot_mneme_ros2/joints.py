"""What robot and teleoperator share: a connection, and poses as LeRobot's flat dictionaries,
`JOINT.pos` in rad or m.
"""

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np

SUFFIX = ".pos"


class Connected:
    """A connection to ROS 2's nodes, and no calibration."""

    name: str
    device: Any = None
    """The connection; None where there is none."""

    @property
    def is_connected(self) -> bool:
        """Whether `connect` has succeeded."""
        return self.device is not None

    @property
    def is_calibrated(self) -> bool:
        """True: zero and sign are the driver's."""
        return True

    def calibrate(self) -> None:
        """There is nothing to do."""

    def configure(self) -> None:
        """There is nothing to do."""

    def connection(self) -> Any:
        """Return the connection; ValueError if there is none."""
        if self.device is None:
            raise ValueError(f"{self.name} is not connected; call connect() first")
        return self.device


def features(names: tuple[str, ...]) -> dict[str, type]:
    """Return LeRobot's features of joints."""
    return {name + SUFFIX: float for name in names}


def named_positions(names: tuple[str, ...], pose: np.ndarray) -> dict[str, float]:
    """Return a pose [u] by LeRobot's names."""
    return {name + SUFFIX: float(value) for name, value in zip(names, pose, strict=True)}


def pose(names: tuple[str, ...], action: Mapping[str, float]) -> np.ndarray:
    """Return the pose f64 [u] of an action; ValueError if a joint is missing."""
    missing = [name + SUFFIX for name in names if name + SUFFIX not in action]
    if missing:
        raise ValueError(f"action: {missing[0]} is missing; got {', '.join(action) or 'nothing'}")
    return np.array([action[name + SUFFIX] for name in names], np.float64)


def ros(module: str) -> ModuleType:
    """Import and return a module of `robot_bridge.nodes`.

    Only when needed: LeRobot imports its plug-ins for every command, training included.

    Raises:
        ValueError: ROS 2 is not installed.
    """
    try:
        return importlib.import_module(f"robot_bridge.nodes.{module}")
    except ModuleNotFoundError as error:
        missing = (error.name or "rclpy").split(".")[0]
        raise ValueError(
            f"no {missing}: source ROS 2's setup.bash, or pip install 'mneme-vla[ros]'"
        ) from error
