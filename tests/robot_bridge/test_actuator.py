"""What stands between a controller's input and the motors, and what it logs."""

import numpy as np
import pytest

from robot_bridge.sim_arm.actuator import FORWARD, TRAJECTORY, Actuator, Controller, InputLog
from robot_bridge.sim_arm.realtime_clock import LinkModel
from robot_bridge.sim_arm.trajectory_controller import Trajectory
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts import behaviours
from sim.vec_env import load_robot, load_task
from sim.vector.realtime_world import RealtimeWorld


def controller(line=None, start=(0.0,), lag_s=0.0):
    actuator = Actuator(np.array(start), lag_s)
    return Controller(actuator, line or LinkModel(), np.random.default_rng(0))


def trajectory(positions, times_s, stamp_s=None):
    return Trajectory(
        times_s=np.array(times_s), positions=np.array(positions, np.float64), stamp_s=stamp_s
    )


def played(one, ticks, tick_s=0.01):
    """Return what the first motor gets in each tick from time 0 on."""
    return [one.advance(i * tick_s, (i + 1) * tick_s)[0] for i in range(ticks)]


def test_a_command_without_a_time_counts_at_once_and_is_held():
    one = controller()
    one.receive(0.0, np.array([2.0]))
    assert played(one, 3) == [2.0, 2.0, 2.0]


def test_one_point_is_reached_at_its_time_in_a_straight_line():
    one = controller()
    one.receive(0.0, trajectory([[1.0]], [0.04]))
    np.testing.assert_allclose(played(one, 6), [0.25, 0.5, 0.75, 1.0, 1.0, 1.0])


def test_several_points_are_joined_and_the_last_is_held():
    one = controller()
    one.receive(0.0, trajectory([[1.0], [0.0]], [0.02, 0.04]))
    np.testing.assert_allclose(played(one, 6), [0.5, 1.0, 0.5, 0.0, 0.0, 0.0], atol=1e-12)


def test_points_whose_time_has_passed_are_behind_us():
    one = controller()
    # It began 0.05 s ago: from 1 at -0.01 s to 2 at 0.01 s, so 1.5 now and 2 a tick later.
    one.receive(0.0, trajectory([[1.0], [2.0]], [0.04, 0.06], -0.05))
    np.testing.assert_allclose(played(one, 2), [2.0, 2.0])
    late = controller()
    late.receive(0.0, trajectory([[1.0]], [0.01], -1.0))
    assert played(late, 1) == [1.0]


def test_a_new_command_takes_over_from_where_the_old_one_is():
    one = controller()
    one.receive(0.0, trajectory([[1.0]], [0.04]))
    assert played(one, 2)[-1] == pytest.approx(0.5)
    one.receive(0.02, trajectory([[0.0]], [0.02]))
    assert one.advance(0.02, 0.03)[0] == pytest.approx(0.25)  # half of the way from 0.5 to 0
    assert one.advance(0.03, 0.04)[0] == pytest.approx(0.0)


def test_lagging_motors_have_done_63_percent_after_their_time_constant():
    one = controller(lag_s=0.1)
    one.receive(0.0, np.array([1.0]))
    assert played(one, 10)[-1] == pytest.approx(1 - np.exp(-1))


def test_a_reset_forgets_what_is_on_the_way():
    one = controller(LinkModel(latency_s=0.01))
    one.receive(0.0, np.array([1.0]))
    one.reset(np.array([0.3]), 0.0)
    assert played(one, 4) == [0.3] * 4


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_command_that_is_not_finite_is_counted_and_the_last_good_one_stays(bad):
    one = controller(start=(0.0, 0.0))
    one.receive(0.0, np.array([1.0, 1.0]))
    one.receive(0.0, np.array([2.0, bad]))
    assert played(one, 2) == [1.0, 1.0]
    assert one.counts == {"commands": 2, "not_finite": 1, "lost_commands": 0}


def test_a_late_line_delivers_that_much_later():
    one = controller(LinkModel(latency_s=0.02))
    one.receive(0.0, np.array([1.0]))
    assert played(one, 4) == [0.0, 0.0, 1.0, 1.0]


def test_a_line_that_loses_everything_moves_nothing():
    one = controller(LinkModel(drop=1.0))
    one.receive(0.0, np.array([1.0]))
    assert played(one, 2) == [0.0, 0.0]
    assert one.counts["lost_commands"] == 1


def test_the_log_holds_every_command_as_it_came(tmp_path):
    log = InputLog(("a", "b"))
    sent = np.random.default_rng(0).normal(size=(700, 2))
    sent[5, 1] = np.nan
    for i, row in enumerate(sent):
        log.append(float(i), FORWARD, np.zeros(1), row[None])
    log.append(700.0, TRAJECTORY, np.array([0.1, 0.2]), np.array([[1.0, 2.0], [3.0, 4.0]]))
    log.write(tmp_path / "log.npz")
    with np.load(tmp_path / "log.npz", allow_pickle=False) as found:
        assert found["joints"].tolist() == ["a", "b"]
        assert {len(found[name]) for name in found.files if name != "joints"} == {702}
        np.testing.assert_array_equal(found["positions"][:700], sent)
        np.testing.assert_array_equal(found["positions"][700:], [[1.0, 2.0], [3.0, 4.0]])
        np.testing.assert_array_equal(found["received_s"], [*range(700), 700, 700])
        np.testing.assert_array_equal(found["from_start_s"][700:], [0.1, 0.2])
        assert found["source"].tolist() == [FORWARD] * 700 + [TRAJECTORY] * 2
        assert found["positions"].dtype == np.float64


def test_a_log_without_commands_has_columns_without_rows(tmp_path):
    InputLog(("a", "b")).write(tmp_path / "log.npz")
    with np.load(tmp_path / "log.npz", allow_pickle=False) as found:
        shapes = {name: (found[name].shape, found[name].dtype.char) for name in found.files}
    assert shapes == {
        "joints": ((2,), "U"), "received_s": ((0,), "d"), "source": ((0,), "B"),
        "from_start_s": ((0,), "d"), "positions": ((0, 2), "d"),
    }  # fmt: skip


def test_an_episode_through_the_controller_ends_as_one_in_control_steps_to_the_bit():
    scene = compile_scene(load_task("reach"), load_robot("so101"))
    world, live = MujocoWorld(scene), RealtimeWorld(scene, 100)
    world.reset(5, 2)
    live.begin(5, 2)
    one = controller(start=scene.robot.home)
    rng = np.random.default_rng(0)
    ticks, ended = 0, False
    for action in behaviours.act_stream(world, world.task, "expert", rng):
        _, terminated, truncated = world.step(action)
        one.receive(0.01 * ticks, np.array(action, np.float64))
        for _ in range(10):
            ended = live.tick(one.advance(0.01 * ticks, 0.01 * (ticks + 1)))
            ticks += 1
        assert ended
        if terminated or truncated:
            break
    assert world.succeeded
    assert live.world.steps == world.steps > 5
    assert (live.terminated, live.truncated) == (terminated, truncated)
    np.testing.assert_array_equal(live.world.data.qpos, world.data.qpos)
    np.testing.assert_array_equal(live.world.data.qvel, world.data.qvel)
