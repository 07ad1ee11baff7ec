"""The property tests of the gate find nothing, and would if there were something."""

import numpy as np
import pytest

from benchmarks.robot_bridge import controller_replay, gate_player, gate_properties, vector_replay
from benchmarks.robot_bridge.gate_player import Example, Player, Tally
from robot_bridge.motion import braking
from robot_bridge.safety.gate import Gate
from robot_bridge.sim_arm.trajectory_controller import Trajectory

FAST = [("policy", 10)] * 3


def test_whatever_comes_the_reference_keeps_every_limit():
    tally = Tally()
    gate_properties.search(300, 0, tally)
    assert tally.examples >= 300
    assert tally.ticks > 20 * tally.examples
    for name in ("acceleration", "jerk"):
        assert 0.99 < tally.worst[name] <= 1 + controller_replay.ROUNDING
    acted = {"tracking", "latched_fault", "e-stop", "finite", "names", "fresh", "position",
             "joint_state_timeout", "deadman", "policy_died", "speed_scaling"}  # fmt: skip
    assert acted <= set(tally.stages)


@pytest.mark.parametrize("robot", gate_properties.ROBOTS)
def test_all_cycles_at_once_are_those_of_the_emulated_controller(robot):
    for seed in range(8):
        player = Player(Example(robot, 1.0, seed, []))
        for event, ticks in FAST:
            player.act(event)
            for _ in range(ticks):
                player.tick()
        for series in player.series:
            arrivals_s, stamps_s = np.array(series.arrivals_s), np.array(series.stamps_s)
            messages = [
                (t, Trajectory(times_s=0.01 * np.arange(len(p)), positions=p, velocities=v,
                               accelerations=a, stamp_s=stamp_s))
                for t, stamp_s, (p, v, a) in zip(arrivals_s, stamps_s, series.messages, strict=True)
            ]  # fmt: skip
            end_s = arrivals_s[-1] + 0.5
            wanted = controller_replay.reference(messages, series.start, 500.0, end_s)
            times_s = np.arange(len(wanted)) / 500.0
            later = times_s >= arrivals_s[0]
            path = vector_replay.reference(
                arrivals_s, stamps_s, series.messages, 0.01, times_s[later]
            )
            np.testing.assert_allclose(path, wanted[later], atol=1e-12)


def _found(seeds: int = 40) -> None:
    for seed in range(seeds):
        gate_player.play(Example("so101", 1.0, seed, FAST), Tally())


def test_a_gate_that_breaks_nothing_passes():
    _found()


def _careless(motion, wanted, limits, dt_s):
    moved = braking.advance(motion, wanted, dt_s)
    return moved, braking.way_to_rest(moved, limits, dt_s)


def test_a_gate_that_does_not_look_ahead_is_found(monkeypatch):
    monkeypatch.setattr(braking, "move", _careless)
    with pytest.raises(AssertionError, match="at most"):
        _found()


def test_a_trajectory_that_does_not_end_at_rest_is_found(monkeypatch):
    whole = Gate.trajectory
    monkeypatch.setattr(
        Gate, "trajectory", lambda gate: type(whole(gate))(*(x[:7] for x in whole(gate)))
    )
    with pytest.raises(AssertionError, match="at most"):
        _found()


def test_a_tick_that_is_too_late_and_does_not_brake_is_found(monkeypatch):
    monkeypatch.setattr(Gate, "brake_instead", lambda gate: None)
    with pytest.raises(AssertionError, match="at most"):
        _found(200)


def test_an_error_other_than_a_refusal_is_found(monkeypatch):
    def fails(*args: object) -> bool:
        raise KeyError("a chunk")

    monkeypatch.setattr(Gate, "offer", fails)
    with pytest.raises(KeyError):
        gate_properties.search(30, 0, Tally())
