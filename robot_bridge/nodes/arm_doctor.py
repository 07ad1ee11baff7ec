"""Listens to an arm and moves it a little, for `vla doctor arm`."""

import time
from functools import partial
from typing import Any

import numpy as np
from rcl_interfaces.srv import GetParameters
from rclpy.parameter import parameter_value_to_python
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

from robot_bridge.launching.driver import Driver
from robot_bridge.nodes import common
from robot_bridge.nodes.driver_states import DriverStates
from robot_bridge.nodes.remote_arm import RemoteArm
from robot_bridge.sensing.arm_checks import Arrival

ANSWER_S = 2.0
"""Longest time in s until a node answers with its parameters."""
STILL, STEPS, LEAST_S = 1e-3, 3, 1.0
"""An arm is at rest if no joint changes by more in a control step, for so many steps, after so many
seconds."""


class ArmDoctor(RemoteArm):
    """An arm that is examined. A context manager."""

    def __init__(self, robot: Any, driver: Driver, driver_file: str, **options: Any) -> None:
        """Connect; `options` are those of `RemoteArm`."""
        self.driver = driver
        self.joint_messages: list[Arrival] = []
        self.images: dict[str, list[Arrival]] = {}
        super().__init__(robot, driver_file=driver_file, **options)

    def _connect(self) -> None:
        super()._connect()
        take = lambda m: self._keep(self.joint_messages, m, (list(m.name), list(m.position)))  # noqa: E731
        self._listen(JointState, "joint_states", take, common.SENSORS)
        kind: Any = CompressedImage if self.compressed else Image
        for camera in self.cameras:
            topic = f"cameras/{camera}/image_raw" + "/compressed" * self.compressed
            self.images[camera] = []
            self._listen(kind, topic, partial(self._keep_image, camera), common.SENSORS)
        self.description = ""
        self._listen(String, "robot_description", self._keep_description, common.LATCHED)
        self.driver_states = DriverStates(self._listen, self.driver.states, lambda: None)

    def _listen(self, kind: Any, topic: str, take: Any, qos: Any) -> None:
        self.node.create_subscription(kind, topic, take, qos)

    def _keep_image(self, camera: str, message: Any) -> None:
        shape = tuple(getattr(message, name, "") for name in ("encoding", "height", "width"))
        self._keep(self.images[camera], message, shape)

    def _keep_description(self, message: String) -> None:
        self.description = message.data

    def _keep(self, messages: list[Arrival], message: Any, content: Any) -> None:
        now_s = self.node.get_clock().now().nanoseconds * 1e-9
        messages.append(Arrival(now_s, common.seconds(message.header.stamp), content))

    def listen(self, span_s: float) -> None:
        """Gather messages for a time, once each sensor has been found or has had as long for it."""
        kept = [self.joint_messages, *self.images.values()]
        end_s = time.monotonic() + span_s
        while not all(kept) and time.monotonic() < end_s:
            time.sleep(0.05)
        for messages in kept:
            messages.clear()  # what was waiting for a subscriber is old
        time.sleep(span_s)

    def publishers(self, topic: str) -> list[str]:
        """Return the nodes that publish on a topic."""
        full = self.node.resolve_topic_name(topic)
        return [info.node_name for info in self.node.get_publishers_info_by_topic(full)]

    def listeners(self, topic: str) -> int:
        """Return the number of subscribers of a topic that are no recorders."""
        full = self.node.resolve_topic_name(topic)
        infos = self.node.get_subscriptions_info_by_topic(full)
        return sum("record" not in info.node_name for info in infos)

    def parameters(self, node: str, names: list[str]) -> dict[str, Any]:
        """Return parameters of a node; none if it does not answer."""
        client = self.node.create_client(GetParameters, f"{node}/get_parameters")
        try:
            if not client.wait_for_service(ANSWER_S):
                return {}
            future = client.call_async(GetParameters.Request(names=names))
            end_s = time.monotonic() + ANSWER_S
            while not future.done() and time.monotonic() < end_s:
                time.sleep(0.01)
            if not future.done():
                return {}
            values = [parameter_value_to_python(value) for value in future.result().values]
            return dict(zip(names, values, strict=False))
        finally:
            self.node.destroy_client(client)

    def pose(self) -> np.ndarray:
        """Return the measured pose f64 [u].

        Raises:
            ValueError: there is none.
        """
        pose = self.observations.pose()
        if pose is None:
            raise ValueError("no joint states of all joints; run the checks without --motion first")
        return pose

    def go(self, target: np.ndarray, limit_s: float) -> np.ndarray:
        """Send a target f64 [u] until the arm stands; return the measured pose."""
        begin_s, last, still = time.monotonic(), self.pose(), 0
        while time.monotonic() - begin_s < limit_s and still < STEPS:
            self.send(target[None])
            time.sleep(1 / self.robot.control_hz)
            pose = self.pose()
            stands = np.abs(pose - last).max() < STILL
            still = still + 1 if stands and time.monotonic() - begin_s > LEAST_S else 0
            last = pose
        return last
