"""named_once: names are told while the lamp shows their colours; one of them is asked for."""

from typing import Any

import numpy as np
import pytest

from sim import vec_env
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import _lock, named_once
from sim.tasks.named_once import ASK, NAMES, TELL, WAIT
from sim.vec_env import load_robot

SHORT = named_once.Config(delay_steps=(16, 16))


def make(config: named_once.Config = SHORT) -> MujocoWorld:
    return MujocoWorld(compile_scene(config, load_robot("so101")))


def lamp(world: MujocoWorld) -> int | None:
    rgb = world.model.geom("lamp").rgba[:3]
    palette = list(_lock.PALETTE.values())[: world.task.config.choices]
    return next((k for k, known in enumerate(palette) if np.allclose(rgb, known)), None)


def named(text: str, sentences: tuple[str, ...]) -> str | None:
    """Return the name in a text that is one of some sentences."""
    return next((n for n in NAMES for s in sentences if s.format(n) == text), None)


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_every_colour_gets_its_name_and_one_name_is_asked_for(index: int) -> None:
    world = make()
    world.reset(0, index)
    episode, home = world.episode, np.array(world.robot.home)
    told: dict[str, int] = {}
    while world.steps < episode.schedule.go:
        name, colour = named(world.instruction, TELL), lamp(world)
        assert (name is None) == (colour is None)
        assert name is not None or world.instruction in WAIT
        if name is not None:
            assert told.setdefault(name, colour) == colour
        world.step(home)
    assert len(told) == episode.count
    assert len(set(told.values())) == episode.count
    assert lamp(world) is None
    assert world.task.right(episode) == told[named(world.instruction, ASK)]


def test_a_cue_without_delay_shows_the_colour_that_is_asked_for() -> None:
    world = make(named_once.Config(names=(3, 3), delay_steps=(0, 0)))
    for index in range(3):
        world.reset(0, index)
        while world.steps <= world.episode.schedule.go + 8:
            world.step(np.array(world.robot.home))
        assert lamp(world) == world.task.right(world.episode)


def test_the_right_colour_is_independent_of_places_name_and_turn() -> None:
    world = make()
    places, names, turns = np.zeros((4, 4)), np.zeros((8, 4)), np.zeros((3, 4))
    for index in range(1600):
        world.reset(3, index)
        episode = world.episode
        azimuth = np.arctan2(episode.buttons_m[:, 1], episode.buttons_m[:, 0])
        right = world.task.right(episode)
        places[np.argsort(np.argsort(azimuth))[right], right] += 1
        names[episode.names[episode.asked], right] += 1
        turns[episode.asked, right] += 1
    # Chi-squared: 99.9 % of draws lie below these values for 15, 31 and 11 degrees of freedom.
    for table, bar in ((places, 37.7), (names, 61.1), (turns, 31.3)):
        mean = table.sum(1, keepdims=True) / 4
        assert ((table - mean) ** 2 / mean).sum() < bar


@pytest.mark.parametrize("choices", [2, 8])
def test_the_expert_presses_the_right_button_and_the_record_has_every_instruction(
    choices: int,
) -> None:
    config = named_once.Config(choices=choices, names=(2, 2), delay_steps=(16, 16))
    for index in range(3):
        record = record_episode("named_once", 1, index, task_config=config, render=False)
        assert record.success[-1]
        assert len(record.instructions) == len(record.action)
        assert record.instruction == record.instructions[0]
        assert len(set(record.instructions)) == 4  # wait, two names, press


def test_any_other_button_ends_the_episode_in_failure() -> None:
    record = record_episode("named_once", 0, 0, "wrong_object", task_config=SHORT, render=False)
    assert not record.success.any()
    assert record.progress[-1] == 0.0


def test_a_batch_of_environments_tells_each_instruction_in_time() -> None:
    env = vec_env.make("named_once", 2, task_config=SHORT)
    obs = env.reset(0)
    home = np.tile(np.array(env.spec.robot.home, np.float32), (2, 4, 1))
    heard: list[set[str]] = [set(), set()]
    while env.is_locked().any():
        for row, text in enumerate(obs.task):
            heard[row].add(text)
        obs = env.step_chunk(home, None, ~env.is_locked()).obs
    for row in range(2):
        told = {named(text, TELL) for text in heard[row]} - {None}
        assert named(obs.task[row], ASK) in told
        assert len(told) >= 2


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"choices": 1}, "choices: got 1, expected 2 to 8"),
        ({"names": (0, 2)}, "names: got 0 2, expected 1 <= min <= max <= 4, the choices"),
        ({"names": (3, 5)}, "names: got 3 5"),
        ({"delay_steps": (8, 16)}, "delay_steps: got 8 16"),
    ],
)
def test_settings_without_a_proof_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        named_once.Config(**settings).build(load_robot("so101"))
