"""Subscribes to joint states and cameras, which `robot_bridge.sensing.sync` matches.

Stamps are converted to the monotonic clock; images come raw or compressed. An image stays
serialized until it is used: most never are, and decoding a large one takes as long as a decision.
"""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import CompressedImage, Image, JointState

from robot_bridge.nodes import common
from robot_bridge.sensing import convert, joint_states
from robot_bridge.sensing.joint_states import JointStates
from robot_bridge.sensing.sync import Sync, SyncConfig, SyncedObservation

RMWError = rclpy_implementation.RMWError


class ObservationSubscriber:
    """Subscriptions of a node until it is closed; any thread may call `look`."""

    def __init__(
        self, node: Any, config: SyncConfig, cameras: tuple[str, ...], names: tuple[str, ...],
        size_px: tuple[int, int], *, compressed: bool, on_error: Callable[[str], None],
    ) -> None:  # fmt: skip
        """Subscribe.

        Args:
            node: Node with the subscriptions.
            config: Limits of age and distance in time.
            cameras: Cameras in view order.
            names: Joints in the order of poses, as the arm's driver calls them.
            size_px: Height and width of returned images.
            compressed: Whether images come as cameras/NAME/image_raw/compressed.
            on_error: Called with the reason if a message cannot be read.
        """
        self.node, self.config, self.size_px = node, config, size_px
        self.joints = JointStates(names, config.max_observation_age_s)
        self.compressed, self.on_error = compressed, on_error
        self.sync, self.lock = Sync(config, cameras), threading.Lock()
        subscribe = node.create_subscription
        self.subscriptions = [
            subscribe(JointState, "joint_states", self._on_joints, common.SENSORS)
        ]
        kind: Any = CompressedImage if compressed else Image
        for camera in cameras:
            topic = f"cameras/{camera}/image_raw" + "/compressed" * compressed
            receive = lambda m, name=camera: self._on_image(name, m)  # noqa: E731
            self.subscriptions.append(subscribe(kind, topic, receive, common.SENSORS, raw=True))

    def look(self, now_s: float) -> SyncedObservation | str:
        """Return the present observation, or the reason why there is none."""
        try:
            with self.lock:
                return self._missing_part(now_s) or self.sync.look(now_s)
        except ValueError as error:
            return str(error)

    def pose(self) -> np.ndarray | None:
        """Return the last measured pose f64 [u], None before the first."""
        with self.lock:
            return self.sync.joints[-1][1] if self.sync.joints else None

    def close(self) -> None:
        """Destroy the subscriptions."""
        for subscription in self.subscriptions:
            self.node.destroy_subscription(subscription)
        self.subscriptions = []

    def monotonic_s(self, stamp_ns: int) -> float:
        """Return a stamp on the monotonic clock."""
        # In this order, a pause between the clocks makes a message older, never newer.
        now_s = time.monotonic()
        return now_s - 1e-9 * (self.node.get_clock().now().nanoseconds - stamp_ns)

    def _on_joints(self, message: JointState) -> None:
        now_s, stamp = time.monotonic(), message.header.stamp
        stamp_ns = 1_000_000_000 * stamp.sec + stamp.nanosec  # a negative one is no time for rclpy
        try:
            at_s = self.monotonic_s(stamp_ns) if stamp_ns else now_s  # a driver without stamps
            with self.lock:
                joints = self.joints
                joints.take(now_s, now_s - at_s, message.name, message.position)
                if not self._missing_part(now_s) and np.isfinite(joints.pose).all():
                    self.sync.add_joints(joints.times_s.max(), joints.pose.copy())
        except ValueError as error:
            self.on_error(str(error))

    def _missing_part(self, now_s: float) -> str:
        """Return which joints are silent while others are heard, "" if none."""
        limit_s, joints = self.config.max_observation_age_s, self.joints
        ages_s = now_s - joints.times_s
        if not (ages_s <= limit_s).any():
            return ""
        return joint_states.missing(joints.names, ages_s, limit_s)

    def _on_image(self, camera: str, packed: bytes) -> None:
        received_s = time.monotonic()
        try:
            time_s = self.monotonic_s(convert.stamp_ns(packed))
            if time_s - received_s > self.config.max_observation_age_s:  # it would hide later ones
                raise ValueError(
                    f"stamped {time_s - received_s:.2f} s in the future, at most "
                    f"{self.config.max_observation_age_s}; synchronise the clock of its computer"
                )
        except ValueError as error:
            self.on_error(f"camera {camera}: {error}")
            return
        with self.lock:
            self.sync.add_image(camera, time_s, lambda: self._decode(camera, packed), received_s)

    def _decode(self, camera: str, packed: bytes) -> np.ndarray:
        what = f"camera {camera}"
        try:
            message = deserialize_message(packed, CompressedImage if self.compressed else Image)
        except RMWError as error:
            raise ValueError(f"{what}: {len(packed)} bytes that are no image") from error
        data = np.frombuffer(message.data, np.uint8)
        if self.compressed:
            image = convert.decode(data, what)
        else:
            image = convert.raw_image(
                data, message.height, message.width, message.step, message.encoding, what,
                is_bigendian=bool(message.is_bigendian),
            )  # fmt: skip
        return convert.center_crop_resize(image, *self.size_px)
