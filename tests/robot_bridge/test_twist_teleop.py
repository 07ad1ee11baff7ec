"""Twists drive a simulated arm's tool over DDS; silence stands still, then disables."""

import os
import time

import numpy as np
import pytest

pytest.importorskip("rclpy")

from geometry_msgs.msg import TwistStamped
from rclpy.duration import Duration
from std_msgs.msg import Float64

from benchmarks.robot_bridge.ros_latency import running
from robot_bridge.launching import graph
from robot_bridge.nodes import common
from robot_bridge.nodes.remote_arm import RemoteArm
from robot_bridge.safety.tool_speed import ToolSpeed
from tests.robot_bridge.test_remote_arm import PATIENT, ROBOT, SEEN_S, SYNC

pytestmark = pytest.mark.ros
NAMESPACE = f"twisted_{os.getpid()}"
PLACE = ToolSpeed(ROBOT, 1.0, 0.01).place
RELEASE_S = 12.0


@pytest.fixture
def arm(tmp_path):
    cfg = graph.SimArm(task="reach", use_sim_time=False, twist=True, namespace=NAMESPACE)
    told = {
        "safety_node": PATIENT, "sim_arm": {"camera_hz": 10},
        "twist_teleop": {"release_s": RELEASE_S},
    }  # fmt: skip
    with (
        running(graph.sim_arm(cfg), told, tmp_path / "nodes.log"),
        RemoteArm(ROBOT, namespace=NAMESPACE, sync=SYNC) as arm,
    ):
        arm._hear_status("twist_teleop")
        arm.twists = arm.node.create_publisher(
            TwistStamped, "twist_teleop/delta_twist_cmds", common.COMMANDS
        )
        arm.look(SEEN_S)
        arm.wait(lambda: arm.heard.get("twist_teleop", {}).get("safety_state"), "the node")
        yield arm


def twist(arm, seconds, frame="base", after_s=1.0, **linear):
    """Send a twist at 50 Hz; return how far the tool moved meanwhile and in a time after."""
    message = TwistStamped()
    message.header.frame_id = frame
    for name, value in linear.items():
        setattr(message.twist.linear, name, value)
    before = PLACE(arm.look().proprio.astype(float))
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        arm.twists.publish(message)
        time.sleep(0.02)
    time.sleep(after_s)
    return PLACE(arm.look().proprio.astype(float)) - before


def said(arm):
    return arm.heard["twist_teleop"]


def test_the_tool_moves_as_told_stands_still_and_is_released(arm):
    assert np.linalg.norm(twist(arm, 0.5, z=0.05)) < 2e-3
    assert "not enabled" in said(arm)["why"]
    gripper = arm.node.create_publisher(Float64, "twist_teleop/gripper_cmd", common.COMMANDS)
    arm.wait(lambda: gripper.get_subscription_count() == 1, "its ears", 10.0)
    wanted = ROBOT.home[-1] + 0.5
    gripper.publish(Float64(data=wanted))
    time.sleep(0.5)
    arm.enable(True)
    time.sleep(1.0)  # what was asked before is not done now
    assert arm.look().proprio[-1] == pytest.approx(ROBOT.home[-1], abs=0.02)
    assert said(arm)["state"] == "waits"
    moved = twist(arm, 1.0, z=0.05)
    assert 0.02 < moved[2] < 0.08
    assert np.linalg.norm(moved[:2]) < 0.5 * moved[2]
    assert arm.state in ("holding", "tracking")
    assert said(arm)["state"] == "driving"
    still = arm.look().proprio
    time.sleep(0.5)
    np.testing.assert_allclose(arm.look().proprio, still, atol=5e-3)
    twist(arm, 0.1, frame="camera", after_s=0.3, z=0.05)
    assert "got frame 'camera', expected base or tool" in said(arm)["why"]

    still = PLACE(arm.look().proprio.astype(float))
    for value in (1e307, np.nan, -np.inf, 11.0):
        assert np.linalg.norm(twist(arm, 0.1, after_s=0.3, x=value)) < 2e-3
        assert "expected at most 10 m/s" in said(arm)["why"]
    old = TwistStamped()
    old.header.stamp = (arm.node.get_clock().now() - Duration(seconds=1.0)).to_msg()
    old.twist.linear.z = 0.05
    arm.twists.publish(old)
    arm.wait(lambda: "s old, at most 0.25" in said(arm)["why"], "its refusal", 5.0)
    np.testing.assert_allclose(PLACE(arm.look().proprio.astype(float)), still, atol=2e-3)
    assert arm.state in ("holding", "tracking")

    end_s = time.monotonic() + 30.0
    while abs(arm.look().proprio[-1] - wanted) > 0.05:
        gripper.publish(Float64(data=wanted))
        assert time.monotonic() < end_s, (arm.look().proprio, arm.heard)
        time.sleep(0.05)
    arm.wait(lambda: arm.state == "disabled", "the release", RELEASE_S + 10.0)
    arm.wait(lambda: said(arm)["state"] == "waits", "its release", 5.0)
    assert "count command_timeout" not in arm.heard["safety_node"]  # it was no silence
