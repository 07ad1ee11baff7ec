"""A gripper behind a real action of control_msgs, over DDS, with each of its two types."""

import os
import shutil
import sys
import time

import numpy as np
import pytest
import yaml

pytest.importorskip("rclpy")

from benchmarks.robot_bridge import gripper_interfaces
from benchmarks.robot_bridge.ros_latency import running
from robot_bridge.launching import graph
from robot_bridge.nodes.remote_arm import RemoteArm
from tests.robot_bridge.test_remote_arm import PATIENT, ROBOT, SEEN_S, SYNC, drive

pytestmark = [
    pytest.mark.ros,
    pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler builds control_msgs"),
]
NAMESPACE = f"grips_{os.getpid()}"


@pytest.fixture(scope="module")
def control_msgs(tmp_path_factory):
    """The prefix with control_msgs."""
    prefix = tmp_path_factory.mktemp("control_msgs")
    gripper_interfaces.build(prefix)
    return prefix


@pytest.mark.parametrize("kind", ["gripper_command", "parallel_gripper_command"])
def test_arm_and_gripper_reach_what_they_are_told(kind, control_msgs, tmp_path, monkeypatch):
    packages = next(control_msgs.glob("lib/python*/site-packages"))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(packages), *sys.path]))
    monkeypatch.setenv("LD_LIBRARY_PATH", str(control_msgs / "lib"), prepend=os.pathsep)
    driver = {
        "joint_prefix": "left_",
        "controllers": [
            {"type": "trajectory", "topic": "arm_controller/joint_trajectory"},
            {"type": kind, "topic": "hand/gripper", "joints": "gripper", "max_effort": 5.0},
        ],
    }
    file = tmp_path / "driver.yaml"
    file.write_text(yaml.safe_dump(driver))
    same = {"namespace": NAMESPACE, "driver": str(file)}
    nodes = graph.sim_arm(graph.SimArm(task="reach", use_sim_time=False, **same))
    told = {"safety_node": PATIENT, "sim_arm": {"camera_hz": 10}}
    with (
        running(nodes, told, tmp_path / "nodes.log"),
        RemoteArm(ROBOT, namespace=NAMESPACE, sync=SYNC, driver_file=str(file)) as arm,
    ):
        arm.look(SEEN_S)
        arm.enable(True)
        for target in (np.array(ROBOT.home) + [0.3, 0.2, 0, 0, 0, -0.3], np.array(ROBOT.home)):
            seen = drive(arm, target)
            np.testing.assert_allclose(seen.proprio, target, atol=0.03)
        # In motion, an e-stop stops the gripper too: between where it was and where it was sent.
        opened = np.array(ROBOT.home) + [0, 0, 0, 0, 0, 1.0]
        arm.send(np.tile(opened, (6, 1)))
        arm.wait(lambda: arm.state == "tracking", "motion")
        until_s = time.monotonic() + 30.0
        while arm.look().proprio[-1] < ROBOT.home[-1] + 0.1 and time.monotonic() < until_s:
            time.sleep(0.01)
        arm.estop()
        arm.wait(lambda: arm.state == "latched_fault", "the latch")
        assert arm.heard["safety_node"]["stage"] == "e-stop"
        time.sleep(1.0)
        at_rest = arm.look().proprio[-1]
        assert ROBOT.home[-1] + 0.02 < at_rest < opened[-1] - 0.02
        time.sleep(0.5)
        assert arm.look().proprio[-1] == pytest.approx(at_rest, abs=0.01)
