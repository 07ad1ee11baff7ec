"""wait_then_press: nothing but elapsed time tells when to begin, and out of time is too late."""

import numpy as np
import pytest

from sim.core.render import Camera, shared_renderer
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import wait_then_press
from sim.vec_env import load_robot

SHORT = wait_then_press.Config(delay_steps=(16, 16))


def make(config: wait_then_press.Config = SHORT) -> MujocoWorld:
    return MujocoWorld(compile_scene(config, load_robot("so101")))


def closed(world: MujocoWorld) -> np.ndarray:
    action, hand = np.array(world.robot.home), world.robot.gripper
    action[world.robot.names.index(hand.channel)] = hand.closed
    return action


def begin_after(decisions: int) -> MujocoWorld:
    """Return a world in which the press began so many decisions after go, an interval of 6."""
    world = make()
    world.reset(0, 0)
    world.as_batch.episode.cue[:] = 6
    home = np.array(world.robot.home)
    while world.steps < world.episode.schedule.go + 8 * decisions:
        world.step(home)
    world.step(closed(world))
    return world


@pytest.mark.parametrize("decisions", range(3, 10))
def test_one_decision_early_or_late_is_in_time_and_two_are_not(decisions: int) -> None:
    world = begin_after(decisions)
    assert world.task.failure(world.as_batch)[0] == (abs(decisions - 6) > 1)


def test_an_open_hand_is_held_at_home_whatever_else_is_asked() -> None:
    world = make()
    world.reset(0, 0)
    home = np.array(world.robot.home)
    rng = np.random.default_rng(0)
    hand = world.robot.names.index(world.robot.gripper.channel)
    while world.steps < world.episode.schedule.go + 40:
        np.testing.assert_array_equal(world.data.qpos[world.joint_qpos], home)
        action = rng.uniform(world.robot.low, world.robot.high)
        action[hand] = world.robot.gripper.open
        world.step(action)
    assert world.episode.started == -1


def test_while_it_waits_nothing_changes_and_the_interval_leaves_no_trace() -> None:
    traces = set()
    for interval in (4, 12):
        world = make()
        camera = Camera(shared_renderer(world.scene), world)
        world.reset(3, 1)
        world.as_batch.episode.cue[:] = interval
        home, schedule = np.array(world.robot.home), world.episode.schedule
        after, waiting = [str((world.time_limit, schedule)).encode()], set()
        while world.steps < schedule.go + 80:
            view = camera.render().tobytes() + world.proprio.tobytes()
            if world.steps >= schedule.cue_end:
                after.append(view)
            if world.steps >= schedule.go:
                waiting.add(view)
            world.step(home)
        assert len(waiting) == 1
        traces.add(b"".join(after))
    assert len(traces) == 1


def test_the_lamp_is_lit_for_the_interval() -> None:
    world = make()
    for index in range(5):
        world.reset(1, index)
        lit = 0
        while world.steps < world.episode.schedule.go:
            lit += bool(world.model.geom("lamp").rgba[0] > 0.9)
            world.step(np.array(world.robot.home))
        assert lit == 8 * world.episode.cue


@pytest.mark.parametrize("variant", ["overshoot", "hover"])
def test_too_late_and_never_are_no_success(variant: str) -> None:
    for index in range(3):
        record = record_episode(
            "wait_then_press", 0, index, variant, task_config=SHORT, render=False
        )
        assert not record.success.any()
        assert record.progress[-1] == 0.0


@pytest.mark.parametrize("interval", [(2, 2), (8, 24)])
def test_the_expert_is_in_time(interval: tuple[int, int]) -> None:
    config = wait_then_press.Config(interval_decisions=interval, delay_steps=(16, 16))
    for index in range(3):
        assert record_episode(
            "wait_then_press", 1, index, task_config=config, render=False
        ).success[-1]


def test_the_ceiling_is_what_the_best_constant_chance_reaches_in_games() -> None:
    config = wait_then_press.Config()
    rng, best = np.random.default_rng(0), 0.0
    for chance in np.linspace(0.02, 0.4, 20):
        begin = rng.geometric(chance, 20000) - 1
        interval = rng.integers(4, 13, 20000)
        best = max(best, float((np.abs(begin - interval) <= 1).mean()))
    assert config.ceiling == pytest.approx(best, abs=0.012)
    # With one interval of n and no tolerance the best chance is 1 / (n + 1).
    exact = wait_then_press.Config(interval_decisions=(8, 8), tolerance_decisions=0)
    assert exact.ceiling == pytest.approx((8 / 9) ** 8 / 9, abs=1e-6)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"interval_decisions": (1, 4)}, "interval_decisions, tolerance_decisions: got 1 4 and 1"),
        ({"interval_decisions": (8, 4)}, "interval_decisions, tolerance_decisions: got 8 4"),
        ({"tolerance_decisions": 4}, "got 4 12 and 4, expected 2 <= min <= max and a tolerance"),
        ({"choices": 1}, "choices: got 1, expected 2 to 8"),
        ({"delay_steps": (0, 0)}, "delay_steps: got 0 0"),
    ],
)
def test_settings_without_a_proof_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wait_then_press.Config(**settings).build(load_robot("so101"))
