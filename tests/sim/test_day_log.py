"""day_log: one button lights up at each event of a long day; an early one is asked for."""

from typing import Any

import numpy as np
import pytest

from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import day_log
from sim.vec_env import load_robot

SHORT = day_log.Config(events=(3, 4), delay_steps=(16, 16))


def make(config: day_log.Config = SHORT) -> MujocoWorld:
    return MujocoWorld(compile_scene(config, load_robot("so101")))


def lit(world: MujocoWorld) -> list[int]:
    colours = [world.model.geom(f"button{k}").rgba[:3] for k in range(world.task.config.choices)]
    return [k for k, rgb in enumerate(colours) if np.allclose(rgb, day_log.LIT_RGB)]


def events_of(world: MujocoWorld) -> list[int]:
    """Let the episode run to go; return the buttons that lit up, each after a pause."""
    home, seen, before = np.array(world.robot.home), [], []
    while world.steps < world.episode.schedule.go:
        now = lit(world)
        assert len(now) <= 1
        seen += now if not before else []
        before = now
        world.step(home)
    assert lit(world) == []
    return seen


@pytest.mark.parametrize("index", [0, 1, 2])
def test_what_is_seen_in_a_day_tells_the_right_button(index: int) -> None:
    world = make()
    world.reset(0, index)
    episode = world.episode
    seen = events_of(world)
    assert seen == episode.order[: episode.count].tolist()
    which = next(k for k, word in enumerate(day_log.ORDINALS) if word in world.instruction.split())
    assert world.task.right(episode) == seen[which]


def test_the_right_button_is_independent_of_what_is_seen_from_go_on() -> None:
    world = make()
    table = np.zeros((3, 4))
    for index in range(1200):
        world.reset(3, index)
        azimuth = np.arctan2(world.episode.buttons_m[:, 1], world.episode.buttons_m[:, 0])
        right = world.task.right(world.episode)
        table[world.episode.asked, np.argsort(np.argsort(azimuth))[right]] += 1
    # Chi-squared with 11 degrees of freedom: 99.9 % of draws lie below 31.3.
    assert ((table - 100) ** 2 / 100).sum() < 31.3


def test_a_day_may_have_hundreds_of_frames() -> None:
    world = make(day_log.Config(events=(30, 30), delay_steps=(16, 16)))
    world.reset(1, 0)
    assert world.episode.schedule.go > 900
    assert len(events_of(world)) == 30


@pytest.mark.parametrize("choices", [2, 8])
def test_the_expert_presses_the_right_button(choices: int) -> None:
    config = day_log.Config(choices=choices, events=(3, 4), delay_steps=(16, 16))
    for index in range(3):
        record = record_episode("day_log", 1, index, task_config=config, render=False)
        assert record.success[-1]
        assert not record.success[:-1].any()


def test_any_other_button_ends_the_episode_in_failure() -> None:
    record = record_episode("day_log", 0, 0, "wrong_object", task_config=SHORT, render=False)
    assert not record.success.any()
    assert record.progress[-1] == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"choices": 1}, "choices: got 1, expected 2 to 8"),
        ({"events": (2, 8)}, "events: got 2 8, expected 3 <= min <= max <= 1000"),
        ({"events": (8, 3)}, "events: got 8 3"),
        ({"delay_steps": (0, 0)}, "delay_steps: got 0 0"),
        ({"cue_steps": 8}, "cue_steps: got 8, expected at least 16"),
    ],
)
def test_settings_without_a_proof_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        day_log.Config(**settings).build(load_robot("so101"))
