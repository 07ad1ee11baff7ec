"""Every bad behaviour does what its name says."""

import dataclasses

import numpy as np
import pytest

from sim.core import layout
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts import behaviours
from sim.experts.episode import record_episode
from sim.experts.motions import Motion
from sim.tasks import drawer, pick_place, push, reach
from vla.contracts import registry
from vla.contracts.config import PluginConfig
from vla.robots import so101

SEEDS = range(4)


@dataclasses.dataclass(eq=False)
class Trace:
    """What happened in one episode, step by step."""

    success: list[bool]
    progress: list[float]
    height_m: list[float]
    tool_m: list[np.ndarray]
    pose: list[np.ndarray]
    world: MujocoWorld


def _play(config: PluginConfig, behaviour: str, seed: int, watch: str | None = None) -> Trace:
    world = MujocoWorld(compile_scene(config, so101.SPEC))
    world.reset(seed, 0)
    trace = Trace([], [], [], [], [], world)
    rng = np.random.default_rng(seed)
    for action in behaviours.act_stream(world, world.task, behaviour, rng):
        world.step(action)
        trace.success.append(world.succeeded)
        trace.progress.append(world.progress())
        trace.height_m.append(layout.block_pos_m(world, watch)[2] if watch else 0.0)
        trace.tool_m.append(world.data.site_xpos[world.tool_site].copy())
        trace.pose.append(world.data.qpos[world.joint_qpos].copy())
        over = trace.success[-1] and not behaviours.continues_after_success(behaviour)
        if over or world.steps >= world.time_limit:
            break
    return trace


@pytest.mark.parametrize("seed", SEEDS)
def test_drop_lifts_the_cube_and_lets_it_fall_off_the_tray(seed: int) -> None:
    trace = _play(pick_place.Config(), "drop", seed, "cube")
    assert max(trace.height_m) > pick_place.HALF_M + 0.02
    assert trace.height_m[-1] < pick_place.HALF_M + 0.005
    assert not any(trace.success)


@pytest.mark.parametrize("seed", SEEDS)
def test_slip_loses_the_cube_and_goes_on_to_the_tray_without_it(seed: int) -> None:
    trace = _play(pick_place.Config(), "slip", seed, "cube")
    tray = trace.world.episode.tray_m
    assert max(trace.height_m) > pick_place.HALF_M + 0.02
    assert np.linalg.norm((trace.tool_m[-1] - tray)[:2]) < 0.02
    assert np.linalg.norm((layout.block_pos_m(trace.world, "cube") - tray)[:2]) > 0.05
    assert not any(trace.success)


@pytest.mark.parametrize("seed", SEEDS)
def test_slip_leaves_the_drawer_partly_open(seed: int) -> None:
    trace = _play(drawer.Config(), "slip", seed)
    out_m = trace.world.data.qpos[trace.world.model.joint("drawer").qposadr[0]]
    assert 0.01 < out_m < 0.06
    assert not trace.world.as_batch.touching("handle")[0]
    assert not any(trace.success)


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("task", [reach, push, pick_place, drawer])
def test_undo_succeeds_first_and_has_failed_in_the_end(task: object, seed: int) -> None:
    trace = _play(task.Config(), "undo", seed)
    assert any(trace.success)
    assert not trace.success[-1]
    assert trace.progress[-1] < 0.8


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("task", [reach, push, pick_place])
def test_overshoot_goes_too_far_and_succeeds_all_the_same(task: object, seed: int) -> None:
    trace = _play(task.Config(), "overshoot", seed)
    assert trace.success[-1]
    steps = len(_play(task.Config(), "expert", seed).success)
    assert len(trace.success) > steps


@pytest.mark.parametrize("seed", SEEDS[:2])
@pytest.mark.parametrize("task", [reach, push, pick_place, drawer])
def test_near_miss_comes_closer_than_hover_and_fails(task: object, seed: int) -> None:
    miss = _play(task.Config(), "near_miss", seed)
    hover = _play(task.Config(), "hover", seed)
    assert not any(miss.success)
    assert not any(hover.success)
    assert max(miss.progress) > max(hover.progress)


def test_near_miss_sets_the_cube_down_beside_the_tray() -> None:
    for seed in SEEDS:
        trace = _play(pick_place.Config(), "near_miss", seed, "cube")
        offset = layout.block_pos_m(trace.world, "cube") - trace.world.episode.tray_m
        assert trace.height_m[-1] < pick_place.HALF_M + 0.005
        assert 0.05 < np.abs(offset[:2]).max() < 0.12


@pytest.mark.parametrize("seed", SEEDS)
def test_hover_stays_above_the_cube_and_leaves_it_alone(seed: int) -> None:
    trace = _play(pick_place.Config(), "hover", seed, "cube")
    offset = trace.tool_m[-1] - layout.block_pos_m(trace.world, "cube")
    assert np.linalg.norm(offset[:2]) < 0.01
    assert offset[2] > 0.03
    assert np.ptp(trace.height_m) < 0.001


@pytest.mark.parametrize("seed", SEEDS)
def test_wrong_object_puts_the_other_cube_on_the_tray(seed: int) -> None:
    trace = _play(pick_place.Config(distractors=1), "wrong_object", seed)
    tray = trace.world.episode.tray_m
    other = layout.block_pos_m(trace.world, "other_cube")
    assert np.abs((other - tray)[:2]).max() < pick_place.TRAY_HALF_M
    assert not any(trace.success)


def test_wrong_object_reaches_the_other_ball() -> None:
    trace = _play(reach.Config(), "wrong_object", 0)
    other = trace.world.episode.balls_m[1]
    assert np.linalg.norm(trace.tool_m[-1] - other) < 0.02
    assert not any(trace.success)


@pytest.mark.parametrize("name", registry.names("sim.tasks"))
def test_freeze_stands_still_in_the_end_and_fails(name: str) -> None:
    trace = _play(registry.load("sim.tasks", name).Config(), "freeze", 1)
    assert not any(trace.success)
    assert np.abs(trace.pose[-1] - trace.pose[-8]).max() < 0.02


@pytest.mark.parametrize("name", registry.names("sim.tasks"))
def test_random_differs_by_generator_and_repeats_with_it(name: str) -> None:
    config = registry.load("sim.tasks", name).Config()
    world = MujocoWorld(compile_scene(config, so101.SPEC))
    runs = []
    for seed in (0, 0, 1):
        world.reset(3, 0)
        stream = behaviours.act_stream(world, world.task, "random", np.random.default_rng(seed))
        actions = []
        for action in stream:
            actions.append(action)
            world.step(action)
        runs.append(np.stack(actions))
    np.testing.assert_array_equal(runs[0], runs[1])
    length = min(map(len, runs))
    assert np.abs(runs[0][:length] - runs[2][:length]).max() > 0.05
    assert np.all(runs[0] >= so101.SPEC.low)
    assert np.all(runs[0] <= so101.SPEC.high)


@pytest.mark.parametrize("name", ["cue_colour", "put_back"])
def test_random_goes_on_after_a_memory_task_has_let_the_arm_go(name: str) -> None:
    config = registry.load("sim.tasks", name).Config()
    trace = _play(config, "random", 0)
    assert trace.world.steps >= trace.world.episode.schedule.go + 20
    assert np.ptp(np.stack(trace.pose), axis=0).max() > 0.1


@pytest.mark.parametrize("seed", range(3))
def test_the_expert_brings_back_what_somebody_pushed_past_the_disc(seed: int) -> None:
    world = MujocoWorld(compile_scene(push.Config(), so101.SPEC))
    world.reset(seed, 0)
    world.time_limit = 160
    block, disc = layout.block_pos_m(world, "block")[:2], world.episode.disc_m[:2]
    way = (disc - block) / np.linalg.norm(disc - block)
    motion = Motion(world)
    motion.opening = so101.SPEC.gripper.closed
    behind = np.array([*(block - push.BEHIND_M * way), push.HALF_M])
    yaw = float(np.arctan2(way[1], way[0]))
    for action in motion.move(behind, yaw, clearance_m=0.05, tolerance_m=0.01):
        world.step(action)
    while np.dot(layout.block_pos_m(world, "block")[:2] - disc, way) < 0.035:
        world.step(motion.toward(np.array([*(motion.tool_m[:2] + 0.03 * way), push.HALF_M]), yaw))
        assert world.steps < 80
    for action in world.task.script(world, "expert"):
        if world.step(action)[1]:
            break
    assert world.succeeded


@pytest.mark.parametrize("task", [reach, push, pick_place, drawer])
def test_noisy_leaves_the_experts_way_and_succeeds_at_times(task: object) -> None:
    expert = _play(task.Config(), "expert", 0)
    noisy = [_play(task.Config(), "noisy", seed) for seed in range(8)]
    assert np.abs(noisy[0].tool_m[8] - expert.tool_m[8]).max() > 0.002
    assert sum(trace.success[-1] for trace in noisy) >= 2
    lasted = [len(trace.success) for trace in noisy if not trace.success[-1]]
    assert all(steps == noisy[0].world.time_limit for steps in lasted)


def test_noisy_errs_on_pick_and_place_as_a_learner_does() -> None:
    ends = [_play(pick_place.Config(), "noisy", seed).success[-1] for seed in range(30)]
    assert 8 <= sum(ends) <= 26


def test_mixed_draws_every_behaviour_and_expert_and_noisy_one_time_in_four_each() -> None:
    task = pick_place.Config(distractors=1).build(so101.SPEC)
    rng = np.random.default_rng(0)
    drawn = [behaviours.resolve(task, "mixed", rng) for _ in range(2000)]
    assert set(drawn) == set(behaviours.supported(task))
    # Standard error of a share of 0.25 in 2000 draws: 0.0097.
    assert drawn.count("expert") / 2000 == pytest.approx(0.25, abs=0.03)
    assert drawn.count("noisy") / 2000 == pytest.approx(0.25, abs=0.03)


def test_a_behaviour_that_makes_no_sense_names_those_that_do() -> None:
    task = reach.Config().build(so101.SPEC)
    with pytest.raises(ValueError, match=r"got 'drop', expected one of this task's.*overshoot"):
        behaviours.resolve(task, "drop", np.random.default_rng(0))


def test_without_another_cube_there_is_no_wrong_object() -> None:
    task = pick_place.Config(distractors=0).build(so101.SPEC)
    assert "wrong_object" not in behaviours.supported(task)


@pytest.mark.parametrize("name", ["reach", "push", "drawer", "pick_place", "tabletop"])
def test_recoveries_begin_in_the_middle_and_end_well(name: str) -> None:
    plain, recovered = (
        [
            record_episode(name, 31, index, render=False, recovery_fraction=share)
            for index in range(8)
        ]
        for share in (0.0, 1.0)
    )
    assert all(record.success[-1] for record in recovered)
    begun = [
        not np.array_equal(a.proprio[0], b.proprio[0])
        for a, b in zip(plain, recovered, strict=True)
    ]
    assert sum(begun) >= 5
    again = record_episode(name, 31, 3, render=False, recovery_fraction=1.0)
    np.testing.assert_array_equal(again.action, recovered[3].action)


def test_a_recovery_goes_on_with_what_is_in_the_hand() -> None:
    """The expert of the middle does not open the hand: that would teach to drop things."""
    world = MujocoWorld(compile_scene(pick_place.Config(), so101.SPEC))
    world.reset(5, 0)
    gripper = world.robot.names.index(world.robot.gripper.channel)
    held = 0
    for action in world.task.script(world, "expert"):
        world.step(action)
        held += world.as_batch.touching("cube")[0] >= 2
        if held == 8:
            break
    stream = world.task.script(world, "expert")
    for _ in range(6):
        action = next(stream)
        world.step(action)
        assert action[gripper] < Motion(world).opened(0.5)
    assert world.as_batch.touching("cube")[0] >= 2
