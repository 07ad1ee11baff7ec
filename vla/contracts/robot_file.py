"""Robots as files of the user: a YAML file, with limits from a URDF and MoveIt's joint_limits.yaml.

The file has the fields of `RobotSpec`. What a channel lacks comes from `joint_limits`, then from
`urdf`: both are paths beside the file.
"""

import dataclasses
import math
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import yaml

from vla.contracts import registry
from vla.contracts.config import from_json
from vla.contracts.specs import RobotSpec

SUFFIXES = (".yaml", ".yml")
UNITS = {"revolute": "rad", "continuous": "rad", "prismatic": "m"}
"""Units of a URDF's joints by type."""
CAMERA = {"body": "world", "pos_m": [0.0, 0.0, 0.0], "target_m": [1.0, 0.0, 0.0], "fovy_deg": 60.0}
"""What a camera needs in simulation alone."""
MOVEIT = {
    "acceleration": ("has_acceleration_limits", "max_acceleration"),
    "jerk": ("has_jerk_limits", "max_jerk"),
    "velocity": ("has_velocity_limits", "max_velocity"),
    "low": ("has_position_limits", "min_position"),
    "high": ("has_position_limits", "max_position"),
}
"""Limits of a channel in MoveIt's joint_limits.yaml: the switch and the value."""


def load(name: str) -> RobotSpec:
    """Return a robot by its name under vla/robots, or of a YAML file.

    Raises:
        ValueError: there is none, or the file is wrong.
    """
    if name.endswith(SUFFIXES):
        return read(Path(name))
    spec: RobotSpec = registry.load("vla.robots", name).SPEC
    return spec


def read(path: Path) -> RobotSpec:
    """Return the robot of a YAML file.

    Raises:
        ValueError: the file or one that it names is missing or damaged, or a field is unknown,
            missing or of another type.
    """
    try:
        return _read(path)
    except (TypeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{path}: a value is of another type than expected ({error})") from error


def _read(path: Path) -> RobotSpec:
    content = _parsed(path)
    folder = path.parent
    urdf = _urdf(folder / content.pop("urdf")) if "urdf" in content else {}
    limits = (
        moveit(_parsed(folder / content.pop("joint_limits"))) if "joint_limits" in content else {}
    )
    rows = content.get("channels")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{path}: channels is {rows!r:.60}, expected a list of joints with a name")
    channels = []
    for row in rows:
        name = row.get("name")
        filled = {"source": path.name, **urdf.get(name, {}), **limits.get(name, {}), **row}
        missing = [key for key in ("unit", "low", "high", "velocity", "acceleration", "jerk")
                   if key not in filled]  # fmt: skip
        if missing:
            raise ValueError(
                f"{path}: joint {name!r} has no {missing[0]}; give it there, or a urdf and a "
                "joint_limits file that have it"
            )
        channels.append({k: float(v) if type(v) is int else v for k, v in filled.items()})
    views = content.get("cameras")
    if not isinstance(views, list) or not all(isinstance(view, dict) for view in views):
        raise ValueError(f"{path}: cameras is {views!r:.60}, expected a list with names")
    cameras = [{**CAMERA, **view} for view in views]
    mjcf = content.get("mjcf", "")
    if mjcf and (folder / mjcf).is_file():
        mjcf = str((folder / mjcf).absolute())
    values = {
        "name": path.stem, **content, "channels": channels, "cameras": cameras, "mjcf": mjcf,
    }  # fmt: skip
    spec: RobotSpec = from_json(RobotSpec, values, str(path))
    _check(spec, path)
    return spec


def moveit(content: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the limits by joint of a parsed joint_limits.yaml of MoveIt; none if it is no such."""
    rows = content.get("joint_limits")
    return {
        str(name): {
            key: _number(row[value], f"joint_limits: {value} of joint {name!r}")
            for key, (has, value) in MOVEIT.items()
            if row.get(has) and value in row
        }
        for name, row in (rows.items() if isinstance(rows, dict) else ())
        if isinstance(row, dict)
    }  # fmt: skip


def _urdf(path: Path) -> dict[str, dict[str, Any]]:
    try:
        return urdf(path.read_text(), str(path))
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no URDF there; give its path beside the robot's file") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: no URDF ({error}); expected text in UTF-8") from error


def urdf(text: str, where: str) -> dict[str, dict[str, Any]]:
    """Return `unit` and, where it has them, `low`, `high` and `velocity` by joint of a URDF.

    Args:
        text: The URDF.
        where: Its name in errors.

    Raises:
        ValueError: it is none.
    """
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ValueError(f"{where}: no URDF ({error}); of a xacro make one with xacro") from error
    found: dict[str, dict[str, Any]] = {}
    for joint in root.iter("joint"):
        unit = UNITS.get(joint.get("type", ""))
        if unit is None:
            continue
        row: dict[str, Any] = {"unit": unit}
        limit = joint.find("limit")
        for key, attribute in (("low", "lower"), ("high", "upper"), ("velocity", "velocity")):
            if limit is not None and (number := limit.get(attribute)) is not None:
                row[key] = _number(number, f"{where}: {attribute} of joint {joint.get('name')!r}")
        if joint.get("type") == "continuous":
            row.pop("low", None)
            row.pop("high", None)
        found[joint.get("name", "")] = row
    return found


def _number(value: Any, what: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{what} is {value!r:.40}, expected a number") from error


def _parsed(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError as error:
        raise ValueError(f"{path}: no file there; give the path of one") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: no YAML ({' '.join(str(error).split())})") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path}: got {content!r:.60}, expected fields with values")
    return content


def _check(spec: RobotSpec, path: Path) -> None:
    """Raise ValueError if fields of a robot contradict each other."""
    if not 0 < spec.control_hz <= 1000:
        raise ValueError(f"{path}: control_hz is {spec.control_hz}, expected above 0 to 1000")
    if not spec.cameras or min(min(c.width_px, c.height_px) for c in spec.cameras) < 2:
        raise ValueError(f"{path}: expected at least one camera, of at least 2 x 2 pixels")
    if len(set(spec.names)) != len(spec.names):
        raise ValueError(f"{path}: two channels have the same name")
    if len(spec.home) != len(spec.names):
        raise ValueError(f"{path}: home has {len(spec.home)} values for {len(spec.names)} channels")
    if spec.gripper.channel not in spec.names:
        raise ValueError(f"{path}: gripper: no channel {spec.gripper.channel!r}")
    for channel, home in zip(spec.channels, spec.home, strict=True):
        numbers = [v for v in dataclasses.astuple(channel) if isinstance(v, float)]
        positive = min(channel.velocity, channel.acceleration, channel.jerk) > 0
        if not (all(map(math.isfinite, numbers)) and channel.low < channel.high and positive):
            raise ValueError(f"{path}: joint {channel.name!r} has limits that leave it no motion")
        if not channel.low <= home <= channel.high:
            raise ValueError(f"{path}: home of joint {channel.name!r} is {home}, outside its range")
        ends = (spec.gripper.open, spec.gripper.closed)
        if channel.name == spec.gripper.channel and not all(
            channel.low <= end <= channel.high for end in ends
        ):
            raise ValueError(f"{path}: gripper: open and closed are {ends}, outside its range")
