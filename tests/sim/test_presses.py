"""count and T8 visit_all: after each press all is as before it, and a wrong one ends it."""

import itertools

import numpy as np
import pytest

from sim.core.render import Camera, shared_renderer
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import count, visit_all
from sim.vec_env import load_robot

QUICK = (16, 16)
TASKS = {
    "count": count.Config(delay_steps=QUICK),
    "visit_all": visit_all.Config(delay_steps=QUICK, distractors=2),
}


def make(task: str) -> MujocoWorld:
    return MujocoWorld(compile_scene(TASKS[task], load_robot("so101")))


@pytest.mark.parametrize("task", TASKS)
def test_whenever_the_arm_comes_free_all_is_the_same_to_the_bit(task: str) -> None:
    world = make(task)
    camera = Camera(shared_renderer(world.scene), world)
    for index in range(3):
        world.reset(0, index)
        views: list[bytes] = []
        presses = 0
        for action in world.task.script(world, "expert"):
            if world.steps == world.episode.free_from:
                state = world.data.qpos.tobytes() + world.data.qvel.tobytes()
                views.append(camera.render().tobytes() + state)
            _, terminated, truncated = world.step(action)
            presses = int(world.episode.presses)
            if terminated or truncated:
                break
        assert world.task.success(world.as_batch)[0]
        assert len(views) == presses == world.task.total(world.episode)
        # The first look of `visit_all` comes before any control step: its physics is at rest too.
        assert len(set(views)) == 1


def test_with_another_number_of_flashes_all_after_them_is_the_same_to_the_bit() -> None:
    traces = set()
    for number in (1, 2, 3):
        world = make("count")
        camera = Camera(shared_renderer(world.scene), world)
        world.reset(2, 0)
        world.as_batch.episode.cue[:] = number
        trace = [
            world.instruction.encode(),
            str((world.time_limit, world.episode.schedule)).encode(),
        ]
        for action in np.random.default_rng(0).uniform(world.robot.low, world.robot.high, (300, 6)):
            if world.steps >= world.episode.schedule.cue_end:
                trace.append(camera.render().tobytes() + world.data.qpos.tobytes())
            if world.steps == world.episode.schedule.go + 16:
                break
            world.step(action)
        traces.add(b"".join(trace))
    assert len(traces) == 1


@pytest.mark.parametrize("task", TASKS)
def test_the_expert_keeps_pressing_until_the_next_decision(task: str) -> None:
    world = make(task)
    world.reset(0, 1)
    before, held, pressing = 0, 0, np.zeros(6)
    for action in world.task.script(world, "expert"):
        if world.episode.presses > before:
            if world.steps % 8:
                np.testing.assert_array_equal(action, pressing)
                held += 1
            else:
                before = int(world.episode.presses)
        else:
            pressing = action
        world.step(action)
    assert held > 0


@pytest.mark.parametrize("task", TASKS)
def test_the_arm_is_locked_for_at_least_two_decisions_after_a_press(task: str) -> None:
    world = make(task)
    world.reset(0, 1)
    home, before = np.array(world.robot.home), 0
    for action in world.task.script(world, "expert"):
        if world.episode.presses > before and not world.task.success(world.as_batch)[0]:
            before = int(world.episode.presses)
            assert world.episode.free_from % 8 == 0
            assert world.episode.free_from - world.steps >= 16
            np.testing.assert_array_equal(world.data.qpos[world.joint_qpos], home)
            assert world.data.geom("button0").xpos[2] < -0.5  # the buttons are gone
        if world.step(action)[1]:
            break
    assert before >= 1


@pytest.mark.parametrize("task", TASKS)
def test_a_wrong_press_ends_the_episode_and_a_missing_one_does_not(task: str) -> None:
    for index in range(3):
        wrong = record_episode(
            task, 0, index, "wrong_object", task_config=TASKS[task], render=False
        )
        assert not wrong.success.any()
        assert wrong.progress[-1] == 0.0
        hover = record_episode(task, 0, index, "hover", task_config=TASKS[task], render=False)
        assert not hover.success.any()
        assert 0.4 < hover.progress[-1] < 0.95


@pytest.mark.parametrize(
    ("task", "config"),
    [("visit_all", visit_all.Config(choices=2)), ("visit_all", visit_all.Config(choices=6)),
     ("count", count.Config(choices=1)), ("count", count.Config(choices=6))],
)  # fmt: skip
def test_the_expert_copes_with_any_number(task: str, config: object) -> None:
    for index in range(3):
        assert record_episode(task, 1, index, task_config=config, render=False).success[-1]


def test_no_chance_of_pressing_again_beats_the_ceiling_of_count() -> None:
    for largest in (1, 2, 3, 5):
        chance = np.linspace(0, 1, 20001)
        best = np.mean([chance**n * (1 - chance) for n in range(1, largest + 1)], 0).max()
        assert count.Config(choices=largest).ceiling == pytest.approx(best, abs=1e-6)


def test_no_choice_of_probabilities_beats_the_ceiling_of_visit_all() -> None:
    assert visit_all.Config(choices=3).ceiling == pytest.approx(6 / 27)
    games = np.array(list(itertools.product(range(3), repeat=3)))
    every = [len(set(game)) == 3 for game in games.tolist()]
    rng = np.random.default_rng(0)
    shares = np.vstack([np.full(3, 1 / 3), rng.dirichlet(np.ones(3), 500)])
    success = shares[:, games].prod(-1)[:, every].sum(1)
    assert success[0] == success.max() == pytest.approx(visit_all.Config(choices=3).ceiling)


def test_the_number_of_flashes_is_what_the_lamp_shows_and_go_does_not_tell_it() -> None:
    world = make("count")
    numbers, gos = [], []
    for index in range(60):
        world.reset(4, index)
        numbers.append(int(world.episode.cue))
        gos.append(world.episode.schedule.go - world.episode.schedule.cue_end)
        if index < 6:
            lit = []
            while world.steps < world.episode.schedule.go:
                lit.append(bool(world.model.geom("lamp").rgba[0] > 0.9))
                world.step(np.array(world.robot.home))
            assert np.sum(np.diff(np.array(lit, int)) == 1) + lit[0] == world.episode.cue
            assert sum(lit) == 16 * world.episode.cue
    assert set(numbers) == {1, 2, 3}
    assert min(gos) >= 16


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        (count, {"choices": 9}, "choices: got 9, expected 1 to 8"),
        (count, {"delay_steps": (0, 0)}, "delay_steps: got 0 0"),
        (visit_all, {"choices": 1}, "choices: got 1, expected 2 to 8"),
        (visit_all, {"delay_steps": (0, 0)}, "delay_steps: got 0 0"),
        (visit_all, {"delay_steps": (8, 64)}, "delay_steps: got 8 64"),
    ],
)
def test_settings_without_a_proof_are_refused(task, settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        task.Config(**settings).build(load_robot("so101"))
