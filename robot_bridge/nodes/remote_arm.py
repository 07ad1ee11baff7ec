"""An arm behind the bridge as a Python object: look, send targets, arm and stop it.

What is sent goes through the safety node like everybody's: as a person's on `teleop`, or as a
policy's on `chunk`. For loops that are not a node of ours, such as LeRobot's.
"""

import threading
import time
from typing import Literal

import numpy as np
from rclpy.duration import Duration
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_bridge.gate import LEASE_S
from robot_bridge.nodes import common
from robot_bridge.nodes.eyes import Eyes
from robot_bridge.nodes.operator import Operator
from robot_bridge.sync import Seen, SyncConfig
from vla.contracts.specs import RobotSpec

LOOK_S = 10.0
"""How long the first observation may take: the other side has to be found."""
GLANCE_S = 0.002
"""How often it is looked while nothing is seen."""
GAP = 1.5
"""Control steps without a new target after which the last one is said again."""


class RemoteArm(Operator):
    """An arm that is driven from here. A context manager; its end leaves the arm as it is."""

    def __init__(
        self, robot: RobotSpec, *, namespace: str = "", cameras: tuple[str, ...] = (),
        compressed: bool = False, stale_s: float = 0.3, apart_s: float = 0.1,
        frozen_s: float = 1.0, as_: Literal["teleop", "chunk"] = "teleop",
    ) -> None:  # fmt: skip
        """Connect to topics and services; whether somebody answers, `look` and `enable` tell.

        Args:
            robot: The arm; pictures are fitted to the size of its first camera.
            namespace: Of the arm's nodes.
            cameras: Cameras by name, in view order; those of the robot if empty.
            compressed: Whether pictures come as cameras/NAME/image_raw/compressed.
            stale_s: Oldest part of an observation.
            apart_s: Largest distance in time between the parts of an observation.
            frozen_s: How long a camera may show the same to the bit while the arm moves.
            as_: Topic of the targets: a person's, which come first, or the policy's.
        """
        self.robot, self.as_ = robot, as_
        self.hold_s = 0.0
        """How long the last target is said again where no other follows, before the silence that
        latches the arm."""
        self.cameras = cameras or tuple(camera.name for camera in robot.cameras)
        self.compressed, self.trouble = compressed, ""
        self.sync = SyncConfig(
            cameras=self.cameras, stale_s=stale_s, apart_s=apart_s, frozen_s=frozen_s
        )
        self.lock = threading.Lock()
        self.last: np.ndarray | None = None
        self.last_s = 0.0
        super().__init__(namespace, "remote_arm")

    def _connect(self) -> None:
        super()._connect()
        size_px = (self.robot.cameras[0].height_px, self.robot.cameras[0].width_px)
        self.eyes = Eyes(
            self.node, self.sync, self.robot.names, size_px, compressed=self.compressed,
            wrong=self._complain,
        )  # fmt: skip
        qos = common.alive(LEASE_S / 2) if self.as_ == "chunk" else common.COMMANDS
        self.targets = self.node.create_publisher(JointTrajectory, self.as_, qos)
        self.node.create_timer(1 / self.robot.control_hz, self._hold)

    def look(self, limit_s: float = LOOK_S) -> Seen:
        """Return the latest observation: RGB u8 [v, h, w, 3], pose f32 [u].

        Raises:
            ValueError: nothing fit to decide on was seen in time; says what is missing.
        """
        end_s = time.monotonic() + limit_s
        while True:
            now_s = time.monotonic()
            seen = self.eyes.look(now_s)
            if isinstance(seen, Seen):
                return seen
            if now_s > end_s:
                why = f"{seen}; {self.trouble}" if self.trouble else seen
                raise ValueError(f"{self.robot.name}: waited {limit_s:g} s for what it sees: {why}")
            time.sleep(GLANCE_S)

    def send(self, targets: np.ndarray, begin_s: float | None = None) -> None:
        """Send the targets f64 [k, u] of the present control step and of those after it.

        The safety node follows them while the arm is enabled, and stops and latches if no others
        come in time.

        Args:
            targets: One pose per control step, in the unit of each joint.
            begin_s: When the present step began, by the monotonic clock; now if None.

        Raises:
            ValueError: they are of another shape.
        """
        shape, joints = np.shape(targets), len(self.robot.names)
        if len(shape) != 2 or shape[0] < 1 or shape[1] != joints:
            raise ValueError(f"targets: got shape {list(shape)}, expected [steps, {joints}]")
        with self.lock:
            self.last, self.last_s = np.asarray(targets[-1:], np.float64), time.monotonic()
            self._publish(np.asarray(targets, np.float64), begin_s)

    def enable(self, on: bool) -> None:
        """Arm, or bring to rest and disarm; what was sent before counts no longer.

        Raises:
            ValueError: the safety node refuses.
        """
        with self.lock:
            self.last = None
        super().enable(on)

    def _publish(self, targets: np.ndarray, begin_s: float | None = None) -> None:
        stamp = self.node.get_clock().now()
        if begin_s is not None:
            stamp -= Duration(seconds=time.monotonic() - begin_s)
        message = JointTrajectory(joint_names=list(self.robot.names))
        message.header.stamp = stamp.to_msg()
        message.points = [
            JointTrajectoryPoint(
                positions=target.tolist(),
                time_from_start=Duration(seconds=i / self.robot.control_hz).to_msg(),
            )
            for i, target in enumerate(targets)
        ]
        self.targets.publish(message)

    def _hold(self) -> None:
        """Say the last target again where the next is late, for as long as that is allowed."""
        with self.lock:
            if self.last is None:
                return
            silent_s = time.monotonic() - self.last_s
            if self.state not in ("holding", "following") or silent_s > self.hold_s:
                self.last = None
            elif silent_s > GAP / self.robot.control_hz:
                self._publish(self.last)

    def _complain(self, why: str) -> None:
        self.trouble = why
