"""`safety_node`: the only publisher on the controller's topic, in a separate process.

`robot_bridge.safety.gate` has its logic. A thread with absolute deadlines makes the ticks. A late
tick is not made up for, because two commands at once would be twice the velocity.
"""

import contextlib
import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64, Float64MultiArray
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_bridge.launching import graph
from robot_bridge.launching.node_settings import check, chosen, ranged
from robot_bridge.motion import limits
from robot_bridge.nodes import common
from robot_bridge.policy.decision_log import SafetyLog
from robot_bridge.safety.gate import LEASE_S, Gate, GateConfig, Obstacles, Source
from robot_bridge.sensing import convert
from vla.contracts import registry
from vla.contracts.specs import RobotSpec

STATUS_S = 0.1
JITTER = 1000
"""Number of ticks in the reported jitter."""


@dataclass(frozen=True, kw_only=True)
class Settings(GateConfig):
    """Parameters of `safety_node`."""

    robot: str = "so101"
    """Robot, a file name under vla/robots."""
    limits: str = ""
    """File with acceleration and jerk of every joint; required."""
    max_velocity_scaling_factor: float = ranged(1.0, 0.01, 1.0)
    """Share of the limits' velocity, acceleration and jerk; 0.1 for first motions."""
    controller_type: str = chosen("trajectory", "trajectory", "forward")
    """Type of the controller: joint_trajectory_controller or forward_command_controller."""
    joints: tuple[str, ...] = ()
    """Order of joints of a forward command; the robot's order if empty."""
    collision: bool = False
    """Whether the arm stops before it collides with itself, its table or the sides of its workspace
    by its model; needs MuJoCo."""
    margin: float = ranged(0.005, 0.001, 0.05)
    """Distance in m that is kept; links that are closer at home are not checked."""
    log: str = ""
    """File (.npz), written at the end, with arrivals of chunks and commands; none if empty."""

    def __post_init__(self) -> None:
        check(self)
        if not self.limits:
            raise ValueError(
                "limits: not given; name a file with acceleration and jerk of every joint, such as "
                "those under launch/params"
            )


class SafetyNode(Node):
    """Runs the gate on ROS 2 topics."""

    def __init__(self) -> None:
        super().__init__("safety_node")
        self.settings: Settings = common.parameters(self, Settings)
        s = self.settings
        robot = registry.load("vla.robots", s.robot).SPEC
        allowed = limits.read(Path(s.limits), robot).scaled(s.max_velocity_scaling_factor)
        self.gate = Gate(s, allowed, self._obstacles(robot, allowed))
        self.lock = threading.Lock()
        self.order = [allowed.names.index(name) for name in self._order(allowed.names)]
        self.over = threading.Event()
        self.jitter_s: deque[float] = deque(maxlen=JITTER)
        self.log = SafetyLog() if s.log else None
        self._connect()
        self.thread = threading.Thread(target=self._tick, daemon=True)
        self.thread.start()
        self.get_logger().info(
            f"{s.robot}: from any motion to a standstill in {self.gate.stop_s:.2f} s at most; "
            f"disabled until safety_node/enable"
        )

    def _obstacles(self, robot: RobotSpec, allowed: limits.Limits) -> Obstacles | None:
        s = self.settings
        if not s.collision:
            if allowed.workspace is not None:
                raise ValueError(
                    f"{s.limits}: it has a workspace, which nothing keeps without collision:=true; "
                    "set that, or take the section out"
                )
            return None
        try:
            from robot_bridge.safety import clearance, collision
        except ModuleNotFoundError as error:
            if error.name != "mujoco":
                raise
            raise ValueError(
                "collision: true needs MuJoCo, which is not installed; pip install 'mujoco>=3.8'"
            ) from error
        distances = clearance.Clearance(robot, allowed.workspace, s.margin)
        for pair in distances.left_out:
            self.get_logger().warning(f"not checked, since it is so in the home pose: {pair}")
        return collision.Collision(distances, s.margin)

    def _order(self, names: tuple[str, ...]) -> tuple[str, ...]:
        wanted = self.settings.joints or names
        if sorted(wanted) != sorted(names):
            raise ValueError(f"joints: got {', '.join(wanted)}, expected {', '.join(names)}")
        return wanted

    def _connect(self) -> None:
        s = self.settings
        self.create_subscription(JointState, "joint_states", self._on_joints, common.SENSORS)
        self.create_subscription(
            JointTrajectory, "action_chunk", partial(self._on_chunk, "policy"),
            common.liveliness_qos(LEASE_S),
            event_callbacks=SubscriptionEventCallbacks(liveliness=self._liveliness),
        )  # fmt: skip
        on_teleop = partial(self._on_chunk, "teleop")
        self.create_subscription(JointTrajectory, "teleop", on_teleop, common.COMMANDS)
        self.create_subscription(Bool, "deadman", self._on_deadman, common.COMMANDS)
        self.create_subscription(Float64, "speed_scaling", self._on_scaling, common.COMMANDS)
        gate = self.gate
        self._serve(SetBool, "enable", lambda r: gate.enable(time.monotonic(), bool(r.data)))
        self._serve(Trigger, "disable", lambda _: gate.enable(time.monotonic(), False))
        self._serve(Trigger, "estop", lambda _: gate.estop("requested by service"))
        self._serve(Trigger, "reset_estop", lambda _: gate.reset())
        forward = s.controller_type == "forward"
        topic = graph.COMMANDS[s.controller_type]
        kind: Any = Float64MultiArray if forward else JointTrajectory
        self.commands = self.create_publisher(kind, topic, common.COMMANDS)
        self.publish_status = common.status_publisher(self, self._line)
        common.create_timer(self, STATUS_S, self.publish_status)

    # --- subscriptions and services -----------------------------------------------------------

    def _on_joints(self, message: JointState) -> None:
        try:
            pose = convert.by_name(
                message.name, message.position, self.gate.limits.names, "joint_states"
            )
        except ValueError as error:
            self._log_error(str(error))
            return
        with self.lock:
            self.gate.measure(time.monotonic(), pose)

    def _on_chunk(self, source: Source, message: JointTrajectory) -> None:
        now_s, clock = time.monotonic(), self.get_clock().now().nanoseconds * 1e-9
        age_s = clock - common.seconds(message.header.stamp)
        try:
            times_s, positions = convert.trajectory(
                message.joint_names, [p.positions for p in message.points],
                [common.seconds(p.time_from_start) for p in message.points],
                self.gate.limits.names, source,
            )  # fmt: skip
        except ValueError as error:
            with self.lock:
                self.gate.reject(str(error))
            self._log_error(str(error))
            return
        with self.lock:
            taken = self.gate.offer(now_s, source, now_s - age_s + times_s, positions, age_s)
            if self.log is not None:
                self.log.chunk(now_s, message.header.stamp, taken)

    def _on_deadman(self, message: Bool) -> None:
        with self.lock:
            self.gate.press(time.monotonic(), bool(message.data))

    def _on_scaling(self, message: Float64) -> None:
        with self.lock:
            self.gate.scale_speed(time.monotonic(), float(message.data))

    def _liveliness(self, event: Any) -> None:
        if event.alive_count == 0 and event.alive_count_change < 0:
            with self.lock:
                self.gate.policy_died("the policy's process is gone")

    def _serve(self, kind: Any, name: str, act: Callable[[Any], str | None]) -> None:
        """Create a service; `act` changes the gate and returns why not, if it refuses."""

        def answer(request: Any, response: Any) -> Any:
            with self.lock:
                response.message = act(request) or ""
            response.success = not response.message
            self.publish_status()
            return response

        self.create_service(kind, f"~/{name}", answer)

    # --- publishers ---------------------------------------------------------------------------

    def _tick(self) -> None:
        """Command at a fixed rate until the node ends."""
        dt_s, last_s = self.gate.dt_s, 0.0
        with _without_garbage_collection():
            for _ in _deadlines(dt_s, self.over):
                with self.lock:
                    now_s = time.monotonic()
                    stamps_s = self.get_clock().now().nanoseconds * 1e-9
                    self.gate.clocks(now_s, stamps_s, read_s=time.monotonic() - now_s)
                    command = self.gate.tick(now_s)
                if command is not None:
                    self.commands.publish(self._message(command))
                    if self.log is not None:
                        self.log.command(now_s, self.gate.series, command)
                self.jitter_s.append(abs(now_s - last_s - dt_s) if last_s else 0.0)
                last_s = now_s

    def _message(self, command: np.ndarray) -> Any:
        if self.settings.controller_type == "forward":
            return Float64MultiArray(data=command[self.order].tolist())
        assert self.gate.motion is not None
        point = JointTrajectoryPoint(
            positions=command.tolist(), velocities=self.gate.motion.v.tolist()
        )
        point.time_from_start.nanosec = round(1e9 * self.gate.dt_s)
        return JointTrajectory(joint_names=list(self.gate.limits.names), points=[point])

    def _line(self) -> DiagnosticStatus:
        gate = self.gate
        with self.lock:
            values = {
                "state": gate.state, "stage": gate.stage, "why": gate.why,
                "source": gate.source or "none", "stop_s": gate.stop_s,
                "speed_scaling": gate.share,
                **{f"count {name}": count for name, count in sorted(gate.counts.items())},
            }  # fmt: skip
            jitter_s = list(self.jitter_s)
        if jitter_s:
            values["tick jitter p99 ms"] = 1e3 * float(np.percentile(jitter_s, 99))
        level = {"latched_fault": "error", "stopping": "warn"}.get(gate.state, "ok")
        message = f"{gate.state}: {gate.why}" if level != "ok" else gate.state
        return common.status("safety_node", level, message, values, self.settings.robot)

    def _log_error(self, text: str) -> None:
        self.get_logger().error(text, throttle_duration_sec=1.0)

    def destroy_node(self) -> None:
        """Stop the ticks, then destroy the node."""
        self.over.set()
        self.thread.join(timeout=1.0)
        if self.log is not None:
            self.log.write(Path(self.settings.log))
        super().destroy_node()


def _deadlines(period_s: float, over: threading.Event) -> Iterator[float]:
    """Yield at multiples of a period; missed ones are left out."""
    due_s = time.monotonic()
    while not over.is_set():
        due_s += period_s
        wait_s = due_s - time.monotonic()
        if wait_s > 0:
            time.sleep(wait_s)
        elif -wait_s > period_s / 2:  # the next comes no sooner than half a period from now
            due_s -= wait_s
        yield due_s


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Exclude present objects from garbage collection, which takes milliseconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def main(argv: list[str] | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM."""
    return common.run(SafetyNode, argv)


if __name__ == "__main__":
    raise SystemExit(main())
