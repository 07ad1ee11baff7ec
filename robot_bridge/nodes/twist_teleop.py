"""`twist_teleop`: moves the tool as twists on topic `~/delta_twist_cmds` say, by way of `teleop`.

Twists come as MoveIt Servo takes them (m/s, rad/s); `~/gripper_cmd` is the position of the gripper.
The first command takes the arm over; silence lets it stand still, and after `release_s` disables
it. Every target passes the safety node like a policy's.
"""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from geometry_msgs.msg import TwistStamped
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Float64
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from robot_bridge.launching import driver
from robot_bridge.launching.node_settings import check, ranged
from robot_bridge.nodes import common
from robot_bridge.policy.execution import ARMED
from robot_bridge.policy.servo import Servo
from robot_bridge.sensing.joint_states import JointStates
from vla.contracts import robot_file

AHEAD = 5
"""Targets of a message: how many periods the arm goes on if no other comes."""
STATUS_S = 0.1
TOOL_FRAME = "tool"
METRES_PER_RADIAN = 0.1
MOST = 10.0
"""Largest component of a twist."""
NOT_ENABLED = "the arm is not enabled: vla safety enable"
RECENT_S = 0.5
"""Largest age of joint states from which the arm is taken over."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters of `twist_teleop`."""

    robot: str = "so101"
    """Robot, a file name under vla/robots, or a YAML file."""
    driver: str = ""
    """Driver file, or its name under launch/drivers, with the names of joints."""
    rate_hz: float = ranged(50.0, 10.0, 200.0)
    """Targets per second."""
    twist_timeout_s: float = ranged(0.25, 0.05, 2.0)
    """Age in s after which a twist counts as none, and the arm stands still."""
    release_s: float = ranged(30.0, 0.0, 3600.0)
    """Time in s without a command after which the arm is disabled."""
    max_lead: float = ranged(0.2, 0.01, 0.5)
    """How far in rad (a tenth of it in m) a target may be ahead of the measured pose."""
    linear_scale: float = ranged(1.0, 0.0, 10.0)
    """Factor of the twist's linear part."""
    angular_scale: float = ranged(1.0, 0.0, 10.0)
    """Factor of its angular part."""

    def __post_init__(self) -> None:
        check(self)


class TwistTeleop(Node):
    """Turns twists into targets of an arm."""

    def __init__(self) -> None:
        super().__init__("twist_teleop")
        s: Settings = common.parameters(self, Settings)
        self.settings, self.robot = s, robot_file.load(s.robot)
        self.servo = Servo(self.robot)
        self.period_s = 1 / s.rate_hz
        self.joint_states = JointStates(driver.read(s.driver, self.robot).names, np.inf)
        self.lead = s.max_lead * np.array(
            [1.0 if one.unit == "rad" else METRES_PER_RADIAN for one in self.robot.channels]
        )
        self.target: np.ndarray | None = None
        """Where the arm is told to be, f64 [u]; None while it is not driven from here."""
        self.twist, self.twist_s, self.in_tool = np.zeros(6), -np.inf, False
        self.gripper, self.commanded_s = np.nan, -np.inf
        self.state, self.why = "", ""
        self.place = self.robot.names.index(self.robot.gripper.channel)
        subscribe = self.create_subscription
        subscribe(JointState, "joint_states", self._on_joints, common.SENSORS)
        subscribe(TwistStamped, "~/delta_twist_cmds", self._on_twist, common.COMMANDS)
        subscribe(Float64, "~/gripper_cmd", self._on_gripper, common.COMMANDS)
        subscribe(DiagnosticArray, "safety_node/status", self._on_safety, common.LATCHED)
        self.publisher = self.create_publisher(JointTrajectory, "teleop", common.COMMANDS)
        self.disable = self.create_client(Trigger, "safety_node/disable")
        common.create_timer(self, STATUS_S, common.status_publisher(self, self._line))
        common.create_timer(self, self.period_s, self._tick)

    # --- subscriptions ------------------------------------------------------------------------

    def _on_joints(self, message: JointState) -> None:
        try:
            self.joint_states.take(time.monotonic(), 0.0, message.name, message.position)
        except ValueError as error:
            self._refuse(str(error))

    def _on_twist(self, message: TwistStamped) -> None:
        linear, angular = message.twist.linear, message.twist.angular
        twist = np.array([linear.x, linear.y, linear.z, angular.x, angular.y, angular.z])
        s, frame = self.settings, message.header.frame_id
        twist = twist * np.repeat([s.linear_scale, s.angular_scale], 3)
        stamp_s = common.seconds(message.header.stamp)
        age_s = self.get_clock().now().nanoseconds * 1e-9 - stamp_s if stamp_s else 0.0
        if self.state not in ARMED:
            self._refuse(NOT_ENABLED)
        elif not (np.abs(twist) <= MOST).all():  # NaN is not
            self._refuse(f"twist: got {twist}, expected at most {MOST:g} m/s and rad/s")
        elif age_s > s.twist_timeout_s:
            self._refuse(f"twist: {age_s:.2f} s old, at most {s.twist_timeout_s:g}")
        elif frame not in ("", "base", "base_link", "world", TOOL_FRAME):
            self._refuse(f"twist: got frame {frame!r}, expected base or {TOOL_FRAME}")
        else:
            self.twist, self.in_tool = twist, frame == TOOL_FRAME
            self.twist_s = self.commanded_s = time.monotonic()

    def _on_gripper(self, message: Float64) -> None:
        channel = self.robot.channels[self.place]
        if self.state not in ARMED:
            self._refuse(NOT_ENABLED)
        elif not channel.low <= message.data <= channel.high:  # NaN is not
            self._refuse(
                f"gripper: got {message.data}, expected {channel.low:g} to {channel.high:g}"
            )
        else:
            self.gripper, self.commanded_s = message.data, time.monotonic()

    def _on_safety(self, message: DiagnosticArray) -> None:
        self.state = common.key_values(message).get("state", "")
        if self.state not in ARMED:
            # What was asked of an arm that was stopped is not done when it is enabled again.
            self._release()

    def _release(self) -> None:
        self.target, self.gripper = None, np.nan
        self.twist_s = self.commanded_s = -np.inf

    # --- targets ------------------------------------------------------------------------------

    def _tick(self) -> None:
        now_s = time.monotonic()
        if self.state not in ARMED or self.commanded_s == -np.inf:
            return
        if now_s - self.commanded_s > self.settings.release_s:
            self._release()
            if self.disable.service_is_ready():  # otherwise silence stops the arm
                self.disable.call_async(Trigger.Request())
            return
        pose = self.joint_states.pose
        if self.target is None:
            if not now_s - self.joint_states.times_s.min() <= RECENT_S:
                self._refuse("no recent joint states; see whether the arm publishes them")
                return
            self.target = pose.copy()
        velocity = np.zeros(len(self.target))
        if now_s - self.twist_s <= self.settings.twist_timeout_s:
            velocity = self.servo.velocity(
                self.target, self.twist[:3], self.twist[3:], in_tool=self.in_tool
            )
        if np.isfinite(self.gripper):
            self.target[self.place] = self.gripper
        times_s = self.period_s * np.arange(AHEAD)
        targets = self.servo.ahead(self.target, velocity, times_s)
        stamp = self.get_clock().now()
        self.publisher.publish(
            common.chunk(self.robot.names, stamp, targets, self.settings.rate_hz)
        )
        # An arm that is slower, or held, is not left behind.
        self.target = np.clip(targets[1], pose - self.lead, pose + self.lead)

    # --- status -------------------------------------------------------------------------------

    def _refuse(self, why: str) -> None:
        self.why = why
        self.get_logger().error(why, throttle_duration_sec=1.0)

    def _line(self) -> DiagnosticStatus:
        driving = self.target is not None
        values: dict[str, Any] = {
            "state": "driving" if driving else "waits", "safety_state": self.state, "why": self.why,
        }  # fmt: skip
        return common.status("twist_teleop", "ok", values["state"], values, self.robot.name)


def main(argv: list[str] | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM."""
    return common.run(TwistTeleop, argv)


if __name__ == "__main__":
    raise SystemExit(main())
