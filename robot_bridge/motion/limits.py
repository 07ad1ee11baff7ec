"""Limits of joints, from a RobotSpec and from the limits file, which the user must write.

A URDF has neither acceleration nor jerk, and a controller without them limits neither. So the user
has to write both for every joint. This module does not import ROS.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from robot_bridge.motion import workspace
from robot_bridge.motion.workspace import Workspace
from vla.contracts import robot_file
from vla.contracts.specs import RobotSpec

MUST = ("acceleration", "jerk")
"""Required limits of every joint."""
MAY = ("low", "high", "velocity")
"""Optional limits, which may only be narrower than the RobotSpec's."""
STOP = ("stop_acceleration", "stop_jerk")
"""Optional limits of a stop, which may only be wider than those of the motion."""
LINEAR_M = 0.1
"""Distance in m of a linear joint that counts as one rad."""
SECTIONS = ("joints", "workspace")
"""Sections of the file."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of every joint, f64 [u] each, in the unit of the joint and seconds.

    `velocity`, `acceleration` and `jerk` are largest absolute values.
    `stop_acceleration` and `stop_jerk` are those of a stop that a fault or a person demands.
    """

    names: tuple[str, ...]
    low: np.ndarray
    high: np.ndarray
    velocity: np.ndarray
    acceleration: np.ndarray
    jerk: np.ndarray
    stop_acceleration: np.ndarray
    stop_jerk: np.ndarray
    workspace: Workspace | None = None
    """Bounds of the arm; none if None."""
    linear: tuple[str, ...] = ()
    """Joints in m; the others are in rad."""
    gripper: str = ""
    """Joint that may be kept from its target by what it holds; none if empty."""

    @property
    def unit(self) -> np.ndarray:
        """What counts as one rad, f64 [u]."""
        return np.where([name in self.linear for name in self.names], LINEAR_M, 1.0)

    @property
    def of_stop(self) -> "Limits":
        """Limits of a stop that a fault or a person demands; these themselves if alike."""
        a, j = self.stop_acceleration, self.stop_jerk
        if np.array_equal(a, self.acceleration) and np.array_equal(j, self.jerk):
            return self
        return replace(self, acceleration=a, jerk=j)

    def scaled(self, speed: float) -> "Limits":
        """Return limits with a share, above 0 to 1, of velocity, acceleration and jerk.

        The limits of a stop stay: a slow arm stops at once.
        """
        return replace(
            self, velocity=speed * self.velocity, acceleration=speed * self.acceleration,
            jerk=speed * self.jerk,
        )  # fmt: skip


def of_spec(robot: RobotSpec) -> Limits:
    """Return the limits of a RobotSpec."""
    numbers: dict[str, Any] = {
        name: np.array([getattr(c, name) for c in robot.channels], np.float64)
        for name in (*MAY, *MUST)
    }
    stop = {f"stop_{name}": numbers[name] for name in MUST}
    return Limits(names=robot.names, **numbers, **stop, **_kinds(robot))


def _kinds(robot: RobotSpec) -> dict[str, Any]:
    linear = tuple(channel.name for channel in robot.channels if channel.unit == "m")
    return {"linear": linear, "gripper": robot.gripper.channel if robot.gripper else ""}


def read(path: Path, robot: RobotSpec) -> Limits:
    """Return the tighter of the limits of a RobotSpec and of a limits file.

    The file has, under `joints`, one entry per joint with `acceleration` and `jerk`, and optionally
    narrower `low`, `high`, `velocity`; and optionally `workspace`
    (`robot_bridge.motion.workspace`). A joint_limits.yaml of MoveIt is taken as well.

    Raises:
        ValueError: the file is missing or no YAML, a joint or a limit is missing, unknown or not a
            positive number, or the workspace is wrong.
    """
    content = _parsed(path, robot)
    joints = content["joints"]
    other = sorted(set(map(str, content)) - set(SECTIONS))
    if other:
        raise ValueError(
            f"{path}: unknown section {other[0]!r}; there may be {' and '.join(SECTIONS)}"
        )
    unknown = sorted(set(joints) - set(robot.names))
    if unknown:
        raise ValueError(
            f"{path}: unknown joint {unknown[0]!r}; {robot.name} has {', '.join(robot.names)}"
        )
    spec = of_spec(robot)
    rows = [_joint(path, name, joints.get(name)) for name in robot.names]

    def tighter(name: str, pick: Any) -> np.ndarray:
        values = np.array([row.get(name, np.nan) for row in rows], np.float64)
        return np.where(np.isnan(values), getattr(spec, name), pick(values, getattr(spec, name)))

    def stop(name: str) -> np.ndarray:
        comfort = tighter(name, np.fmin)
        return np.array([row.get(f"stop_{name}", c) for row, c in zip(rows, comfort, strict=True)])

    limits = Limits(
        names=robot.names, low=tighter("low", np.fmax), high=tighter("high", np.fmin),
        velocity=tighter("velocity", np.fmin), acceleration=tighter("acceleration", np.fmin),
        jerk=tighter("jerk", np.fmin),
        stop_acceleration=stop("acceleration"), stop_jerk=stop("jerk"), **_kinds(robot),
        workspace=workspace.read(path, content["workspace"]) if "workspace" in content else None,
    )  # fmt: skip
    empty = [n for n, a, b in zip(robot.names, limits.low, limits.high, strict=True) if not a < b]
    if empty:
        raise ValueError(f"{path}: joint {empty[0]!r} has no room between low and high")
    for name in MUST:
        gentle = getattr(limits, f"stop_{name}") < getattr(limits, name)
        if gentle.any():
            joint = robot.names[int(np.argmax(gentle))]
            raise ValueError(
                f"{path}: joint {joint!r}: stop_{name} is smaller than {name}; a stop may be "
                "harder than a motion, not gentler"
            )
    return limits


def _parsed(path: Path, robot: RobotSpec) -> dict[str, Any]:
    """Return the sections of a file; `joints` is a map."""
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise ValueError(
            f"{path}: no limits there; write one entry with {' and '.join(MUST)} per joint, see "
            "launch/params"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: no YAML ({' '.join(str(error).split())})") from error
    if isinstance(content, dict) and "joint_limits" in content:
        if "joints" in content:
            raise ValueError(f"{path}: got joints and joint_limits; give one of them")
        rows = robot_file.moveit(content).items()  # it may have joints of other arms
        content = {**content, "joints": {name: row for name, row in rows if name in robot.names}}
        content.pop("joint_limits")
    joints = content.get("joints") if isinstance(content, dict) else None
    if not isinstance(joints, dict):
        raise ValueError(f"{path}: expected `joints:` with one entry per joint")
    return dict(content)


def _joint(path: Path, name: str, entry: Any) -> dict[str, float]:
    """Return the numbers of one joint."""
    if not isinstance(entry, dict):
        raise ValueError(f"{path}: joint {name!r} is missing; give its {' and '.join(MUST)}")
    for key in MUST:
        if key not in entry:
            raise ValueError(f"{path}: joint {name!r} lacks {key}; a missing limit limits nothing")
    for key, value in entry.items():
        if key not in (*MUST, *MAY, *STOP):
            raise ValueError(f"{path}: joint {name!r}: unknown limit {key!r}")
        number = workspace.is_finite_number(value)
        if not number or (key not in ("low", "high") and value <= 0):
            raise ValueError(
                f"{path}: joint {name!r}: {key} is {value!r}, expected a number above 0"
            )
    return {key: float(value) for key, value in entry.items()}
