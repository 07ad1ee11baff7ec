"""An arm that did not follow goes back to where it is held, if it can be there."""

import numpy as np
import pytest

from robot_bridge.launching import package_files
from robot_bridge.motion import limits
from robot_bridge.safety.gate import Gate
from robot_bridge.safety.gate_config import GateConfig
from robot_bridge.safety.way_back import BEYOND, WayBack
from vla.contracts import registry

DT_S = 0.01
ROBOT = registry.load("vla.robots", "so101").SPEC
LIMITS = limits.read(package_files.params() / "so101_limits.yaml", ROBOT)
HOME = np.array(ROBOT.home)
GRIPPER = ROBOT.names.index(ROBOT.gripper.channel)


def way_back(commands, measured, jumped=False) -> WayBack:
    """Return the way back after commands at rest at the last one."""
    back = WayBack(GateConfig(), LIMITS, DT_S)
    back.begin(commands[0])
    back.recent.extend(commands)
    back.see(commands[-1] if jumped else measured, np.zeros(6))
    back.see(measured, np.full(6, DT_S))
    back.request()
    for _ in range(20):  # until it has settled
        back.look(commands[-1])
    return back


def moved(joint, by):
    return HOME + by * np.eye(6)[joint]


def test_a_joint_goes_back_to_where_it_was_stopped():
    back = way_back([HOME, moved(0, 0.2), moved(0, 0.6)], moved(0, 0.3))
    np.testing.assert_allclose(back.target, moved(0, 0.3))
    assert back.pending
    assert back.go(moved(0, 0.31)) is not None
    assert back.go(moved(0, 0.301)) is None
    assert back.pending  # another may be needed


@pytest.mark.parametrize(
    ("measured", "jumped", "goes"),
    [
        (moved(3, -0.8), False, True),  # pushed there by an obstacle
        (moved(3, -0.8), True, False),  # a sensor that lies at once
        (moved(3, -BEYOND - 0.1), False, False),  # no obstacle pushes so far
        (moved(0, 57.3), True, False),  # degrees
        (moved(GRIPPER, 0.5), False, False),  # it holds something
        (moved(0, 0.005), False, False),  # its weight
    ],
)
def test_a_joint_that_cannot_be_there_or_need_not_stays(measured, jumped, goes):
    back = way_back([HOME], measured, jumped)
    assert (back.target is not None) == goes
    assert back.pending == goes


def test_a_way_ends_when_the_joint_is_not_measured_there_any_more():
    back = way_back([HOME, moved(0, 0.6)], moved(0, 0.3))
    back.see(moved(0, 0.38), np.full(6, 1.0))
    assert back.go(moved(0, 0.5)) is not None
    back.see(moved(0, 0.42), np.full(6, 1.01))
    assert back.go(moved(0, 0.5)) is None


@pytest.mark.parametrize("gain", [2.0, 3.0, -1.0])
def test_a_sensor_with_another_scale_or_sign_drives_the_arm_a_little(gain):
    gate = Gate(GateConfig(max_start_deviation=10.0), LIMITS)
    gate.measure(0.0, HOME)
    assert gate.enable(0.0, True) == ""
    path = [HOME]
    for k in range(1, 600):
        measured = HOME + gain * (path[-1] - HOME)
        gate.measure(k * DT_S, measured)
        if k % 10 == 1:
            targets = HOME + np.arange(8)[:, None] / 10 * np.eye(6)[0] + path[-1] - HOME
            gate.offer(k * DT_S, "policy", k * DT_S + np.arange(8) / 10, targets, 0.0)
        command = gate.tick(k * DT_S)
        if command is not None:
            path.append(command)
        if gate.state == "stopping" and gate.stage == "tracking_error":
            stopped = max(path, key=lambda pose: abs(pose[0]))[0]
    assert (gate.state, gate.stage) == ("latched_fault", "tracking_error")
    assert abs(path[-1][0]) < abs(stopped) + 0.5
    assert np.abs(np.array(path)[:, 0]).max() < abs(stopped) + 0.5


@pytest.mark.parametrize("how", ["deadman", "driver", "disable", "silent"])
def test_a_way_back_ends_at_once_for_a_person_and_for_the_driver(how):
    gate = Gate(GateConfig(deadman=how == "deadman", max_start_deviation=10.0), LIMITS)
    gate.measure(0.0, HOME)
    gate.press(0.0, True)
    assert gate.enable(0.0, True) == ""
    held, moves = HOME, []
    for k in range(1, 600):
        now_s = k * DT_S
        ended = gate.way_back.target is not None and len(moves) > 5
        if ended and how == "driver":
            gate.stop("driver_state", "told by a test")
        if ended and how == "disable":
            gate.enable(now_s, False)
        if not (ended and how == "silent"):
            gate.measure(now_s, held)
        if how != "deadman" or not ended:
            gate.press(now_s, True)
        if k % 10 == 1:
            targets = HOME + np.linspace(0.0, 1.8, 8)[:, None] * np.eye(6)[0]
            gate.offer(now_s, "policy", now_s + np.arange(8) / 10, targets, 0.0)
        gate.tick(now_s)
        if gate.way_back.target is not None:
            moves.append(gate.motion.p[0])
    assert gate.state == "latched_fault"
    assert 5 < len(moves) < 45
    assert gate.motion.p[0] > 0.1  # it did not go all the way


def test_a_joint_is_enabled_where_it_is_unless_it_hangs_or_holds_something():
    back = way_back([HOME], HOME)
    back.see(moved(GRIPPER, 0.4), np.full(6, 1.0))
    back.rest(known=True)
    np.testing.assert_array_equal(back.start(HOME, moved(GRIPPER, 0.4)), HOME)
    np.testing.assert_array_equal(back.start(HOME, moved(0, 0.03)), moved(0, 0.0))
    for by_hand in (moved(0, 0.3), moved(GRIPPER, 0.2)):
        np.testing.assert_array_equal(back.start(HOME, by_hand), by_hand)
    np.testing.assert_array_equal(back.start(None, moved(0, 0.3)), moved(0, 0.3))
    back.rest(known=False)  # the driver may have let go of it
    np.testing.assert_array_equal(back.start(HOME, moved(GRIPPER, 0.4)), moved(GRIPPER, 0.4))


def test_an_arm_at_rest_whose_sensor_lies_stays_where_it_is():
    gate = Gate(GateConfig(), LIMITS)
    gate.measure(0.0, HOME)
    assert gate.enable(0.0, True) == ""
    commands = []
    for k in range(1, 300):
        measured = HOME if k < 20 else moved(3, -3.2)
        gate.measure(k * DT_S, measured)
        command = gate.tick(k * DT_S)
        if command is not None:
            commands.append(command)
    assert (gate.state, gate.stage) == ("latched_fault", "tracking_error")
    np.testing.assert_array_equal(np.ptp(commands, axis=0), 0)


def test_who_holds_something_keeps_it_through_an_estop():
    gate = Gate(GateConfig(), LIMITS)
    held = moved(GRIPPER, 0.0)
    closed = moved(GRIPPER, -0.4)
    gate.measure(0.0, held)
    assert gate.enable(0.0, True) == ""
    for k in range(1, 200):
        gate.measure(k * DT_S, held)
        if k % 10 == 1:
            gate.offer(
                k * DT_S, "policy", k * DT_S + np.arange(8) / 10, np.array([closed] * 8), 0.0
            )
        if k == 150:
            gate.estop("by a test")
        gate.tick(k * DT_S)
    assert gate.state == "latched_fault"
    last = gate.motion.p.copy()
    assert last[GRIPPER] < held[GRIPPER] - 0.3
    gate.reset()
    assert gate.enable(2.0, True) == ""
    gate.measure(2.01, held)
    np.testing.assert_array_equal(gate.tick(2.01), last)
