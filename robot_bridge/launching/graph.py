"""The nodes of each launch configuration, with their parameters.

The launch files and `vla ros launch` start what is described here and add nothing. This module
imports neither ROS nor `launch`.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from robot_bridge.launching import driver, package_files
from robot_bridge.motion import limits as joint_limits
from vla.contracts import registry, robot_file
from vla.contracts.specs import RobotSpec

Value = bool | int | float | str | tuple[str, ...]
"""Type of a parameter."""
ControllerType = Literal["trajectory", "forward"]
SIMULATED_TRACKING_ERROR = 0.6
"""Largest distance of a simulated arm from its command, rad."""
_NAMESPACE = re.compile(r"(/?[A-Za-z_][A-Za-z0-9_]*)(/[A-Za-z_][A-Za-z0-9_]*)*")
_TOPIC = re.compile(r"[~/]?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One node: its program, name and ROS arguments."""

    executable: str
    """Program under lib/mneme_vla; also the name of the node."""
    module: str
    """Module with its `main`."""
    namespace: str = ""
    """Namespace without slashes at its ends; "" for none."""
    files: tuple[str, ...] = ()
    """ROS parameter files, read before `parameters`."""
    parameters: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    """Parameters by name."""
    remappings: tuple[tuple[str, str], ...] = ()
    """Topics, from and to."""
    lifecycle: bool = False
    """Whether it has to be configured and activated."""
    respawn: bool = False
    """Whether it is restarted when it ends."""
    vital: bool = False
    """Whether all nodes end when it ends."""

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.executable

    @property
    def path(self) -> str:
        """Name with namespace, as ROS writes it; also that of its security enclave."""
        return f"/{self.namespace}/{self.name}" if self.namespace else f"/{self.name}"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A policy moves an arm whose driver and controllers are running."""

    robot: str = "so101"
    """Robot, a file name under vla/robots, or a YAML file."""
    policy: str = ""
    """Folder of an exported policy, or address of a server: unix:PATH or HOST:PORT."""
    targets: tuple[str, ...] = ()
    """Fallback list of inference targets; onnxruntime if empty."""
    token_file: str = ""
    """File with the token of a policy server."""
    authority: str = ""
    """Certificate (PEM) of the authority that signed the policy server's certificate."""
    instruction: str = ""
    """Instruction until another one comes on topic `instruction`; if empty, the policy waits."""
    cameras: tuple[str, ...] = ()
    """Cameras, each on topics cameras/NAME; all of the robot's if empty."""
    controller_type: ControllerType = "trajectory"
    """Type of the controller: joint_trajectory_controller or forward_command_controller."""
    controller: str = ""
    """Topic of the controller; the default name of its type if empty."""
    joints: tuple[str, ...] = ()
    """Joints in the controller's order; the robot's order if empty."""
    driver: str = ""
    """Driver file, or its name under launch/drivers: names of joints, controllers and states of the
    arm's driver. If empty, one controller has all joints under the robot's names."""
    limits: str = ""
    """YAML file with acceleration and jerk of every joint; the robot's under launch/params if
    empty."""
    params: str = ""
    """ROS parameter file of the nodes; the robot's under launch/params if empty."""
    max_velocity_scaling_factor: float = 0.1
    """Share of the limits' speed, 0.01 to 1; a simulated arm's is 1."""
    deadman: bool = False
    """Whether a person has to hold a switch on topic `deadman` for the arm to move."""
    collision: bool = False
    """Whether the arm stops before it collides with itself or leaves the workspace of the limits
    file; needs MuJoCo."""
    max_tool_speed: float = 0.0
    """Largest speed of the tool in m/s, such as 0.25 with people near; 0: none; needs MuJoCo."""
    twist: bool = False
    """Whether a person may drive the tool by twists, as MoveIt Servo's; needs MuJoCo."""
    compressed: bool = False
    """Whether images come as cameras/NAME/image_raw/compressed."""
    reward_model: str = ""
    """Folder of an exported reward model that monitors, slows and holds the arm; none if empty."""
    namespace: str = ""
    """Namespace of all nodes and topics."""
    use_sim_time: bool = False
    """Whether ROS time comes from /clock."""


@dataclass(frozen=True, kw_only=True)
class Record(Arm):
    """A person or a policy moves an arm, and all topics are recorded."""

    out: str = ""
    """Folder for the recordings."""
    topics: tuple[str, ...] = ()
    """Further topics to record, each as TOPIC=TYPE, such as /tf=tf2_msgs/msg/TFMessage."""


@dataclass(frozen=True, kw_only=True)
class SimArm(Arm):
    """A policy moves a simulated arm; without a policy it waits for `teleop`."""

    task: str = "reach"
    """Simulated task."""
    seed: int = 0
    """Seed of its episodes."""
    episode: int = 0
    """First episode."""
    max_velocity_scaling_factor: float = 1.0
    """Share of the limits' speed, 0.01 to 1."""
    use_sim_time: bool = True
    """Whether ROS time comes from /clock."""


@dataclass(frozen=True, kw_only=True)
class DualArm:
    """Two arms, each with its own policy, limits and stop, in two namespaces."""

    left: Arm = field(default_factory=lambda: Arm(namespace="left"))
    """Settings of the left arm."""
    right: Arm = field(default_factory=lambda: Arm(namespace="right"))
    """Settings of the right arm."""


def arm(cfg: Arm) -> tuple[NodeSpec, ...]:
    """Return the nodes of a real arm.

    Raises:
        ValueError: a setting is missing or unknown, or settings contradict each other.
    """
    _need(cfg.policy, "policy", "a folder of `vla export`, unix:PATH or HOST:PORT")
    return (_safety(cfg), *_policy(cfg), *_monitor(cfg), *_twist(cfg))


def record(cfg: Record) -> tuple[NodeSpec, ...]:
    """Return the nodes that move and record a real arm.

    Raises:
        ValueError: a setting is missing or unknown, or settings contradict each other.
    """
    _need(cfg.out, "out", "a folder for the recordings")
    recorder = _node(
        cfg, "recorder", "recorder", remap=True, folder=str(Path(cfg.out).absolute()),
        cameras=_cameras(cfg), images="compressed" if cfg.compressed else "raw",
        robot=_robot_name(cfg), driver=_driver(cfg), topics=cfg.topics,
    )  # fmt: skip
    return (_safety(cfg), recorder, *_policy(cfg), *_monitor(cfg), *_twist(cfg))


def sim_arm(cfg: SimArm) -> tuple[NodeSpec, ...]:
    """Return a simulated arm and its nodes; the simulation is vital as well.

    Raises:
        ValueError: a setting is missing or unknown, or settings contradict each other.
    """
    registry.check("sim.tasks", cfg.task)
    simulated = _node(
        cfg, "sim_arm", "sim_arm", vital=True, remap=True, robot=_robot_name(cfg), task=cfg.task,
        driver=_driver(cfg),
        seed=cfg.seed, episode=cfg.episode, interface=cfg.controller_type, joints=cfg.joints,
        compressed=cfg.compressed, publish_clock=cfg.use_sim_time,
    )  # fmt: skip
    safety = _safety(cfg)
    if not cfg.params:  # a busy machine's simulation lags as no arm does
        parameters = {**safety.parameters, "max_tracking_error": SIMULATED_TRACKING_ERROR}
        safety = replace(safety, parameters=parameters)
    return (simulated, safety, *_policy(cfg), *_monitor(cfg), *_twist(cfg))


def dual_arm(cfg: DualArm) -> tuple[NodeSpec, ...]:
    """Return the nodes of two arms.

    Raises:
        ValueError: both have the same namespace, or settings of one are wrong.
    """
    if cfg.left.namespace.strip("/") == cfg.right.namespace.strip("/"):
        raise ValueError(
            f"left and right: got namespace {cfg.left.namespace!r} twice; each arm needs its own"
        )
    return arm(cfg.left) + arm(cfg.right)


CONFIGS: dict[str, tuple[type[Any], Callable[[Any], tuple[NodeSpec, ...]]]] = {
    "sim_arm": (SimArm, sim_arm),
    "arm": (Arm, arm),
    "record": (Record, record),
    "dual_arm": (DualArm, dual_arm),
}
"""Launch configurations: settings, and the function that makes nodes of them."""


def name_arguments(name: str, namespace: str) -> list[str]:
    """Return the ROS arguments that name a node."""
    return ["-r", f"__node:={name}", *(["-r", f"__ns:=/{namespace}"] if namespace else [])]


def ros_arguments(node: NodeSpec) -> list[str]:
    """Return the ROS arguments with enclave, parameters and remappings of a node."""
    words = ["--enclave", node.path]
    for file in node.files:
        words += ["--params-file", file]
    for name, value in node.parameters.items():
        # JSON is YAML, and in quotes a text such as "no" or "1.0" stays one.
        words += ["-p", f"{name}:={json.dumps(value, ensure_ascii=False)}"]
    for old, new in node.remappings:
        words += ["-r", f"{old}:={new}"]
    return words


def _safety(cfg: Arm) -> NodeSpec:
    robot = _robot(cfg)
    share = cfg.max_velocity_scaling_factor
    if not 0.01 <= share <= 1:
        raise ValueError(f"max_velocity_scaling_factor: got {share}, expected 0.01 to 1")
    driver.of_one_controller(robot, joints=cfg.joints)
    default = package_files.params() / f"{robot.name}_limits.yaml"
    file = Path(cfg.limits) if cfg.limits else default
    joint_limits.read(file, robot)
    # A setting that was not given must not overrule a parameter file.
    given: dict[str, Any] = {"collision": True} if cfg.collision else {}
    if cfg.max_tool_speed:
        given["max_tool_speed"] = cfg.max_tool_speed
    return _node(
        cfg, "safety_node", "safety", vital=True, remap=True, robot=_robot_name(cfg),
        joints=cfg.joints, controller_type=cfg.controller_type,
        limits=str(file.absolute()), driver=_driver(cfg),
        max_velocity_scaling_factor=share, deadman=cfg.deadman,
        monitored=bool(cfg.reward_model), **given,
    )  # fmt: skip


def _policy(cfg: Arm) -> tuple[NodeSpec, ...]:
    if not cfg.policy:
        return ()
    where = cfg.policy
    if not re.fullmatch(r"unix:.+|[^/]+:\d+", where):
        where = _folder(where, "exported policy", "a folder of `vla export`, unix:PATH, HOST:PORT")
    return (
        _node(
            cfg, "policy_node", "policy", lifecycle=True, robot=_robot_name(cfg), policy=where,
            targets=cfg.targets, instruction=cfg.instruction, cameras=_cameras(cfg),
            compressed=cfg.compressed, driver=_driver(cfg),
            token_file=_file(cfg.token_file), authority=_file(cfg.authority),
        ),
    )  # fmt: skip


def _monitor(cfg: Arm) -> tuple[NodeSpec, ...]:
    if not cfg.reward_model:
        return ()
    reward_model = _folder(cfg.reward_model, "exported reward model", "a folder of `vla export`")
    return (
        _node(
            cfg, "monitor", "monitor", robot=_robot_name(cfg), reward_model=reward_model,
            cameras=_cameras(cfg), compressed=cfg.compressed, instruction=cfg.instruction,
            driver=_driver(cfg),
        ),
    )  # fmt: skip


def _twist(cfg: Arm) -> tuple[NodeSpec, ...]:
    if not cfg.twist:
        return ()
    robot, file = _robot_name(cfg), _driver(cfg)
    return (_node(cfg, "twist_teleop", "twist_teleop", robot=robot, driver=file),)


def _node(
    cfg: Arm, executable: str, module: str, *, lifecycle: bool = False, vital: bool = False,
    remap: bool = False, **parameters: Value,
) -> NodeSpec:  # fmt: skip
    """Return a node of a configuration; empty parameters keep the node's defaults."""
    namespace = cfg.namespace.strip("/")
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise ValueError(
            f"namespace: got {cfg.namespace!r}, expected letters, digits and underscores, such as "
            "left or cell1/left"
        )
    topic = driver.TOPICS[cfg.controller_type]
    if cfg.controller and not _TOPIC.fullmatch(cfg.controller):
        raise ValueError(f"controller: got {cfg.controller!r}, expected a topic such as {topic}")
    # The publisher of the clock does not wait for it.
    clock = {} if "publish_clock" in parameters else {"use_sim_time": cfg.use_sim_time}
    values = {**parameters, **clock}
    return NodeSpec(
        executable=executable, module=f"robot_bridge.nodes.{module}", namespace=namespace,
        files=_params(cfg), lifecycle=lifecycle, vital=vital,
        parameters={name: value for name, value in values.items() if value not in ("", ())},
        remappings=((topic, cfg.controller),) if remap and cfg.controller else (),
    )  # fmt: skip


def _driver(cfg: Arm) -> str:
    """Return the path of the driver file, "" if none is given."""
    if not cfg.driver:
        return ""
    if cfg.controller or cfg.joints or cfg.controller_type != "trajectory":
        raise ValueError(
            f"driver: {cfg.driver} has the controllers; leave controller, controller_type and "
            "joints out"
        )
    driver.read(cfg.driver, _robot(cfg))
    return str(driver.file_of(cfg.driver))


def _robot(cfg: Arm) -> RobotSpec:
    spec: RobotSpec = robot_file.load(cfg.robot)
    return spec


def _robot_name(cfg: Arm) -> str:
    """Return the robot's name, or the path of its file."""
    return str(Path(cfg.robot).absolute()) if cfg.robot.endswith(robot_file.SUFFIXES) else cfg.robot


def _cameras(cfg: Arm) -> tuple[str, ...]:
    available = tuple(camera.name for camera in _robot(cfg).cameras)
    unknown = [name for name in cfg.cameras if name not in available]
    if unknown:
        raise ValueError(
            f"cameras: {cfg.robot} has no {unknown[0]!r}; it has {', '.join(available)}"
        )
    return cfg.cameras or available


def _params(cfg: Arm) -> tuple[str, ...]:
    if cfg.params:
        return (_file(cfg.params),)
    default = package_files.params() / f"{cfg.robot}.yaml"
    return (str(default),) if default.is_file() else ()


def _file(name: str) -> str:
    if name and not Path(name).is_file():
        raise ValueError(f"{name}: no file there; give the path of one, or leave it out")
    return str(Path(name).absolute()) if name else ""


def _folder(name: str, what: str, expected: str) -> str:
    if not Path(name).is_dir():
        raise ValueError(f"{name}: no {what} there; give {expected}")
    return str(Path(name).absolute())


def _need(value: str, name: str, expected: str) -> None:
    if not value:
        raise ValueError(f"{name}: got nothing, expected {expected}")
