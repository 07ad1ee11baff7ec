"""Joint states and cameras as a node hears them, matched to one observation by `robot_bridge.sync`.

Stamps are moved to the monotonic clock; cameras come raw or compressed.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.time import Time
from sensor_msgs.msg import CompressedImage, Image, JointState

from robot_bridge import convert
from robot_bridge.nodes import common
from robot_bridge.sync import Seen, Sync, SyncConfig


class Eyes:
    """Listens for a node until it is closed; any thread may look."""

    def __init__(
        self, node: Any, config: SyncConfig, names: tuple[str, ...], size_px: tuple[int, int], *,
        compressed: bool = False, wrong: Callable[[str], None] = lambda why: None,
    ) -> None:  # fmt: skip
        """Subscribe.

        Args:
            node: Who listens.
            config: What belongs together.
            names: Joints in the order of poses.
            size_px: Height and width of the pictures that are shown.
            compressed: Whether pictures come as cameras/NAME/image_raw/compressed.
            wrong: Is told of joint states that cannot be read.
        """
        self.node, self.names, self.size_px = node, names, size_px
        self.compressed, self.wrong = compressed, wrong
        self.sync, self.lock = Sync(config), threading.Lock()
        subscribe = node.create_subscription
        self.subscriptions = [subscribe(JointState, "joint_states", self._joints, common.SENSORS)]
        kind: Any = CompressedImage if compressed else Image
        for camera in config.cameras:
            topic = f"cameras/{camera}/image_raw" + "/compressed" * compressed
            heard = lambda m, name=camera: self._picture(name, m)  # noqa: E731
            self.subscriptions.append(subscribe(kind, topic, heard, common.SENSORS))

    def look(self, now_s: float) -> Seen | str:
        """Return what is seen now, or why nothing can be decided on it."""
        try:
            with self.lock:
                return self.sync.look(now_s)
        except ValueError as error:
            return str(error)

    def pose(self) -> np.ndarray | None:
        """Return the last measured pose f64 [u], None before the first."""
        with self.lock:
            return self.sync.joints[-1][1] if self.sync.joints else None

    def close(self) -> None:
        """Listen no longer."""
        for one in self.subscriptions:
            self.node.destroy_subscription(one)
        self.subscriptions = []

    def _seen_s(self, stamp: Any) -> float:
        """Return a stamp on the monotonic clock."""
        clock = self.node.get_clock()
        age = clock.now() - Time.from_msg(stamp, clock.clock_type)
        return time.monotonic() - 1e-9 * age.nanoseconds

    def _joints(self, message: JointState) -> None:
        try:
            pose = convert.by_name(message.name, message.position, self.names, "joint_states")
        except ValueError as error:
            self.wrong(str(error))
            return
        with self.lock:
            self.sync.take_joints(self._seen_s(message.header.stamp), pose)

    def _picture(self, camera: str, message: Any) -> None:
        came_s, seen_s = time.monotonic(), self._seen_s(message.header.stamp)
        with self.lock:
            self.sync.take_picture(camera, seen_s, lambda: self._read(camera, message), came_s)

    def _read(self, camera: str, message: Any) -> np.ndarray:
        what, data = f"camera {camera}", np.frombuffer(message.data, np.uint8)
        if self.compressed:
            image = convert.decoded(data, what)
        else:
            image = convert.picture(
                data, message.height, message.width, message.step, message.encoding, what
            )
        return convert.fitted(image, *self.size_px)
