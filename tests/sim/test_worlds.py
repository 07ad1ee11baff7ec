"""Rules as array code: what they say of many worlds is what they say of each alone."""

import dataclasses

import numpy as np
import pytest

from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.core.worlds import Fields, Worlds, arrays_of, cut_out, row_of, stacked
from sim.tasks import cue_colour
from sim.vec_env import load_robot, load_task

SHORT = cue_colour.Config(delay_steps=(16, 16), distractors=3)
TASKS = ("reach", "pick_place", "push", "drawer", "cue_colour", "put_back")


class Together:
    """Keeps worlds that were each simulated alone."""

    def __init__(self, worlds):
        self.worlds = worlds
        fields = {
            field.name: np.concatenate([getattr(w.as_batch.fields, field.name) for w in worlds])
            for field in dataclasses.fields(Fields)
        }
        self.view = Worlds(worlds[0].model, worlds[0].robot, Fields(**fields), self)
        self.view.steps[:] = [w.steps for w in worlds]
        self.view.episode = stacked(worlds[0].episode, len(worlds))
        for row, world in enumerate(worlds):
            of_all, of_one = arrays_of(self.view.episode), arrays_of(world.as_batch.episode)
            for values, value in zip(of_all, of_one, strict=True):
                values[row] = value[0]

    def contacts(self):
        pairs = [w.data.contact.geom for w in self.worlds]
        world = [np.full(len(p), row) for row, p in enumerate(pairs)]
        return np.concatenate(world), np.concatenate(pairs)

    def go_home(self, rows):
        raise AssertionError("no rule asked for here goes home")

    def refresh(self, rows):
        raise AssertionError("no rule asked for here writes")


@pytest.mark.parametrize("task", TASKS)
def test_rules_say_of_many_worlds_what_they_say_of_each_alone(task):
    scene = compile_scene(load_task(task), load_robot(None))
    worlds = [MujocoWorld(scene) for _ in range(5)]
    for seed, world in enumerate(worlds):
        world.reset(seed, 0)
        # As far into the expert's episode as the seed says; the last is at its end.
        for step, action in enumerate(scene.task.script(world, "expert")):
            if world.step(action)[1] or (seed < 4 and world.progress() > 0.22 * seed and step > 3):
                break
    together = Together(worlds).view
    alone = [world.as_batch for world in worlds]
    for rule in (scene.task.success, scene.task.failure, scene.task.progress):
        said = rule(together)
        assert said.shape == (5,)
        np.testing.assert_array_equal(said, np.concatenate([rule(one) for one in alone]))
    actions = np.random.default_rng(0).uniform(-1, 1, (5, len(scene.robot.channels)))
    expected = [scene.task.control(one, a[None])[0] for one, a in zip(alone, actions, strict=True)]
    np.testing.assert_array_equal(scene.task.control(together, actions), expected)
    progress = scene.task.progress(together)
    assert progress[-1] == 1.0
    assert len(set(progress.tolist())) >= 3


def test_two_fingers_are_counted_as_two_and_the_table_as_none():
    scene = compile_scene(load_task("pick_place"), load_robot(None))
    world = MujocoWorld(scene)
    world.reset(0, 0)
    assert world.as_batch.touching("cube").tolist() == [0]  # it lies on the table
    for action in scene.task.script(world, "expert"):
        world.step(action)
        if world.progress() > 0.5:
            break
    assert world.as_batch.touching("cube").tolist() == [2]


def test_writers_leave_alone_what_stands_still_or_was_not_named():
    scene = compile_scene(SHORT, load_robot(None))
    worlds = [MujocoWorld(scene) for _ in range(3)]
    for seed, world in enumerate(worlds):
        world.reset(seed, 0)
    view = Together(worlds).view
    view.moving[2] = False
    view.fields.qpos[:, view.joint_qpos] = 0.5
    view.hold_home(np.array([True, False, True]))
    home = np.array(scene.robot.home)
    np.testing.assert_array_equal(view.fields.qpos[0, view.joint_qpos], home)
    np.testing.assert_array_equal(view.fields.qpos[1:, view.joint_qpos], 0.5)
    spots = np.arange(9.0).reshape(3, 3)
    view.place("button0", np.array([False, True, True]), spots, np.array([0.0, np.pi, 0.0]))
    mark = scene.model.body_mocapid[scene.model.body("button0").id]
    np.testing.assert_array_equal(view.fields.mocap_pos[1, mark], spots[1])
    np.testing.assert_allclose(view.fields.mocap_quat[1, mark], [0, 0, 0, 1], atol=1e-12)
    assert (view.fields.mocap_pos[[0, 2], mark] != spots[[0, 2]]).any(1).all()


def test_the_state_of_an_episode_is_one_row_of_that_of_many_in_the_same_memory():
    world = MujocoWorld(compile_scene(SHORT, load_robot(None)))
    world.reset(0, 0)
    many = stacked(world.episode, 4)
    assert many.buttons_m.shape == (4, 4, 3)
    assert many.schedule.flashes.shape == (4, 3, 3)
    assert many.cue.tolist() == [world.episode.cue] * 4
    cut_out(many, 2).touched[:] = True
    assert row_of(many, 2).touched.all()
    assert not row_of(many, 1).touched.any()
    assert isinstance(row_of(many, 1).cue, int)
    assert row_of(many, 1).schedule.go == world.episode.schedule.go
    with pytest.raises(dataclasses.FrozenInstanceError):
        world.episode.cue = 3
