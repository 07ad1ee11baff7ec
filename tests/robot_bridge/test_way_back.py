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
    back.look(commands[-1])
    return back


def moved(joint, by):
    return HOME + by * np.eye(6)[joint]


def test_a_joint_goes_back_to_where_it_was_stopped():
    back = way_back([HOME, moved(0, 0.2), moved(0, 0.6)], moved(0, 0.3))
    np.testing.assert_allclose(back.target, moved(0, 0.3))
    assert back.pending
    back.arrive(moved(0, 0.31))
    assert back.target is not None
    back.arrive(moved(0, 0.301))
    assert back.target is None


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


def test_a_joint_is_enabled_where_its_controller_was_left_unless_it_was_moved():
    back = way_back([HOME], HOME)
    back.see(moved(GRIPPER, 0.4), np.full(6, 1.0))
    back.rest(HOME)
    np.testing.assert_array_equal(back.start(HOME, moved(GRIPPER, 0.4)), HOME)
    np.testing.assert_array_equal(back.start(HOME, HOME), HOME)  # the object was taken out
    by_hand = moved(0, 0.3)
    np.testing.assert_array_equal(back.start(HOME, by_hand), by_hand)
    np.testing.assert_array_equal(back.start(None, by_hand), by_hand)


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
