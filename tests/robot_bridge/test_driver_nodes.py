"""Nodes before an arm whose driver has its own names of joints, a gripper apart, and states."""

import os
import time

import numpy as np
import pytest
import yaml

pytest.importorskip("rclpy")

from diagnostic_msgs.msg import DiagnosticArray
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from std_msgs.msg import Header
from std_srvs.srv import SetBool, Trigger

from benchmarks.robot_bridge.ros_latency import running
from robot_bridge.launching import graph
from robot_bridge.nodes.common import LATCHED
from robot_bridge.nodes.remote_arm import RemoteArm
from robot_bridge.recording.convert_bag import ConvertConfig, convert_bags
from tests.robot_bridge.test_remote_arm import PATIENT, ROBOT, SEEN_S, SYNC, drive
from vla.data.reader import read_columns

pytestmark = pytest.mark.ros
DRIVER = {
    "joint_prefix": "left_",
    "joint_names": {"shoulder_pan": "joint1", "gripper": "finger_joint"},
    "controllers": [
        {"type": "trajectory", "topic": "scaled_controller/joint_trajectory"},
        {"type": "forward", "topic": "hand_controller/commands", "joints": "gripper"},
    ],
    "states": [
        {
            "topic": "io/program_running", "type": "std_msgs/msg/Bool", "field": "data",
            "expected": [True],
        },
        {
            "topic": "io/speed_scaling", "type": "std_msgs/msg/Float64", "field": "data",
            "range": [99.0, 101.0], "timeout_s": 5.0,
        },
    ],
}  # fmt: skip


NAMESPACE = f"wired_{os.getpid()}"


def refusal(arm):
    return arm.call(SetBool, "safety_node/enable", SetBool.Request(data=True)).message


def fault(arm, *topics):
    """Let the simulated driver say on these topics that the arm may not move."""
    value = Parameter("driver_faults", value=list(topics) or [""]).to_parameter_msg()
    arm.call(SetParameters, "sim_arm/set_parameters", SetParameters.Request(parameters=[value]))


def wait_for(arm, condition, limit_s=30.0):
    end_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end_s, arm.heard
        time.sleep(0.05)


def recorder_hears(arm, *topics):
    """Return whether the recorder has found what publishes these topics, a second ago at most."""
    counts = {}

    def count(message):
        for status in message.status:
            counts.update((one.key, one.value) for one in status.values)

    arm.node.create_subscription(DiagnosticArray, "/diagnostics", count, 10)
    heard = lambda topic: any(  # noqa: E731
        key.startswith("messages ") and key.endswith(topic) and int(value) > 0
        for key, value in counts.copy().items()
    )
    return lambda: all(map(heard, topics))


@pytest.fixture
def wired(tmp_path):
    file = tmp_path / "driver.yaml"
    file.write_text(yaml.safe_dump(DRIVER))
    same = {"namespace": NAMESPACE, "driver": str(file)}
    nodes = graph.sim_arm(graph.SimArm(task="reach", use_sim_time=False, **same))
    record = graph.Record(
        out=str(tmp_path / "recordings"), topics=("/rosout=rcl_interfaces/msg/Log",), **same
    )
    told = {"safety_node": PATIENT, "sim_arm": {"camera_hz": 10}}
    nodes += tuple(node for node in graph.record(record) if node.name == "recorder")
    with (
        running(nodes, told, tmp_path / "nodes.log"),
        RemoteArm(ROBOT, namespace=NAMESPACE, sync=SYNC, driver_file=str(file)) as arm,
    ):
        arm.look(SEEN_S)
        yield arm


def test_arm_and_gripper_move_are_recorded_and_converted(wired, tmp_path):
    instruction = wired.node.create_publisher(Header, "instruction", LATCHED)
    wired.enable(True)
    instruction.publish(
        Header(frame_id="reach the ball", stamp=wired.node.get_clock().now().to_msg())
    )
    wait_for(wired, lambda: wired.call(Trigger, "recorder/start").success)
    wait_for(wired, recorder_hears(wired, "joint_states", "front/image_raw", "wrist/image_raw"))
    target = np.array(ROBOT.home) + [0.5, 0.2, 0, 0, 0, -0.3]
    seen = drive(wired, target)
    np.testing.assert_allclose(seen.proprio, target, atol=0.03)
    wired.enable(False)
    assert wired.call(Trigger, "recorder/stop").success

    info, notes = convert_bags(
        ConvertConfig(
            bags=(tmp_path / "recordings",),
            out=tmp_path / "data",
            max_age_s=5.0,
            namespace=NAMESPACE,
        )
    )
    assert info.num_episodes >= 1, notes
    columns = read_columns(info)
    state, action = columns.state, columns.action
    np.testing.assert_allclose(state[-1], target, atol=0.05)
    np.testing.assert_allclose(action[-1], target, atol=0.05)
    assert np.ptp(action[:, 5]) > 0.1  # the gripper


def test_a_state_of_the_driver_stops_the_arm_until_it_is_right_again(wired):
    wired.enable(True)
    home = np.array(ROBOT.home)
    drive(wired, home + [0.3, 0, 0, 0, 0, 0])
    fault(wired, "io/speed_scaling")
    wait_for(wired, lambda: wired.state == "latched_fault")
    assert wired.heard["safety_node"]["stage"] == "driver_state"
    assert (
        "io/speed_scaling: data is 102.0, expected 99 to 101" in wired.heard["safety_node"]["why"]
    )
    assert wired.call(Trigger, "safety_node/reset_estop").success
    assert "io/speed_scaling: data is 102.0" in refusal(wired)
    fault(wired, "io/program_running")
    wait_for(wired, lambda: "io/program_running: data is False" in refusal(wired))
    fault(wired)
    wait_for(wired, lambda: not refusal(wired))
    drive(wired, home)
