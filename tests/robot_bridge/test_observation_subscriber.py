"""Pictures stay packed until somebody looks; what is damaged is said, and nothing is seen of it."""

import time

import numpy as np
import pytest

pytest.importorskip("rclpy")

from rclpy.clock import Clock
from rclpy.serialization import serialize_message
from sensor_msgs.msg import Image, JointState

from robot_bridge.nodes.observation_subscriber import ObservationSubscriber
from robot_bridge.sensing import convert
from robot_bridge.sensing.sync import SyncConfig, SyncedObservation

pytestmark = pytest.mark.ros
CONFIG = SyncConfig(
    max_observation_age_s=60.0, max_sync_interval_s=60.0, frozen_image_timeout_s=60.0
)


class Listener:
    """A node as far as eyes need one."""

    def __init__(self):
        self.clock = Clock()

    def create_subscription(self, *_, **__):
        return None

    def get_clock(self):
        return self.clock


def subscriber(node, on_error):
    return ObservationSubscriber(
        node, CONFIG, ("front",), ("hinge",), (2, 3), compressed=False, on_error=on_error
    )


def packed(clock):
    message = Image(height=2, width=3, step=9, encoding="rgb8", data=bytes(range(18)))
    message.header.stamp = clock.now().to_msg()
    return message.header.stamp, serialize_message(message)


def test_a_packed_picture_is_placed_by_its_stamp_and_unpacked_when_looked_at():
    node, wrong = Listener(), []
    observations = subscriber(node, wrong.append)
    stamp, message = packed(node.clock)
    assert convert.stamp_ns(message) == stamp.sec * 10**9 + stamp.nanosec
    observations._on_image("front", message)
    observations.sync.add_joints(time.monotonic(), np.zeros(1))
    seen = observations.look(time.monotonic())
    assert isinstance(seen, SyncedObservation)
    np.testing.assert_array_equal(seen.images[0].ravel(), np.arange(18))
    assert wrong == []


def test_the_order_of_bytes_is_that_of_the_message():
    node, wrong = Listener(), []
    observations = subscriber(node, wrong.append)
    message = Image(height=2, width=3, step=6, encoding="mono16", data=bytes([7, 0] * 6))
    message.is_bigendian = 1
    message.header.stamp = node.clock.now().to_msg()
    observations._on_image("front", serialize_message(message))
    observations.sync.add_joints(time.monotonic(), np.zeros(1))
    seen = observations.look(time.monotonic())
    assert isinstance(seen, SyncedObservation)
    assert (seen.images[0] == 7).all()


def test_damaged_pictures_are_named():
    node, wrong = Listener(), []
    observations = subscriber(node, wrong.append)
    _, message = packed(node.clock)
    observations._on_image("front", message[:7])
    assert wrong == ["camera front: got 7 bytes, expected a message with a header"]
    observations.sync.add_joints(time.monotonic(), np.zeros(1))
    assert observations.look(time.monotonic()) == "no image of camera front yet"
    observations._on_image("front", message[:20])
    assert observations.look(time.monotonic()) == "camera front: 20 bytes that are no image"


def test_stamps_that_are_no_time_or_of_the_future_hide_nothing():
    node, wrong = Listener(), []
    observations = ObservationSubscriber(
        node, SyncConfig(), ("front",), ("hinge",), (2, 3), compressed=False, on_error=wrong.append
    )
    for sec in (-5, 2_145_916_800):  # rclpy has no negative time; the year 2038
        joints = JointState(name=["hinge"], position=[0.1])
        joints.header.stamp.sec = sec
        observations._on_joints(joints)
        image = Image(height=2, width=3, step=9, encoding="rgb8", data=bytes(18))
        image.header.stamp.sec = sec
        observations._on_image("front", serialize_message(image))
    assert sum("in the future" in why for why in wrong) == 2
    joints = JointState(name=["hinge"], position=[0.2])
    joints.header.stamp, image = packed(node.clock)
    observations._on_joints(joints)
    observations._on_image("front", image)
    seen = observations.look(time.monotonic())
    assert isinstance(seen, SyncedObservation), seen
    assert seen.proprio == pytest.approx([0.2])
