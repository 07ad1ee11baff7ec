"""The driver of an arm as data: its names of joints, its controllers and its states.

A driver file (launch/drivers) says how a robot's joints are reached, so that one policy moves every
arm of its kind whatever the driver calls the joints. All other modules use the robot's own names.
This module does not import ROS.
"""

import reprlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import yaml

from robot_bridge.launching import package_files
from vla.contracts.specs import RobotSpec

ControllerType = Literal["trajectory", "forward", "gripper_command", "parallel_gripper_command"]
TOPICS: dict[str, str] = {
    "trajectory": "joint_trajectory_controller/joint_trajectory",
    "forward": "forward_command_controller/commands",
    "gripper_command": "gripper_controller/gripper_cmd",
    "parallel_gripper_command": "gripper_controller/gripper_cmd",
}
"""Topic of commands, or action, by type of controller."""
TYPES: dict[str, str] = {
    "trajectory": "trajectory_msgs/msg/JointTrajectory",
    "forward": "std_msgs/msg/Float64MultiArray",
    "gripper_command": "control_msgs/action/GripperCommand",
    "parallel_gripper_command": "control_msgs/action/ParallelGripperCommand",
}
"""Type of the commands, by type of controller."""
MOST_TEXT = 1 << 16
"""Most characters of a driver file."""
GRIPPER = "gripper"
"""Stands for the robot's gripper where joints are listed."""


@dataclass(frozen=True, kw_only=True)
class Controller:
    """A controller and the joints that it moves."""

    type: ControllerType
    topic: str
    """Topic of its commands, or name of its action."""
    joints: tuple[str, ...]
    """The robot's names, in the controller's order."""
    max_effort: float = 0.0
    """Largest effort of a gripper's action; 0 leaves it to the driver."""

    @property
    def is_topic(self) -> bool:
        """Whether its commands are messages; else they are goals of an action."""
        return self.type in ("trajectory", "forward")


@dataclass(frozen=True, kw_only=True)
class DriverState:
    """A topic of the driver that has to show certain values while the arm moves."""

    topic: str
    type: str
    """Such as std_msgs/msg/Bool."""
    field: str
    """Path to the value, such as data or status.mode; NAME=VALUE picks an element of a list."""
    expected: tuple[Any, ...] = ()
    """Values with which the arm may move; any if empty."""
    low: float = -float("inf")
    high: float = float("inf")
    """Range of the value with which the arm may move."""
    timeout_s: float = 0.0
    """Silence in s that counts as a wrong value; 0: a driver that says it once is enough."""

    def fault(self, message: Any) -> str:
        """Return what is wrong with a message, "" if the arm may move."""
        try:
            value = _value(message, self.field)
        except LookupError as error:
            return f"{self.topic}: {error}"
        if self.expected and value not in self.expected:
            wanted = " or ".join(map(str, self.expected))
            return f"{self.topic}: {self.field} is {value!s:.40}, expected {wanted}"
        number = isinstance(value, (int, float))
        if (self.low, self.high) == (-float("inf"), float("inf")):
            return ""
        if number and self.low <= value <= self.high:
            return ""
        return (
            f"{self.topic}: {self.field} is {value!s:.40}, expected {self.low:g} to {self.high:g}"
        )


@dataclass(frozen=True, kw_only=True)
class Driver:
    """How the joints of a robot are reached."""

    joints: tuple[str, ...]
    """The robot's names of its joints, in its order."""
    controllers: tuple[Controller, ...]
    """Together they have every joint once."""
    joint_prefix: str = ""
    joint_names: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    """The driver's names where they differ, by the robot's; the prefix comes before all."""
    states: tuple[DriverState, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The driver's names of the joints, in the robot's order."""
        return self.names_of(self.joints)

    def names_of(self, joints: Sequence[str]) -> tuple[str, ...]:
        """Return the driver's names of some of the robot's joints."""
        return tuple(self.joint_prefix + self.joint_names.get(name, name) for name in joints)

    @property
    def has_trajectory(self) -> bool:
        """Whether some controller follows trajectories; then all commands are decided ahead."""
        return any(controller.type == "trajectory" for controller in self.controllers)


def of_one_controller(
    robot: RobotSpec, kind: str = "trajectory", joints: Sequence[str] = (), topic: str = ""
) -> Driver:
    """Return a driver with the robot's names and one controller for all joints.

    Raises:
        ValueError: the joints are not those of the robot.
    """
    order = tuple(joints) or robot.names
    if sorted(order) != sorted(robot.names):
        raise ValueError(
            f"joints: got {', '.join(order)}, expected those of {robot.name} in another order: "
            f"{', '.join(robot.names)}"
        )
    assert kind in ("trajectory", "forward")
    one = Controller(type=kind, topic=topic or TOPICS[kind], joints=order)  # type: ignore[arg-type]
    return Driver(joints=robot.names, controllers=(one,))


def file_of(name: str) -> Path:
    """Return the file of a driver: a path, or a name under launch/drivers.

    Raises:
        ValueError: there is none.
    """
    folder = package_files.folder() / "launch" / "drivers"
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(one.stem for one in folder.glob("*.yaml")))
        raise ValueError(f"driver: no file {path}; give the path of one, or a name: {known}")
    return path.absolute()


def read(
    name: str, robot: RobotSpec, kind: str = "trajectory", joints: Sequence[str] = ()
) -> Driver:
    """Return the driver of a file, given by its path or its name under launch/drivers.

    Without a name, one controller of a kind has all joints, in an order, under the robot's names.

    Raises:
        ValueError: there is no file, it is no YAML, an entry is unknown, missing or of another
            type, or the controllers do not have every joint of the robot once.
    """
    if not name:
        return of_one_controller(robot, kind, joints)
    path = file_of(name)
    try:
        text = path.read_text()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: no text ({error})") from error
    return of_text(text, robot, str(path))


class _Loader(yaml.SafeLoader):
    """Takes no aliases: a few of them can stand for more than fits into memory."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("it has an alias (*NAME)")
        return super().compose_node(parent, index)


def of_text(text: str, robot: RobotSpec, what: str) -> Driver:
    """Return the driver of a file's text, which may be hostile; `what` names it in errors.

    Raises:
        ValueError: as `read`.
    """
    if len(text) > MOST_TEXT:
        raise ValueError(f"{what}: got {len(text)} characters, expected at most {MOST_TEXT}")
    try:
        content = yaml.load(text, _Loader)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{what}: no YAML ({' '.join(str(error).split())})") from error
    except RecursionError as error:
        raise ValueError(f"{what}: it is nested too deep") from error
    return parse(content, robot, what)


def parse(content: Any, robot: RobotSpec, what: str) -> Driver:
    """Return the driver of a parsed file; `what` names it in errors.

    Raises:
        ValueError: as `read`.
    """
    known = ("joint_prefix", "joint_names", "controllers", "states")
    content = _entries(content, known, what)
    prefix = _of_type(content.get("joint_prefix", ""), str, f"{what}: joint_prefix", "a text")
    names = _of_type(content.get("joint_names", {}), dict, f"{what}: joint_names", "a map")
    names = {
        _joint(key, robot, f"{what}: joint_names"): _of_type(
            value, str, f"{what}: joint_names of {key!s:.40}", "a text"
        )
        for key, value in names.items()
    }
    rows = _of_type(content.get("controllers"), list, f"{what}: controllers", "a list")
    controllers = _controllers(rows, robot, what)
    states = _of_type(content.get("states", []), list, f"{what}: states", "a list")
    driver = Driver(
        joints=robot.names, controllers=controllers, joint_prefix=prefix, joint_names=names,
        states=tuple(_state(row, f"{what}: states[{i}]") for i, row in enumerate(states)),
    )  # fmt: skip
    topics = [controller.topic for controller in controllers]
    for what_is, words in (("joints", driver.names), ("controllers", topics)):
        twice = [word for word in words if list(words).count(word) > 1]
        if twice:
            raise ValueError(f"{what}: two {what_is} have the driver's name {twice[0]!r}")
    return driver


def _controllers(rows: list[Any], robot: RobotSpec, what: str) -> tuple[Controller, ...]:
    """Return the controllers; at most one may leave its joints out and takes the remaining ones."""
    parsed: list[tuple[dict[str, Any], tuple[str, ...] | None]] = []
    for i, row in enumerate(rows):
        where = f"{what}: controllers[{i}]"
        row = _entries(row, ("type", "topic", "joints", "max_effort"), where)
        if row.get("type") not in get_args(ControllerType):
            raise ValueError(f"{where}: type is {row.get('type')!r}, expected {' or '.join(TYPES)}")
        joints = row.get("joints")
        joints = [joints] if isinstance(joints, str) else joints
        if joints is not None:
            joints = _of_type(joints, list, f"{where}: joints", "a list of names")
            joints = tuple(_joint(name, robot, f"{where}: joints") for name in joints)
        parsed.append((row, joints))
    named = [name for _, joints in parsed for name in joints or ()]
    remaining = tuple(name for name in robot.names if name not in named)
    open_ended = sum(joints is None for _, joints in parsed)
    twice = [name for name in named if named.count(name) > 1]
    if twice or open_ended > 1:
        joint = repr((twice or remaining or robot.names)[0])
        raise ValueError(f"{what}: two controllers have joint {joint}; each joint has one")
    if (remaining and not open_ended) or not parsed:
        raise ValueError(f"{what}: no controller has joint {remaining[0]!r}; each joint needs one")
    return tuple(
        _controller(row, remaining if joints is None else joints, f"{what}: controllers[{i}]")
        for i, (row, joints) in enumerate(parsed)
    )


def _controller(row: dict[str, Any], joints: tuple[str, ...], where: str) -> Controller:
    kind = row["type"]
    topic = _of_type(row.get("topic", TOPICS[kind]), str, f"{where}: topic", "a topic")
    effort = _of_type(row.get("max_effort", 0.0), (int, float), f"{where}: max_effort", "a number")
    one = Controller(type=kind, topic=topic, joints=joints, max_effort=_number(effort, where))
    if not joints or (not one.is_topic and len(joints) != 1):
        wanted = "joints" if one.is_topic else "one joint"
        raise ValueError(f"{where}: got {len(joints)} joints, {kind} expects {wanted}")
    return one


def _state(row: Any, where: str) -> DriverState:
    row = _entries(row, ("topic", "type", "field", "expected", "range", "timeout_s"), where)
    texts = {
        name: _of_type(row.get(name), str, f"{where}: {name}", "a text")
        for name in ("topic", "type", "field")
    }
    if texts["type"].count("/") != 2:
        raise ValueError(f"{where}: type is {texts['type']!r}, expected such as std_msgs/msg/Bool")
    expected = row.get("expected", [])
    expected = tuple(expected) if isinstance(expected, list) else (expected,)
    span = row.get("range", [-float("inf"), float("inf")])
    numbers = isinstance(span, list) and [type(x) in (int, float) for x in span] == [True, True]
    if not numbers or ("range" in row and not all(abs(x) < 1e300 for x in span)):
        raise ValueError(f"{where}: range is {_short(span)}, expected [lowest, highest]")
    if not expected and "range" not in row:
        raise ValueError(f"{where}: got neither expected nor range; say what lets the arm move")
    timeout_s = _of_type(row.get("timeout_s", 0.0), (int, float), f"{where}: timeout_s", "seconds")
    low, high = map(float, span)
    if not low < high:
        raise ValueError(f"{where}: range is {span!r}, expected the lowest value first")
    timeout_s = _number(timeout_s, where)
    return DriverState(**texts, expected=expected, low=low, high=high, timeout_s=timeout_s)


def _number(value: Any, where: str) -> float:
    """Return a finite number that is not below 0."""
    if not 0 <= value < 1e6:
        raise ValueError(f"{where}: got {_short(value)}, expected a number from 0 on")
    return float(value)


def _joint(name: Any, robot: RobotSpec, where: str) -> str:
    """Return a joint's name; `gripper` stands for the robot's gripper if it has no such joint."""
    if name == GRIPPER and name not in robot.names and robot.gripper:
        return robot.gripper.channel
    if name not in robot.names:
        raise ValueError(
            f"{where}: unknown joint {name!r}; {robot.name} has {', '.join(robot.names)}"
        )
    return str(name)


def _short(value: Any) -> str:
    """Return a value for a message; of a long one the begin."""
    return reprlib.repr(value)[:60]


def _entries(content: Any, known: Sequence[str], where: str) -> dict[str, Any]:
    if not isinstance(content, dict):
        raise ValueError(f"{where}: got {_short(content)}, expected entries {', '.join(known)}")
    other = sorted(set(map(str, content)) - set(known))
    if other:
        raise ValueError(f"{where}: unknown entry {other[0]!r}; known are {', '.join(known)}")
    return content


def _of_type(value: Any, kind: Any, where: str, expected: str) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{where} is {_short(value)}, expected {expected}")
    return value


def _value(message: Any, path: str) -> Any:
    """Return the value at a path of a message.

    Raises:
        LookupError: it has no such field or element.
    """
    for part in path.split("."):
        key, _, wanted = part.partition("=")
        if wanted:
            found = [one for one in message if str(getattr(one, key, "")) == wanted]
            if not found:
                raise LookupError(f"no element with {key} {wanted}")
            message = found[0]
        elif not hasattr(message, key):
            raise LookupError(f"no field {key}")
        else:
            message = getattr(message, key)
    return message
