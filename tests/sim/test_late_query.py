"""late_query: every button has a colour, and which one counts is told after all are dark."""

import numpy as np
import pytest

from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import _lock, late_query
from sim.vec_env import load_robot

SHORT = late_query.Config(delay_steps=(16, 16))
COLOURS = list(_lock.PALETTE.values())


def make(config: late_query.Config = SHORT) -> MujocoWorld:
    return MujocoWorld(compile_scene(config, load_robot("so101")))


def rgb(world: MujocoWorld, name: str) -> np.ndarray:
    return world.model.geom(name).rgba[:3].copy()


def test_buttons_are_coloured_during_the_cue_alone_and_the_lamp_from_go_on() -> None:
    world = make()
    world.reset(0, 0)
    episode, home = world.episode, np.array(world.robot.home)
    coloured = 0
    while world.steps < episode.schedule.go:
        cue = episode.schedule.cue_start <= world.steps < episode.schedule.cue_end
        coloured += cue
        for k in range(4):
            expected = COLOURS[episode.colours[k]] if cue else _lock.OFF_RGB
            np.testing.assert_allclose(rgb(world, f"button{k}"), expected, atol=1e-6)
        np.testing.assert_allclose(rgb(world, "lamp"), _lock.OFF_RGB, atol=1e-6)
        world.step(home)
    assert coloured == 16
    np.testing.assert_allclose(rgb(world, "lamp"), COLOURS[episode.query], atol=1e-6)


def test_the_right_button_is_independent_of_what_is_seen_from_go_on() -> None:
    world = make()
    table = np.zeros((4, 4))
    for index in range(800):
        world.reset(3, index)
        azimuth = np.arctan2(world.episode.buttons_m[:, 1], world.episode.buttons_m[:, 0])
        right = world.task.right(world.episode)
        assert world.episode.colours[right] == world.episode.query
        table[world.episode.query, np.argsort(np.argsort(azimuth))[right]] += 1
    # Chi-squared with 15 degrees of freedom: 99.9 % of draws lie below 37.7.
    assert ((table - 50) ** 2 / 50).sum() < 37.7


@pytest.mark.parametrize("choices", [2, 4, 8])
def test_the_expert_presses_the_right_button(choices: int) -> None:
    config = late_query.Config(choices=choices, delay_steps=(16, 16))
    for index in range(3):
        record = record_episode("late_query", 1, index, task_config=config, render=False)
        assert record.success[-1]
        assert not record.success[:-1].any()


def test_any_other_button_ends_the_episode_in_failure() -> None:
    record = record_episode("late_query", 0, 0, "wrong_object", task_config=SHORT, render=False)
    assert not record.success.any()
    assert record.progress[-1] == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"choices": 1}, "choices: got 1, expected 2 to 8"),
        ({"delay_steps": (0, 0)}, "delay_steps: got 0 0"),
        ({"cue_steps": 8}, "cue_steps: got 8, expected at least 16"),
    ],
)
def test_settings_without_a_proof_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        late_query.Config(**settings).build(load_robot("so101"))
