"""Which nodes run together in each use, with which parameters; no ROS here and no `launch`.

The launch files and `vla up` start what is described here and add nothing of their own.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from robot_bridge import limits as joint_limits
from robot_bridge import share
from vla.contracts import registry
from vla.contracts.specs import RobotSpec

Value = bool | int | float | str | tuple[str, ...]
"""What a parameter may be."""
Output = Literal["trajectory", "forward"]
COMMANDS: dict[str, str] = {
    "trajectory": "joint_trajectory_controller/joint_trajectory",
    "forward": "forward_command_controller/commands",
}
"""Topic of the safety node's commands, by output."""
_NAMESPACE = re.compile(r"(/?[A-Za-z_][A-Za-z0-9_]*)(/[A-Za-z_][A-Za-z0-9_]*)*")
_TOPIC = re.compile(r"[~/]?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*")


@dataclass(frozen=True, kw_only=True)
class NodeSpec:
    """One node: the program, what it is called and what it is told."""

    executable: str
    """Program under lib/mneme_vla, and name of the node."""
    module: str
    """Module whose `main` it runs."""
    namespace: str = ""
    """Namespace without slashes at its ends; "" for none."""
    files: tuple[str, ...] = ()
    """ROS parameter files, read before `parameters`."""
    parameters: Mapping[str, Value] = field(default_factory=lambda: MappingProxyType({}))
    """Parameters by name."""
    remappings: tuple[tuple[str, str], ...] = ()
    """Topics, from and to."""
    lifecycle: bool = False
    """It has to be configured and activated."""
    respawn: bool = False
    """It is started again when it ends."""
    vital: bool = False
    """When it ends, everything ends."""

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.executable

    @property
    def path(self) -> str:
        """Name with namespace, as ROS writes it; that of its security enclave as well."""
        return f"/{self.namespace}/{self.name}" if self.namespace else f"/{self.name}"


@dataclass(frozen=True, kw_only=True)
class Arm:
    """A policy moves an arm whose driver and controllers run already."""

    robot: str = "so101"
    """Robot, a file under vla/robots."""
    policy: str = ""
    """Folder of an exported policy, or address of a server: unix:PATH or HOST:PORT."""
    targets: tuple[str, ...] = ()
    """Who may run the policy, in order; onnxruntime if none is named."""
    token_file: str = ""
    """File with the token of a policy server."""
    authority: str = ""
    """Certificate (PEM) of who signed the policy server's."""
    instruction: str = ""
    """Instruction until another comes on topic `task`; without one the policy waits for it."""
    cameras: tuple[str, ...] = ()
    """Cameras, each on topics cameras/NAME; all of the robot's if none is named."""
    output: Output = "trajectory"
    """Which kind of controller takes the commands."""
    controller: str = ""
    """Its topic; joint_trajectory_controller/joint_trajectory or
    forward_command_controller/commands if none is named."""
    joints: tuple[str, ...] = ()
    """Joints in the controller's order; the robot's own if none is named."""
    limits: str = ""
    """YAML file with acceleration and jerk of every joint; the robot's under launch/params if none
    is named."""
    params: str = ""
    """ROS parameter file of the nodes; the robot's under launch/params, where there is one."""
    speed: float = 1.0
    """Share of the limits' speed, 0.01 to 1; 0.1 for the first motion."""
    deadman: bool = False
    """Whether a person has to hold a switch on topic `deadman` for the arm to move."""
    collision: bool = False
    """Whether ways are refused on which the arm collides with itself, or leaves the workspace that
    the limits file says; needs MuJoCo."""
    compressed: bool = False
    """Whether pictures come as cameras/NAME/image_raw/compressed."""
    critic: str = ""
    """Folder of an exported critic that watches, slows and holds the arm; nobody does if none is
    named."""
    namespace: str = ""
    """Namespace of all nodes and topics."""
    use_sim_time: bool = False
    """Whether time comes from /clock."""


@dataclass(frozen=True, kw_only=True)
class Record(Arm):
    """A person, or a policy if one is named, moves an arm, and everything is recorded."""

    out: str = ""
    """Folder for the recordings."""


@dataclass(frozen=True, kw_only=True)
class SimArm(Arm):
    """The same with a simulated arm; without a policy it waits for `teleop`."""

    task: str = "reach"
    """Task that is simulated."""
    seed: int = 0
    """Seed of its episodes."""
    episode: int = 0
    """First episode."""
    use_sim_time: bool = True
    """Whether time comes from /clock."""


@dataclass(frozen=True, kw_only=True)
class DualArm:
    """Two arms, each with its own policy, limits and stop, in two namespaces."""

    left: Arm = field(default_factory=lambda: Arm(namespace="left"))
    """The one arm."""
    right: Arm = field(default_factory=lambda: Arm(namespace="right"))
    """The other arm."""


def arm(use: Arm) -> tuple[NodeSpec, ...]:
    """Return the nodes beside a real arm.

    Raises:
        ValueError: something is missing, unknown or does not go together.
    """
    _need(use.policy, "policy", "a folder of `vla export`, unix:PATH or HOST:PORT")
    return (_safety(use), *_policy(use), *_monitor(use))


def record(use: Record) -> tuple[NodeSpec, ...]:
    """Return the nodes that move and record a real arm.

    Raises:
        ValueError: something is missing, unknown or does not go together.
    """
    _need(use.out, "out", "a folder for the recordings")
    recorder = _node(
        use, "recorder", "recorder", folder=str(Path(use.out).absolute()), cameras=_cameras(use),
        pictures="compressed" if use.compressed else "raw",
    )  # fmt: skip
    return (_safety(use), recorder, *_policy(use), *_monitor(use))


def sim_arm(use: SimArm) -> tuple[NodeSpec, ...]:
    """Return a simulated arm and the nodes beside it; the simulation is vital as well.

    Raises:
        ValueError: something is missing, unknown or does not go together.
    """
    registry.check("sim.tasks", use.task)
    simulated = _node(
        use, "sim_arm", "sim_arm", vital=True, remap=True, robot=use.robot, task=use.task,
        seed=use.seed, episode=use.episode, interface=use.output, joints=use.joints,
        compressed=use.compressed, publish_clock=use.use_sim_time,
    )  # fmt: skip
    return (simulated, _safety(use), *_policy(use), *_monitor(use))


def dual_arm(use: DualArm) -> tuple[NodeSpec, ...]:
    """Return the nodes of two arms.

    Raises:
        ValueError: both have one namespace, or something is wrong with one of them.
    """
    if use.left.namespace.strip("/") == use.right.namespace.strip("/"):
        raise ValueError(
            f"left and right: got namespace {use.left.namespace!r} twice; each arm needs its own"
        )
    return arm(use.left) + arm(use.right)


USES: dict[str, tuple[type[Any], Callable[[Any], tuple[NodeSpec, ...]]]] = {
    "sim_arm": (SimArm, sim_arm),
    "arm": (Arm, arm),
    "record": (Record, record),
    "dual_arm": (DualArm, dual_arm),
}
"""What can be started: its settings, and what makes nodes of them."""


def called(name: str, namespace: str) -> list[str]:
    """Return the ROS arguments that name a node."""
    return ["-r", f"__node:={name}", *(["-r", f"__ns:=/{namespace}"] if namespace else [])]


def told(node: NodeSpec) -> list[str]:
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


def _safety(use: Arm) -> NodeSpec:
    robot = _robot(use)
    if not 0.01 <= use.speed <= 1:
        raise ValueError(f"speed: got {use.speed}, expected 0.01 to 1")
    if use.joints and sorted(use.joints) != sorted(robot.names):
        raise ValueError(
            f"joints: got {', '.join(use.joints)}, expected those of {robot.name} in another "
            f"order: {', '.join(robot.names)}"
        )
    own = share.params() / f"{robot.name}_limits.yaml"
    file = Path(use.limits) if use.limits else own
    joint_limits.read(file, robot)
    # A parameter file that says so is not overruled by a setting that nobody gave.
    collision = {"collision": True} if use.collision else {}
    return _node(
        use, "safety_node", "safety", vital=True, remap=True, robot=use.robot, output=use.output,
        joints=use.joints, limits=str(file.absolute()), speed=use.speed, deadman=use.deadman,
        monitored=bool(use.critic), **collision,
    )  # fmt: skip


def _policy(use: Arm) -> tuple[NodeSpec, ...]:
    if not use.policy:
        return ()
    where = use.policy
    if not re.fullmatch(r"unix:.+|[^/]+:\d+", where):
        where = _folder(where, "exported policy", "a folder of `vla export`, unix:PATH, HOST:PORT")
    return (
        _node(
            use, "policy_node", "policy", lifecycle=True, robot=use.robot, policy=where,
            targets=use.targets, instruction=use.instruction, cameras=_cameras(use),
            compressed=use.compressed,
            token_file=_file(use.token_file), authority=_file(use.authority),
        ),
    )  # fmt: skip


def _monitor(use: Arm) -> tuple[NodeSpec, ...]:
    if not use.critic:
        return ()
    critic = _folder(use.critic, "exported critic", "a folder of `vla export`")
    return (
        _node(
            use, "monitor", "monitor", robot=use.robot, critic=critic, cameras=_cameras(use),
            compressed=use.compressed, instruction=use.instruction,
        ),
    )  # fmt: skip


def _node(
    use: Arm, executable: str, module: str, *, lifecycle: bool = False, vital: bool = False,
    remap: bool = False, **parameters: Value,
) -> NodeSpec:  # fmt: skip
    """Return a node of a use; parameters that are empty are left to it."""
    namespace = use.namespace.strip("/")
    if namespace and not _NAMESPACE.fullmatch(namespace):
        raise ValueError(
            f"namespace: got {use.namespace!r}, expected letters, digits and underscores, such as "
            "left or cell1/left"
        )
    if use.controller and not _TOPIC.fullmatch(use.controller):
        raise ValueError(
            f"controller: got {use.controller!r}, expected a topic such as {COMMANDS[use.output]}"
        )
    # Who makes the clock does not wait for it.
    clock = {} if "publish_clock" in parameters else {"use_sim_time": use.use_sim_time}
    given = {**parameters, **clock}
    return NodeSpec(
        executable=executable, module=f"robot_bridge.nodes.{module}", namespace=namespace,
        files=_params(use), lifecycle=lifecycle, vital=vital,
        parameters={name: value for name, value in given.items() if value not in ("", ())},
        remappings=((COMMANDS[use.output], use.controller),) if remap and use.controller else (),
    )  # fmt: skip


def _robot(use: Arm) -> RobotSpec:
    spec: RobotSpec = registry.load("vla.robots", use.robot).SPEC
    return spec


def _cameras(use: Arm) -> tuple[str, ...]:
    known = tuple(camera.name for camera in _robot(use).cameras)
    unknown = [name for name in use.cameras if name not in known]
    if unknown:
        raise ValueError(f"cameras: {use.robot} has no {unknown[0]!r}; it has {', '.join(known)}")
    return use.cameras or known


def _params(use: Arm) -> tuple[str, ...]:
    if use.params:
        return (_file(use.params),)
    own = share.params() / f"{use.robot}.yaml"
    return (str(own),) if own.is_file() else ()


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
