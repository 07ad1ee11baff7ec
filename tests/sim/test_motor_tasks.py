"""reach, push, pick_place and drawer: their rules, checked on states set by hand."""

import numpy as np
import pytest

from sim.core import layout, rewards
from sim.core.kinematics import solve
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import drawer, pick_place, push, reach
from vla.contracts.config import PluginConfig
from vla.robots import so101


def _world(config: PluginConfig, seed: int = 0) -> MujocoWorld:
    world = MujocoWorld(compile_scene(config, so101.SPEC), vary=False)
    world.reset(seed, 0)
    return world


def _hold(world: MujocoWorld, steps: int) -> None:
    """Hold the arm where it is."""
    pose = world.data.qpos[world.joint_qpos].copy()
    for _ in range(steps):
        world.step(pose)


def test_share_done_counts_the_way_behind() -> None:
    done = rewards.share_done(np.array([0.3, 0.5, 0.0]), 0.4)
    np.testing.assert_allclose(done, [0.25, 0.0, 1.0])


def test_staged_adds_up_weighted_shares() -> None:
    both = rewards.staged((1.0, np.array([0.5, 1.0]), np.zeros(2)), (0.25, 0.5, 0.2))
    np.testing.assert_allclose(both, [0.5, 0.75])


def test_length_is_that_of_each_vector() -> None:
    np.testing.assert_allclose(rewards.length(np.array([[3.0, 4.0], [0.0, 0.5]])), [5.0, 0.5])


def test_reach_needs_the_tool_at_the_ball_for_three_steps() -> None:
    world = _world(reach.Config())
    ball = world.episode.balls_m[0]
    pose = solve(so101.SPEC, np.array(so101.SPEC.home), ball)
    world.data.qpos[world.joint_qpos] = pose
    outcomes = []
    for _ in range(3):
        world.step(pose)
        outcomes.append(world.succeeded)
    assert outcomes == [False, False, True]


def test_reach_forgets_the_time_held_when_the_tool_leaves() -> None:
    world = _world(reach.Config())
    world.as_batch.episode.held[:] = 2
    world.step(np.array(so101.SPEC.home))
    assert world.episode.held == 0


def test_reach_names_the_colour_of_the_right_ball() -> None:
    for seed in range(5):
        world = _world(reach.Config(), seed)
        colour = next(c for c in layout.COLOURS if c in world.instruction)
        rgb = world.model.geom_rgba[world.model.geom("ball").id, :3]
        np.testing.assert_allclose(rgb, layout.COLOURS[colour], atol=1e-6)


def test_pick_place_succeeds_with_the_cube_at_rest_on_the_tray() -> None:
    world = _world(pick_place.Config())
    tray = world.episode.tray_m
    layout.place(world, "cube", tray + (0.0, 0.0, pick_place.HALF_M))
    _hold(world, 5)
    assert world.succeeded
    assert world.progress() == 1.0


@pytest.mark.parametrize(
    ("offset_m", "expected"), [(0.045, True), (0.055, False)], ids=["inside", "outside"]
)
def test_pick_place_ends_at_the_edge_of_the_tray(offset_m: float, expected: bool) -> None:
    # The tray reaches 0.05 m from its centre.
    world = _world(pick_place.Config())
    pos = world.episode.tray_m + (0.0, offset_m, pick_place.HALF_M)
    layout.place(world, "cube", pos)
    _hold(world, 5)
    assert world.succeeded is expected


def test_pick_place_does_not_count_a_cube_in_the_air() -> None:
    world = _world(pick_place.Config())
    layout.place(world, "cube", world.episode.tray_m + (0.0, 0.0, 0.1))
    world.step(np.array(so101.SPEC.home))
    assert not world.succeeded
    assert world.progress() < 1.0


def test_pick_place_fails_when_the_cube_is_off_the_table() -> None:
    world = _world(pick_place.Config())
    assert not world.task.failure(world.as_batch)[0]
    layout.place(world, "cube", np.array([0.2, 0.9, -0.1]))
    _, terminated, _ = world.step(np.array(so101.SPEC.home))
    assert world.task.failure(world.as_batch)[0]
    assert terminated


def test_pick_place_keeps_cube_tray_and_distractor_apart() -> None:
    for seed in range(10):
        world = _world(pick_place.Config(distractors=1), seed)
        places = [layout.block_pos_m(world, n) for n in ("cube", "other_cube")]
        places.append(world.episode.tray_m)
        gaps = [np.linalg.norm((places[i] - places[j])[:2]) for i, j in ((0, 1), (0, 2), (1, 2))]
        # Centres are drawn 0.1 m apart.
        assert min(gaps) >= 0.1 - 1e-9


def test_push_succeeds_at_the_disc_only() -> None:
    world = _world(push.Config())
    disc = world.episode.disc_m
    layout.place(world, "block", disc + (0.02, 0.0, push.HALF_M))
    _hold(world, 5)
    assert world.succeeded
    # 0.03 m is more than the tolerance of 0.025 m.
    layout.place(world, "block", disc + (0.03, 0.0, push.HALF_M))
    _hold(world, 5)
    assert not world.succeeded


def test_push_progress_is_the_share_of_the_way_pushed() -> None:
    world = _world(push.Config())
    disc, start = world.episode.disc_m, layout.block_pos_m(world, "block")
    way = disc[:2] - start[:2]
    unit = way / np.linalg.norm(way)
    # Half of what is left after the tolerance of 0.025 m: 0.7 * 0.5, plus at most 0.25 for reach.
    half = 0.025 + 0.5 * (world.episode.push_m - 0.025)
    layout.place(world, "block", np.array([*(disc[:2] - half * unit), push.HALF_M]))
    world.step(np.array(so101.SPEC.home))
    assert 0.34 < world.progress() < 0.61


def test_drawer_is_open_from_6_cm_on() -> None:
    world = _world(drawer.Config())
    slide = world.model.joint("drawer").qposadr[0]
    for out_m, expected in ((0.05, False), (0.07, True)):
        world.data.qpos[slide] = out_m
        world.step(np.array(so101.SPEC.home))
        assert world.succeeded is expected
        assert (world.progress() == 1.0) is expected


def test_drawer_opens_towards_the_arm() -> None:
    world = _world(drawer.Config())
    handle = world.model.geom("handle").id
    before = world.data.geom_xpos[handle].copy()
    world.data.qpos[world.model.joint("drawer").qposadr[0]] = 0.05
    world.step(np.array(so101.SPEC.home))
    moved = world.data.geom_xpos[handle] - before
    np.testing.assert_allclose(moved, 0.05 * world.episode.out, atol=2e-3)
    assert np.dot(world.episode.out, -before * (1, 1, 0)) > 0.0


@pytest.mark.parametrize(
    "config",
    [
        reach.Config(distractors=2),
        reach.Config(tolerance_m=0.0),
        pick_place.Config(distractors=-1),
        pick_place.Config(yaw_rad=4.0),
        push.Config(distance_m=(0.02, 0.09)),
        push.Config(distance_m=(0.09, 0.06)),
        drawer.Config(open_m=0.2),
    ],
)
def test_a_setting_out_of_range_is_named(config: PluginConfig) -> None:
    with pytest.raises(ValueError, match=r"got .*, expected"):
        config.build(so101.SPEC)


def test_too_many_objects_for_the_table_are_refused() -> None:
    with pytest.raises(ValueError, match="no room for 9 objects"):
        layout.draw_separated(np.random.default_rng(0), so101.SPEC, 9, 0.15)


@pytest.mark.parametrize("task", ["reach", "pick_place"])
def test_records_say_where_the_named_thing_is(task: str) -> None:
    channel = {"red": 0, "green": 1, "blue": 2}
    right = []
    for index in range(12):
        record = record_episode(task, 5, index)
        colour = next((c for c in channel if c in record.instruction.split()), None)
        if colour is None:
            continue
        side = record.images.shape[2]
        x, y = (record.labels[f"referent.object.front.{axis}"][0] for axis in "xy")
        column, row = (int((value + 1) / 2 * side) for value in (x, y))
        right.append(int(record.images[0, 0, row, column].argmax()) == channel[colour])
    assert len(right) > 3
    assert np.mean(right) > 0.8
