"""An arm behind the safety node as a Python object, for programs that are no node, such as LeRobot.

Its targets pass the safety node like all others: as a person's on `teleop` or a policy's on
`action_chunk`.
"""

import threading
import time
from functools import partial
from typing import Literal

import numpy as np
from rclpy.duration import Duration
from trajectory_msgs.msg import JointTrajectory

from robot_bridge.launching import driver
from robot_bridge.nodes import common
from robot_bridge.nodes.observation_subscriber import ObservationSubscriber
from robot_bridge.nodes.operator import Operator
from robot_bridge.safety.gate_config import LEASE_S
from robot_bridge.sensing.sync import SyncConfig, SyncedObservation
from vla.contracts.specs import RobotSpec

LOOK_S = 10.0
"""Longest time in s until the first observation, discovery included."""
POLL_S = 0.002
"""Period of `look` while there is no observation."""
GAP = 1.5
"""Control steps without a new target after which the last one is repeated."""


class RemoteArm(Operator):
    """An arm driven from this process. A context manager; its end leaves the arm as it is."""

    def __init__(
        self, robot: RobotSpec, *, namespace: str = "", cameras: tuple[str, ...] = (),
        compressed: bool = False, sync: SyncConfig | None = None,
        topic: Literal["teleop", "action_chunk"] = "teleop", driver_file: str = "",
    ) -> None:  # fmt: skip
        """Connect to topics and services; `look` and `enable` fail if nothing answers.

        Args:
            robot: The arm; images are resized to the size of its first camera.
            namespace: Namespace of the arm's nodes.
            cameras: Cameras in view order; those of the robot if empty.
            compressed: Whether images come as cameras/NAME/image_raw/compressed.
            sync: Limits of age and distance in time.
            topic: Topic of the targets: a person's, which has priority, or the policy's.
            driver_file: Driver file, or its name under launch/drivers, with the names of joints.
        """
        self.names = driver.read(driver_file, robot).names
        self.robot, self.topic = robot, topic
        self.hold_s = 0.0
        """Time in s for which the last target is repeated before the arm latches on silence."""
        self.cameras = cameras or tuple(camera.name for camera in robot.cameras)
        self.compressed, self.trouble = compressed, ""
        self.sync = sync or SyncConfig()
        self.lock, self.over = threading.Lock(), threading.Event()
        self.last: np.ndarray | None = None
        self.last_s = 0.0
        super().__init__(namespace, "remote_arm")

    def _connect(self) -> None:
        super()._connect()
        size_px = (self.robot.cameras[0].height_px, self.robot.cameras[0].width_px)
        self.observations = ObservationSubscriber(
            self.node, self.sync, self.cameras, self.names, size_px,
            compressed=self.compressed, on_error=partial(setattr, self, "trouble"),
        )  # fmt: skip
        qos = common.liveliness_qos(LEASE_S) if self.topic == "action_chunk" else common.COMMANDS
        self.targets = self.node.create_publisher(JointTrajectory, self.topic, qos)
        # Not a timer of the node, which would wait behind the images.
        self.repeater = threading.Thread(target=self._repeat, daemon=True)
        self.repeater.start()

    def close(self) -> None:
        """End threads and node."""
        self.over.set()
        self.repeater.join(5.0)
        super().close()

    def look(self, limit_s: float = LOOK_S) -> SyncedObservation:
        """Return the latest observation: RGB u8 [v, h, w, 3], pose f32 [u].

        Raises:
            ValueError: there was no observation in time.
        """
        end_s = time.monotonic() + limit_s
        while True:
            now_s = time.monotonic()
            observation = self.observations.look(now_s)
            if isinstance(observation, SyncedObservation):
                return observation
            if now_s > end_s:
                why = f"{observation}; {self.trouble}" if self.trouble else observation
                raise ValueError(
                    f"{self.robot.name}: waited {limit_s:g} s for an observation: {why}"
                )
            time.sleep(POLL_S)

    def send(self, targets: np.ndarray, begin_s: float | None = None) -> None:
        """Send the targets f64 [k, u] of the present control step and the next ones.

        The safety node follows them while the arm is enabled, and stops and latches if no new ones
        come in time.

        Args:
            targets: One pose per control step, in the unit of each joint.
            begin_s: Beginning of the present step by the monotonic clock; now if None.

        Raises:
            ValueError: their shape is wrong.
        """
        shape, joints = np.shape(targets), len(self.robot.names)
        if len(shape) != 2 or shape[0] < 1 or shape[1] != joints:
            raise ValueError(f"targets: got shape {list(shape)}, expected [steps, {joints}]")
        with self.lock:
            self.last, self.last_s = np.asarray(targets[-1:], np.float64), time.monotonic()
            self._publish(np.asarray(targets, np.float64), begin_s)

    def enable(self, on: bool) -> None:
        """Enable the arm, or bring it to rest and disable it; earlier targets are forgotten.

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
        robot = self.robot
        self.targets.publish(common.chunk(robot.names, stamp, targets, robot.control_hz))

    def _repeat(self) -> None:
        """Send the last target again if the next one is late, for at most `hold_s`."""
        while not self.over.wait(1 / self.robot.control_hz):
            with self.lock:
                waited_s = time.monotonic() - self.last_s
                if self.state not in ("holding", "tracking") or waited_s > self.hold_s:
                    self.last = None
                elif self.last is not None and waited_s > GAP / self.robot.control_hz:
                    self._publish(self.last)
