"""The real safety node before a driver that this process plays: what it refuses and sends."""

import signal
import threading
import time

import numpy as np
import pytest

pytest.importorskip("rclpy")

from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from benchmarks.robot_bridge import chunk_faults, fault_injector
from robot_bridge.launching import package_files
from robot_bridge.nodes.common import COMMANDS, DRIVERS, LATCHED, AlivePublisher, liveliness_qos
from robot_bridge.safety.gate_config import LEASE_S
from tests.robot_bridge.ros_graph import Ears, node_process, stop
from vla.contracts import registry

pytestmark = pytest.mark.ros

SO101 = registry.load("vla.robots", "so101").SPEC
CONTROLLER = "joint_trajectory_controller/joint_trajectory"
PARAMS = {
    "limits": str(package_files.params() / "so101_limits.yaml"), "joint_state_timeout_s": 1.0,
    "command_timeout_s": 2.0, "max_chunk_age_s": 2.0,
}  # fmt: skip


class Driver:
    """Publishes joint states: those of the arm and of the gripper in messages of their own.

    The arm is where the last trajectory is by now.
    """

    def __init__(self, ears: Ears) -> None:
        self.ears, self.names, self.age_s = ears, list(SO101.names), 0.0
        self.pose = np.array(SO101.home, np.float64)
        self.publisher = ears.node.create_publisher(JointState, "joint_states", DRIVERS)
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.speak)
        self.thread.start()

    def speak(self) -> None:
        while not self.over.wait(0.01):
            self.follow()
            now = self.ears.node.get_clock().now()
            for part in (self.names[:5], self.names[5:]):
                if not part:
                    continue
                message = JointState(name=part)
                message.position = [float(self.pose[SO101.names.index(name)]) for name in part]
                stamp_ns = now.nanoseconds - round(1e9 * self.age_s)
                message.header.stamp.sec, message.header.stamp.nanosec = divmod(stamp_ns, 10**9)
                self.publisher.publish(message)

    def follow(self) -> None:
        commands = self.ears.messages(CONTROLLER)
        if commands:
            stamp, points = commands[-1].header.stamp, commands[-1].points
            begin_s = stamp.sec + 1e-9 * stamp.nanosec
            step = int((time.time() - begin_s) / 0.01)
            self.pose = np.array(points[min(max(step, 0), len(points) - 1)].positions)

    def close(self) -> None:
        self.over.set()
        self.thread.join()


@pytest.fixture
def ears():
    with Ears() as made:
        made.hear(JointTrajectory, CONTROLLER, COMMANDS)
        made.hear(DiagnosticArray, "safety_node/status", LATCHED)
        yield made


@pytest.fixture
def driver(ears):
    made = Driver(ears)
    yield made
    made.close()


def enable(ears):
    return ears.call(SetBool, "safety_node/enable", SetBool.Request(data=True))


def armed(ears) -> None:
    end_s = time.monotonic() + 30
    while not (answer := enable(ears)).success:  # once it has heard of the joints
        assert time.monotonic() < end_s, answer.message
        time.sleep(0.1)


def refused(ears, why: str) -> None:
    """It refuses for this reason, perhaps after another at first."""
    end_s = time.monotonic() + 30
    while why not in (answer := enable(ears)).message:
        assert time.monotonic() < end_s, answer.message
        assert not answer.success
        time.sleep(0.1)


def state(ears) -> str:
    values = {
        one.key: one.value for one in ears.messages("safety_node/status")[-1].status[0].values
    }
    return values["state"]


def wait_for(ears, *wanted: str) -> None:
    end_s = time.monotonic() + 10
    while state(ears) not in wanted:
        assert time.monotonic() < end_s, state(ears)
        time.sleep(0.02)


def test_joint_states_in_parts_are_enough_old_ones_and_a_missing_part_are_not(ears, driver):
    with node_process("robot_bridge.nodes.safety", PARAMS):
        driver.names = list(SO101.names[:5])
        refused(ears, "no joint states of gripper for 1.0 s; see whether the arm publishes it")
        driver.names, driver.age_s = list(SO101.names), 30.0
        refused(ears, "no joint states for 1.0 s; see whether the arm publishes it")
        driver.age_s = 0.0
        armed(ears)


def test_a_button_latches_and_as_long_as_it_is_pressed_nothing_clears_that(ears, driver):
    with node_process("robot_bridge.nodes.safety", PARAMS):
        armed(ears)
        button = ears.publisher(Bool, "estop", LATCHED)
        button.publish(Bool(data=True))
        wait_for(ears, "latched_fault")
        answer = ears.call(Trigger, "safety_node/reset_estop", Trigger.Request())
        assert answer.message == "the button on topic estop is still pressed"
        button.publish(Bool(data=False))
        end_s = time.monotonic() + 10
        while not ears.call(Trigger, "safety_node/reset_estop", Trigger.Request()).success:
            assert time.monotonic() < end_s
        armed(ears)
        assert ears.call(Trigger, "safety_node/estop", Trigger.Request()).success
        wait_for(ears, "latched_fault")


def test_another_publisher_at_the_controller_is_a_reason_not_to_enable(ears, driver):
    other = ears.node.create_publisher(JointTrajectory, CONTROLLER, COMMANDS)
    with node_process("robot_bridge.nodes.safety", PARAMS):
        refused(ears, f"another node publishes on /{CONTROLLER} as well; end it")
        ears.node.destroy_publisher(other)
        armed(ears)


def test_two_policies_are_a_reason_not_to_enable_and_to_stop(ears, driver):
    with node_process("robot_bridge.nodes.safety", PARAMS):
        first = AlivePublisher(ears.node, JointTrajectory, "action_chunk", LEASE_S)
        armed(ears)
        second = AlivePublisher(ears.node, JointTrajectory, "action_chunk", LEASE_S)
        wait_for(ears, "latched_fault")
        assert ears.call(Trigger, "safety_node/reset_estop", Trigger.Request()).success
        refused(ears, "another node publishes on /action_chunk as well; end it")
        second.close()
        armed(ears)
        first.close()
        wait_for(ears, "latched_fault")


def track(ears, driver) -> None:
    """Enable the arm and let it follow chunks."""
    speaker = ears.publisher(JointTrajectory, "action_chunk", liveliness_qos(LEASE_S))
    for _ in range(5):
        armed(ears)
        path = chunk_faults.Path(SO101, np.random.default_rng(1), driver.pose)
        for k in range(8):
            speaker.publish(fault_injector.message(time.time(), path.chunk(k)))
            time.sleep(chunk_faults.PERIOD_S)
        if state(ears) == "tracking":
            return
        # A busy machine kept messages from the node, and it brings the arm to rest: begin again.
        wait_for(ears, "disabled", "latched_fault")
        ears.call(Trigger, "safety_node/reset_estop", Trigger.Request())
    raise AssertionError(ears.messages("safety_node/status")[-1])


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_every_trajectory_ends_at_rest_and_so_does_the_arm_of_a_node_that_ends(ears, driver, how):
    with node_process("robot_bridge.nodes.safety", PARAMS) as process:
        track(ears, driver)
        stop(process, how)
    commands = ears.messages(CONTROLLER)
    assert len(commands) > 50
    fastest = 0.0
    for message in commands:
        last = message.points[-1]
        assert not any(last.velocities)
        assert not any(last.accelerations)
        times = [p.time_from_start.sec + 1e-9 * p.time_from_start.nanosec for p in message.points]
        np.testing.assert_allclose(np.diff(times), 0.01)
        assert times[0] == 0
        fastest = max(fastest, np.abs(message.points[1].velocities).max())
    assert fastest > 0.1
    if how == signal.SIGINT:  # it brought the arm to rest itself
        assert not any(commands[-1].points[4].velocities)


def test_a_callback_that_fails_latches_and_the_node_lives_on(ears, driver):
    with node_process("tests.robot_bridge.failing_safety_node", PARAMS) as process:
        armed(ears)
        ears.publisher(Bool, "deadman", COMMANDS).publish(Bool(data=True))
        wait_for(ears, "latched_fault")
        assert process.poll() is None
        assert "latched by internal_error: deadman: KeyError" in enable(ears).message
