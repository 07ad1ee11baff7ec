"""Tabletop: many goals in one scene, told apart by the instruction alone."""

import collections
import itertools

import numpy as np
import pytest

from sim.core.scene import compile_scene
from sim.core.task import HasGoals, ending
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import _language, tabletop
from sim.tasks._language import ACTS, KINDS, Goal
from sim.vec_env import load_robot, make

GOALS = _language.goals(len(tabletop.THINGS))


def _world(robot: str = "so101", **settings: object) -> MujocoWorld:
    config = tabletop.Config(**settings)  # type: ignore[arg-type]
    return MujocoWorld(compile_scene(config, load_robot(robot)))


def _play(world: MujocoWorld, variant: str = "expert") -> None:
    """Run a script until the episode or the script ends."""
    for action in world.task.script(world, variant):
        _, terminated, truncated = world.step(np.asarray(action, np.float32))
        if terminated or truncated:
            return


def test_more_than_forty_goals_are_valid_at_once() -> None:
    assert len(set(GOALS)) == len(GOALS) == 44
    assert isinstance(_world().task, HasGoals)


def test_held_out_compositions_are_of_known_parts() -> None:
    held_out = [(act, kind) for act in ACTS for kind in KINDS if _language.is_held_out(act, kind)]
    assert len(held_out) == 8
    trained = set(itertools.product(ACTS, KINDS)) - set(held_out)
    for act, kind in held_out:
        assert any(a == act for a, _ in trained)
        assert any(k == kind for _, k in trained)
    assert min(collections.Counter(act for act, _ in trained).values()) >= 6


def test_held_out_wordings_are_new_and_made_of_known_words() -> None:
    for split in ("train", "held_out"):
        assert len(set(_language.instructions("all", split))) == len(
            _language.instructions("all", split)
        )
    trained = set(_language.instructions("all", "train"))
    known = {word for text in trained for word in text.split()}
    for text in _language.instructions("all", "held_out"):
        assert text not in trained
        assert set(text.split()) <= known, text


def test_the_scene_of_a_seed_does_not_depend_on_the_goal() -> None:
    seen = set()
    for goal in (0, 9, 17, 30):
        world = _world(goals=(goal,), compositions="all")
        world.reset(3, 1)
        assert ending(world.task, world.as_batch)[0][0] == goal
        seen.add((world.data.qpos.tobytes(), world.model.geom_rgba.tobytes()))
    assert len(seen) == 1


def test_a_goal_that_is_named_more_often_is_drawn_more_often() -> None:
    world = _world(goals=(16, 7, 7, 7, 7), compositions="all")
    drawn = []
    for index in range(400):
        world.reset(5, index)
        drawn.append(world.episode.goal)
    assert set(drawn) == {7, 16}
    assert 50 < drawn.count(16) < 115  # 80, standard deviation 8


def test_some_goals_can_be_asked_for_alone() -> None:
    world = _world(goals=(7, 12, 40))
    drawn = set()
    for index in range(20):
        world.reset(2, index)
        drawn.add(int(world.episode.goal))
    assert drawn == {7, 12, 40}


def _first_named(instruction: str) -> tuple[str, str]:
    """Return colour and shape of the first thing that an instruction names."""
    words = instruction.split()
    first = next(i for i, word in enumerate(words) if word in _language.COLOURS)
    shape = next(s for s, nouns in _language.NOUNS.items() if words[first + 1] in nouns)
    return words[first], shape


def test_goals_are_drawn_as_far_as_the_split_has_them() -> None:
    for split in ("train", "held_out"):
        world = _world(goals=tuple(range(20, 44)), compositions=split)
        for index in range(20):
            world.reset(4, index)
            act = GOALS[int(world.episode.goal)].act
            assert act in _language.RELATIONS
            kind = _first_named(world.instruction)
            assert _language.is_held_out(act, kind) == (split == "held_out")
    held_out = {(act, shape) for act in ACTS for colour, shape in KINDS
                if _language.is_held_out(act, (colour, shape))}  # fmt: skip
    shapes = [shape for _, shape in tabletop.THINGS]
    never = [i for i, goal in enumerate(GOALS) if (goal.act, shapes[goal.thing]) not in held_out]
    assert never
    with pytest.raises(ValueError, match="none of which is in the split 'held_out'"):
        _world(goals=tuple(never), compositions="held_out")


def test_the_instruction_names_act_and_things_and_the_split_decides_which() -> None:
    for split in ("train", "held_out"):
        world = _world(compositions=split)
        acts = set()
        for index in range(60):
            world.reset(0, index)
            assert world.instruction in world.task.instructions
            acts.add(ACTS[int(world.episode.act)])
        assert len(acts) >= 6
    with pytest.raises(ValueError, match="goals: got .44,., expected numbers from 0 to 43"):
        tabletop.Config(goals=(44,)).build(load_robot("so101"))


@pytest.mark.parametrize("robot", ["so101", "panda"])
@pytest.mark.parametrize("act", ACTS)
def test_the_expert_achieves_what_was_asked(act: str, robot: str) -> None:
    for goal in [k for k, goal in enumerate(GOALS) if goal.act == act][::2]:
        world = _world(robot, goals=(goal,))
        world.reset(goal, 0)
        _play(world)
        assert world.succeeded, GOALS[goal]
        assert [k[0] for k in ending(world.task, world.as_batch)] == [goal, goal]


@pytest.mark.parametrize("act", ACTS)
def test_taking_another_thing_fails(act: str) -> None:
    goal = GOALS.index(Goal(act, 1, 2 if act in _language.RELATIONS else None))
    world = _world(goals=(goal,))
    world.reset(5, 0)
    _play(world, "wrong_object")
    assert not world.succeeded
    assert world.task.failure(world.as_batch)[0]
    asked, achieved = (int(k[0]) for k in ending(world.task, world.as_batch))
    assert asked == goal
    assert achieved < 0 or GOALS[achieved].thing != GOALS[goal].thing


def test_distractors_replace_things_and_are_never_named() -> None:
    world = _world(distractors=2)
    assert isinstance(world.task, HasGoals)
    assert len(world.task.goals) == 2 * 5 + 2 * 2
    world.reset(0, 0)
    assert np.isfinite(world.data.xpos[world.model.body("egg").id]).all()
    assert not any("orange" in text or "egg" in text for text in world.task.instructions)


def test_environments_report_goals_when_episodes_end() -> None:
    env = make("tabletop", 2, task_config=tabletop.Config(goals=(2,)))
    env.reset(0)
    home = np.tile(np.float32(env.spec.robot.home), (2, 20, 1))
    for _ in range(5):
        step = env.step_chunk(home)
    assert step.truncated.all()
    assert step.info["goal"].tolist() == [2, 2]
    assert step.info["achieved"].tolist() == [-1, -1]
    env.close()


def test_a_task_with_a_single_goal_reports_none() -> None:
    env = make("reach", 1)
    env.reset(0)
    home = np.tile(np.float32(env.spec.robot.home), (1, 100, 1))
    step = env.step_chunk(home)
    assert step.truncated.all()
    assert (step.info["goal"].tolist(), step.info["achieved"].tolist()) == ([-1], [-1])
    env.close()


@pytest.mark.parametrize("robot", ["so101", "panda"])
def test_records_say_where_in_the_images_the_thing_is(robot: str) -> None:
    config = tabletop.Config(goals=(GOALS.index(Goal("left", 0)),))
    record = record_episode("tabletop", 8, 0, robot=robot, task_config=config)
    assert record.success[-1]
    side = record.images.shape[2]
    colour = next(word for word in record.instruction.split() if word in _language.COLOURS)
    main = {"red": 0, "green": 1, "blue": 2}
    seen = []
    for t in range(0, len(record.images), 4):
        x, y = (record.labels[f"referent.object.front.{axis}"][t] for axis in "xy")
        assert max(abs(x), abs(y)) < 1
        column, row = (int((value + 1) / 2 * side) for value in (x, y))
        patch = record.images[t, 0, row - 1 : row + 2, column - 1 : column + 2].astype(int)
        pixel = patch.reshape(-1, 3)
        if colour in main:
            seen.append((pixel.argmax(1) == main[colour]).mean())
        else:  # yellow
            seen.append((pixel[:, 2] < pixel[:, :2].min(1) - 30).mean())
    assert np.mean(seen) > 0.7  # the hand may hide it
    place = [record.labels[f"referent.place.front.{axis}"] for axis in "xy"]
    assert np.ptp(place, axis=1).max() < 1e-5
    assert place[0][0] != record.labels["referent.object.front.x"][0]


def test_what_has_to_go_beside_a_thing_refers_to_that_thing():
    seen = set()
    for index in range(40):
        world = _world()
        world.reset(5, index)
        batch = world.as_batch
        goal = world.task.goals[int(world.task.goal_index(batch)[0])]
        thing, place = world.task.referents(batch)[0]
        here = [world.data.body(name).xpos for name in world.task.things]
        np.testing.assert_array_equal(thing, here[goal.thing])
        beside = goal.act in ("front", "behind")
        wanted = here[goal.reference] if beside else world.episode.goal_m
        np.testing.assert_array_equal(place, wanted)
        seen.add(beside)
    assert seen == {True, False}
