"""An arm as a Python object, over DDS: a simulated arm and a safety node behind it."""

import dataclasses
import os
import time

import numpy as np
import pytest

pytest.importorskip("rclpy")

from benchmarks.robot_bridge.ros_latency import running
from robot_bridge.launching import graph
from robot_bridge.nodes.remote_arm import RemoteArm
from robot_bridge.nodes.sim_arm import robot_of
from robot_bridge.sensing.sync import SyncConfig
from robot_bridge.sim_arm.settings import Settings
from tests.robot_bridge.ros_graph import wait_until
from vla.contracts import registry

pytestmark = pytest.mark.ros

ROBOT = registry.load("vla.robots", "so101").SPEC
NAMESPACE = f"arm_{os.getpid()}"
"""Whoever runs the same test beside us is not heard."""
PERIOD_S = 1 / ROBOT.control_hz
PATIENT = {"command_timeout_s": 5.0, "joint_state_timeout_s": 5.0}
"""For machines that do other things, too."""
SEEN_S = 60.0
"""Until nodes that have just been started show something."""
SYNC = SyncConfig(max_observation_age_s=5.0, max_sync_interval_s=2.0, frozen_image_timeout_s=60.0)


@pytest.fixture
def nodes(tmp_path):
    use = graph.SimArm(task="reach", use_sim_time=False, namespace=NAMESPACE)
    told = {"safety_node": PATIENT, "sim_arm": {"compressed": True}}
    with running(graph.sim_arm(use), told, tmp_path / "nodes.log"):
        yield


def drive(arm, target, limit_s=60.0):
    """Send a pose until the arm is there; return the last observation."""
    end_s = time.monotonic() + limit_s
    while True:
        seen = arm.look()
        if np.abs(seen.proprio - target).max() < 0.03:
            return seen
        assert time.monotonic() < end_s, (arm.heard, seen.proprio)
        # As a chunk is: on the way there from where the arm is, no farther than may be jumped.
        way = np.clip(target - seen.proprio, -0.4, 0.4)
        arm.send(seen.proprio + np.linspace(0.5, 1.0, 6)[:, None] * way)
        time.sleep(PERIOD_S)


@pytest.mark.parametrize("topic", ["teleop", "action_chunk"])
def test_an_arm_is_seen_enabled_driven_to_a_target_and_stopped(nodes, topic):
    with RemoteArm(ROBOT, namespace=NAMESPACE, topic=topic, sync=SYNC) as arm:
        seen = arm.look(SEEN_S)
        assert seen.images.shape == (2, 96, 96, 3)
        assert seen.images.dtype == np.uint8
        assert seen.images.std() > 10
        np.testing.assert_allclose(seen.proprio, ROBOT.home, atol=0.02)

        arm.enable(True)
        assert arm.state == "holding"
        target = np.array(ROBOT.home) + [0.8, 0.2, 0, 0, 0, -0.2]
        drive(arm, target)
        assert arm.state == "tracking"
        assert arm.heard["safety_node"]["source"] == {"action_chunk": "policy"}.get(topic, topic)

        arm.estop()
        arm.wait(lambda: arm.state == "latched_fault", "the e-stop")
        stood = arm.look().proprio
        for _ in range(5):
            arm.send(np.array([ROBOT.home]))
            time.sleep(PERIOD_S)
        np.testing.assert_allclose(arm.look().proprio, stood, atol=0.02)
        with pytest.raises(ValueError, match="latched by e-stop: requested by service; clear it"):
            arm.enable(True)

        arm.rearm()
        arm.enable(True)
        drive(arm, target - [0.3, 0, 0, 0, 0, 0])
        arm.enable(False)
        assert arm.state == "disabled"


def test_a_target_is_said_again_for_a_while_so_that_a_pause_does_not_latch(nodes):
    with RemoteArm(ROBOT, namespace=NAMESPACE, sync=SYNC) as arm:
        arm.hold_s = 8.0
        pose = arm.look(SEEN_S).proprio[None].astype(np.float64)
        arm.enable(True)
        arm.send(pose)
        time.sleep(PATIENT["command_timeout_s"] + 1.0)
        assert arm.state == "tracking"
        arm.wait(lambda: arm.state == "latched_fault", "the silence")
        assert arm.heard["safety_node"]["stage"] == "command_timeout"


def test_pictures_come_as_jpeg_and_in_the_size_that_is_asked_for(nodes):
    large = robot_of(Settings(camera_width_px=160, camera_height_px=120))
    told = {"cameras": ("wrist",), "compressed": True, "sync": SYNC}
    with RemoteArm(large, namespace=NAMESPACE, **told) as arm:
        assert arm.look(SEEN_S).images.shape == (1, 120, 160, 3)


def test_what_is_missing_or_wrong_is_said():
    with RemoteArm(ROBOT, namespace="nobody") as arm:
        with pytest.raises(ValueError, match="so101: waited 0.1 s .* no joint states yet"):
            arm.look(0.1)
        assert arm.state == ""
        with pytest.raises(ValueError, match=r"targets: got shape \[6\], expected \[steps, 6\]"):
            arm.send(np.zeros(6))


def test_joints_of_another_arm_are_named(nodes):
    other = dataclasses.replace(
        ROBOT, channels=(dataclasses.replace(ROBOT.channels[0], name="hip"), *ROBOT.channels[1:])
    )
    with RemoteArm(other, namespace=NAMESPACE, sync=SYNC) as arm:
        unseen = lambda: arm.observations.look(time.monotonic())  # noqa: E731
        wait_until(lambda: "hip" in str(unseen()), "joint states", SEEN_S)
        with pytest.raises(ValueError, match=r"waited 0\.1 s .* no joint states of hip for 5\.0 s"):
            arm.look(0.1)
