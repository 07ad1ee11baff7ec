"""put_back: nothing seen from go on depends on the block's place; the first place decides."""

import numpy as np
import pytest

from sim.core import layout
from sim.core.render import Camera, shared_renderer
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import put_back
from sim.vec_env import load_robot
from vla.contracts.referents import HIDDEN

SHORT = put_back.Config(delay_steps=(16, 16), distractors=1)


def make(config=SHORT):
    return MujocoWorld(compile_scene(config, load_robot("so101")))


def test_swapping_the_place_changes_nothing_from_the_blank_on_to_the_bit():
    def play(cue):
        world = make()
        world.reset(4, 2)
        world.as_batch.episode.cue[:] = cue
        camera = Camera(shared_renderer(world.scene), world)
        schedule = world.episode.schedule
        shown, blank = [], []
        for action in np.random.default_rng(0).uniform(
            world.robot.low, world.robot.high, (schedule.go + 15, 6)
        ):
            after = world.steps >= schedule.cue_end
            frame = camera.render().tobytes() + world.data.qpos.tobytes()
            (blank if after else shown).append(frame)
            if world.step(action)[1]:
                break
        return tuple(shown), tuple(blank)

    plays = [play(cue) for cue in range(4)]
    assert len({shown for shown, _ in plays}) == 4
    shortest = min(len(blank) for _, blank in plays)
    assert shortest > 20
    assert len({blank[:shortest] for _, blank in plays}) == 1


def test_the_block_rests_at_its_place_while_the_cue_lasts_and_at_the_centre_otherwise():
    world = make()
    world.reset(0, 1)
    episode = world.episode
    at_place = at_centre = 0
    while world.steps < episode.schedule.go:
        block = layout.block_pos_m(world, "block")
        at_place += np.allclose(block[:2], episode.places_m[episode.cue][:2])
        at_centre += np.allclose(block, episode.centre_m)
        world.step(np.array(world.robot.high))
    assert at_place >= 16
    assert at_centre >= 16 + episode.schedule.cue_start
    assert np.allclose(layout.block_pos_m(world, "block"), episode.centre_m)


def test_the_blank_before_go_is_two_decisions_or_more():
    world = make(put_back.Config())
    for index in range(200):
        world.reset(0, index)
        schedule = world.episode.schedule
        assert schedule.go - schedule.cue_end >= 16


def test_the_expert_puts_it_back_and_progress_grows_to_one():
    for index in range(4):
        record = record_episode("put_back", 0, index, task_config=SHORT, render=False)
        assert record.success[-1]
        assert record.progress[-1] == 1.0
        assert record.progress[:-1].max() < 1.0
        assert record.progress[:-1].max() > 0.8  # reach, grasp, lift and transport add up to 0.8


def test_another_place_ends_the_episode_in_failure():
    for index in range(3):
        record = record_episode("put_back", 0, index, "wrong_object", None, SHORT, render=False)
        assert not record.success.any()
        world = make()
        world.reset(0, index)
        for action in record.action[:-1]:
            _, terminated, _ = world.step(action)
        assert terminated
        assert world.episode.chosen == (world.episode.cue + 1) % 4


def test_a_dropped_block_between_places_decides_nothing():
    record = record_episode("put_back", 0, 2, "drop", task_config=SHORT, render=False)
    assert not record.success.any()
    assert record.progress.max() >= 0.45  # it was lifted


def test_too_many_places_or_no_delay_are_refused():
    robot = load_robot("so101")
    with pytest.raises(ValueError, match="choices: got 6, expected 2 to 5"):
        put_back.Config(choices=6).build(robot)
    with pytest.raises(ValueError, match="a block that stays in place is no task"):
        put_back.Config(delay_steps=(0, 0)).build(robot)


def test_records_say_where_the_block_and_its_old_place_are_from_go_on():
    record = record_episode("put_back", 3, 0, task_config=SHORT)
    block, place = (
        np.stack([record.labels[f"referent.{kind}.front.{axis}"] for axis in "xy"], 1)
        for kind in ("object", "place")
    )
    hidden = (place == HIDDEN).all(1)
    go = int(hidden.argmin())
    assert hidden[:go].all()
    assert (block[:go] == HIDDEN).all()
    np.testing.assert_allclose(place[go:], place[go : go + 1].repeat(len(place) - go, 0), atol=1e-6)
    assert np.linalg.norm(block[go] - place[go]) > 0.1
    assert np.linalg.norm(block[-1] - place[-1]) < 0.1
