"""Between poses and LeRobot's flat dictionaries: `JOINT.pos`, in rad or m."""

import importlib
from collections.abc import Mapping
from types import ModuleType

import numpy as np

SUFFIX = ".pos"


def features(names: tuple[str, ...]) -> dict[str, type]:
    """Return how LeRobot describes joints."""
    return {name + SUFFIX: float for name in names}


def told(names: tuple[str, ...], pose: np.ndarray) -> dict[str, float]:
    """Return a pose [u] by LeRobot's names."""
    return {name + SUFFIX: float(value) for name, value in zip(names, pose, strict=True)}


def pose(names: tuple[str, ...], action: Mapping[str, float]) -> np.ndarray:
    """Return the pose f64 [u] of an action.

    Raises:
        ValueError: a joint is missing.
    """
    missing = [name + SUFFIX for name in names if name + SUFFIX not in action]
    if missing:
        raise ValueError(f"action: {missing[0]} is missing; got {', '.join(action) or 'nothing'}")
    return np.array([action[name + SUFFIX] for name in names], np.float64)


def near(target: np.ndarray, measured: np.ndarray, farthest: float | None) -> np.ndarray:
    """Return a target [u], moved towards where the arm is until it is no farther than allowed."""
    if farthest is None:
        return target
    return np.clip(target, measured - farthest, measured + farthest)


def ros(module: str) -> ModuleType:
    """Import and return a module of our nodes.

    No sooner than it is needed: LeRobot imports its plug-ins for every command, to train as well.

    Raises:
        ValueError: there is no ROS 2.
    """
    try:
        return importlib.import_module(f"robot_bridge.nodes.{module}")
    except ModuleNotFoundError as error:
        missing = (error.name or "rclpy").split(".")[0]
        raise ValueError(
            f"no {missing}: source ROS 2's setup.bash, or pip install 'mneme-vla[ros]'"
        ) from error
