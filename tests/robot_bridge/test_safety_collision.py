"""The real safety node before a simulated arm: a chunk into the table ends above it."""

import time

import numpy as np
import pytest

pytest.importorskip("rclpy")

from builtin_interfaces.msg import Duration
from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import JointState
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_bridge.launching import package_files
from robot_bridge.motion.workspace import Workspace
from robot_bridge.nodes.common import LATCHED, liveliness_qos
from robot_bridge.safety.clearance import Clearance
from robot_bridge.safety.gate_config import LEASE_S
from tests.robot_bridge.ros_graph import Ears, node_process, refusal
from vla.contracts import registry

pytestmark = pytest.mark.ros

SAFETY, ARM = "robot_bridge.nodes.safety", "robot_bridge.nodes.sim_arm"
SO101 = registry.load("vla.robots", "so101").SPEC
LIMITS = package_files.params() / "so101_limits.yaml"
LOW = np.array([0.0, 0.9, 0.6, 0.6, 0.0, 0.4])
"""Through the table in front of the arm."""


@pytest.fixture
def with_table(tmp_path):
    file = tmp_path / "limits.yaml"
    file.write_text(f"{LIMITS.read_text()}\nworkspace: {{table: 0.0}}\n")
    return str(file)


def told(message):
    return {one.key: one.value for one in message.status[0].values}


def chunk(node, start, target):
    """A slow chunk f64 [8, 6] from a pose towards another, from now on."""
    message = JointTrajectory(joint_names=list(SO101.names))
    message.header.stamp = node.get_clock().now().to_msg()
    for k in range(8):
        step = 0.12 * k
        point = JointTrajectoryPoint(
            positions=(start + np.clip(target - start, -step, step)).tolist(),
            time_from_start=Duration(nanosec=100_000_000 * k),
        )
        message.points.append(point)
    return message


def test_a_chunk_into_the_table_ends_above_it_and_a_better_one_is_followed(with_table):
    # Generous: a busy machine is late, and what is tested is what collides.
    params = {
        "limits": with_table, "collision": True, "margin": 0.01,
        "command_timeout_s": 10.0, "joint_state_timeout_s": 10.0,
        "max_chunk_age_s": 5.0, "max_velocity_scaling_factor": 0.6,
    }  # fmt: skip
    clearance = Clearance(SO101, Workspace(table=0.0), 0.01)
    with (
        Ears() as ears,
        node_process(ARM, {"task": "reach", "camera_hz": 0}),
        node_process(SAFETY, params),
    ):
        ears.hear(JointState, "joint_states")
        ears.hear(DiagnosticArray, "safety_node/status", LATCHED)
        ears.wait("joint_states")
        chunks = ears.publisher(JointTrajectory, "action_chunk", liveliness_qos(LEASE_S))

        def pose():
            last = ears.messages("joint_states")[-1]
            return np.array([last.position[last.name.index(name)] for name in SO101.names])

        def armed():
            return ears.call(SetBool, "safety_node/enable", SetBool.Request(data=True)).success

        def drive(target, done, within_s=60.0):
            end_s = time.monotonic() + within_s
            while not done():
                assert time.monotonic() < end_s, told(ears.messages("safety_node/status")[-1])
                chunks.publish(chunk(ears.node, pose(), target))
                time.sleep(0.1)

        def now():
            return told(ears.messages("safety_node/status")[-1])

        end_s = time.monotonic() + 30.0
        while not armed():  # once it has heard of the joints
            assert time.monotonic() < end_s
            time.sleep(0.2)
        drive(LOW, lambda: now()["stage"] == "collision")
        for _ in range(10):  # insists
            chunks.publish(chunk(ears.node, pose(), LOW))
            time.sleep(0.1)
        assert now()["why"].endswith("would touch the table")
        assert now()["state"] in ("holding", "tracking")
        assert int(now()["count collision"]) >= 1
        low = pose()
        assert clearance.at(low).min() < 0.1  # it went there
        up = low.copy()  # straight up: the way home would begin with the hand coming down
        up[1] = SO101.home[1]
        drive(up, lambda: abs(pose()[1] - up[1]) < 0.05)
        for message in ears.messages("joint_states"):
            seen = np.array([message.position[message.name.index(n)] for n in SO101.names])
            assert clearance.at(seen).min() > 0


def test_a_workspace_that_nothing_keeps_is_refused(with_table):
    code, said = refusal(SAFETY, {"limits": with_table})
    assert code == 1
    assert "it has a workspace, which nothing keeps without collision:=true" in said


def test_a_margin_out_of_its_range_is_refused():
    code, said = refusal(SAFETY, {"limits": str(LIMITS), "collision": True, "margin": 0.0})
    assert code == 1
    assert "margin" in said
