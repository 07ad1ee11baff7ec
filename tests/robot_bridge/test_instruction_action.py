"""The action `execute_instruction` over DDS: how each goal ends, and that the arm stays enabled."""

import shutil
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("rclpy")

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from lifecycle_msgs.msg import Transition
from sensor_msgs.msg import JointState

from benchmarks.robot_bridge.ros_latency import running
from benchmarks.robot_bridge.sim_episode_client import SimEpisodeClient
from robot_bridge import instruction_cli
from robot_bridge.launching import graph, interfaces
from robot_bridge.nodes.common import LATCHED, SENSORS
from tests.robot_bridge.test_policy_node import SLOW

if not interfaces.available() and shutil.which("c++") is None:
    pytest.skip("no C++ compiler builds mneme_vla_interfaces", allow_module_level=True)

from mneme_vla_interfaces.action import ExecuteInstruction

from robot_bridge.nodes.instruction_client import InstructionClient

pytestmark = pytest.mark.ros
RESULT = ExecuteInstruction.Result
HOLD_S = 6.0


def silenced(operator):
    """Return whether a busy machine kept the policy's process from its sign of life."""
    return operator.heard["safety_node"].get("stage") == "policy_died"


class Goal:
    """A goal in a thread, with its feedback."""

    def __init__(self, arm, instruction, time_limit_s=0.0):
        self.operator, self.client = arm
        self.asks = (instruction, time_limit_s)
        self._start()

    def _start(self):
        self.fed, self.result, self.error = [], None, None
        self.come = threading.Event()
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            self.result = self.client.run(*self.asks, self._feed)
        except ValueError as error:
            self.error = str(error)

    def _feed(self, said):
        self.fed.append(said)
        if said.safety_state == "tracking":
            self.come.set()

    def tracks(self):
        heard = self.operator.heard
        for _ in range(3):
            if self.come.wait(30.0):
                return self
            if not silenced(self.operator):
                break
            self.end()
            self.operator.rearm()
            self.operator.enable(True)
            self._start()
        raise AssertionError((self.fed[-1:], self.error, self.result, heard))

    def end(self):
        self.thread.join(30.0)
        assert not self.thread.is_alive()
        return self.result


@pytest.fixture
def arm(arm_policy, tmp_path):
    told = {**SLOW, "policy_node": SLOW["policy_node"] | {"hold_s": HOLD_S}}
    nodes = graph.sim_arm(
        graph.SimArm(policy=str(arm_policy), task="cue_colour", use_sim_time=False)
    )
    with (
        running(nodes, told, tmp_path / "nodes.log"),
        SimEpisodeClient() as operator,
        InstructionClient() as client,
    ):
        operator.bring_up()
        operator.begin(0, 0)
        yield operator, client


def measured(operator):
    """Return the next measured pose."""
    poses = []
    take = lambda message: poses.append(message.position)  # noqa: E731
    ears = operator.node.create_subscription(JointState, "joint_states", take, SENSORS)
    end_s = time.monotonic() + 10.0
    while not poses:
        assert time.monotonic() < end_s
        time.sleep(0.01)
    operator.node.destroy_subscription(ears)
    return np.array(poses[-1])


def state(operator):
    return operator.heard["safety_node"]["state"]


def test_every_end_of_a_goal(arm):
    operator, client = arm
    early = client.run("press")
    assert (early.error_code, early.elapsed_s < 5) == (RESULT.NOT_ENABLED, True)
    assert "vla safety enable" in early.error_msg
    operator.enable(True)

    limited = Goal(arm, "press", 2.0).tracks().end()
    assert limited.error_code == RESULT.TIME_LIMIT
    assert limited.elapsed_s == pytest.approx(2.0, abs=1.0)
    operator.wait(lambda: operator.heard["policy_node"]["instruction"] == "", "its end")

    # The arm is held, not latched, so the next goal needs nobody.
    time.sleep(2.0)
    assert state(operator) in ("holding", "tracking")
    canceled = Goal(arm, "press").tracks()
    with InstructionClient(name="second") as second, pytest.raises(ValueError, match="rejected"):
        second.run("open")
    client.cancel()
    assert canceled.end().error_code == RESULT.CANCELED
    time.sleep(3.0)
    held = measured(operator)
    time.sleep(1.0)
    np.testing.assert_allclose(measured(operator), held, atol=0.03)
    with pytest.raises(ValueError, match="rejected"):
        client.run("")

    # The monitor says when it is done, and how far it is.
    monitor = client.node.create_publisher(DiagnosticArray, "monitor/status", LATCHED)
    monitor.publish(DiagnosticArray())  # damaged: it ends no node
    done = Goal(arm, "press").tracks()
    for progress, monitored in (("0.5", "nominal"), ("0.95", "done")):
        said = {"state": monitored, "value": progress, "instruction": "press", "episode": "1"}
        values = [KeyValue(key=key, value=value) for key, value in said.items()]
        monitor.publish(DiagnosticArray(status=[DiagnosticStatus(values=values)]))
        time.sleep(0.5)
    assert done.end().error_code == RESULT.NONE
    assert done.result.progress == pytest.approx(0.95)
    assert any(said.progress == pytest.approx(0.5) for said in done.fed)

    replaced = Goal(arm, "press").tracks()
    operator.say("another")
    assert replaced.end().error_code == RESULT.REPLACED
    operator.wait(lambda: operator.heard["policy_node"]["instruction"] == "another", "the other")
    assert state(operator) in ("holding", "tracking")

    stopped = Goal(arm, "press").tracks()
    operator.estop()
    assert stopped.end().error_code == RESULT.STOPPED
    assert "latched_fault" in stopped.result.error_msg or "stopping" in stopped.result.error_msg

    operator.wait(lambda: state(operator) == "latched_fault", "the latch")
    operator.rearm()
    operator.enable(True)
    deactivated = Goal(arm, "press").tracks()
    operator.transition(Transition.TRANSITION_DEACTIVATE)
    assert deactivated.end().error_code == RESULT.POLICY
    with pytest.raises(ValueError, match="rejected"):
        client.run("press")


def test_the_command_and_the_end_of_holding(arm, capsys):
    (operator, _), ends = arm, ("disabled", "latched_fault")
    for _ in range(3):
        operator.enable(True)
        code, kept = instruction_cli.main(["press", "--time-limit-s", "1.5"]), state(operator)
        operator.wait(lambda: state(operator) in ends, "the end of holding", HOLD_S + 10)
        if not silenced(operator):
            break
        operator.rearm()
    assert code == 1
    assert "not done after" in capsys.readouterr().out
    assert kept in ("holding", "tracking")
    assert state(operator) == "disabled"


def test_a_node_without_the_action_is_named(capsys):
    done = subprocess.run(
        [sys.executable, "-m", "vla.cli", "ros", "execute", "press"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no action policy_node/execute_instruction in 10 s" in done.stderr
    assert "Traceback" not in done.stderr
