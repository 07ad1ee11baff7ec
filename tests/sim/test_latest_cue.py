"""latest_cue: the lamp shows several colours, and the last one is right."""

from typing import Any

import numpy as np
import pytest

from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import _lock, latest_cue
from sim.vec_env import load_robot

SHORT = latest_cue.Config(cues=(1, 3), delay_steps=(16, 16))


def make(config: latest_cue.Config = SHORT) -> MujocoWorld:
    return MujocoWorld(compile_scene(config, load_robot("so101")))


def lamp(world: MujocoWorld) -> int | None:
    rgb = world.model.geom("lamp").rgba[:3]
    palette = list(_lock.PALETTE.values())[: world.task.config.choices]
    return next((k for k, known in enumerate(palette) if np.allclose(rgb, known)), None)


@pytest.mark.parametrize("index", [0, 1, 2, 3])
def test_the_lamp_shows_every_colour_with_a_pause_and_the_last_is_right(index: int) -> None:
    world = make()
    world.reset(0, index)
    episode, home = world.episode, np.array(world.robot.home)
    seen: list[int | None] = []
    lengths: list[int] = []
    while world.steps < episode.schedule.go:
        now = lamp(world)
        if not seen or now != seen[-1]:
            seen.append(now)
            lengths.append(0)
        lengths[-1] += 1
        world.step(home)
    assert lamp(world) is None
    colours = [k for k in seen if k is not None]
    assert colours == episode.shown[: episode.count].tolist()
    assert {n for k, n in zip(seen, lengths, strict=True) if k is not None} == {16}
    assert lengths[-1] >= 16
    assert world.task.right(episode) == colours[-1]


def test_a_cue_without_delay_stays_visible() -> None:
    world = make(latest_cue.Config(cues=(2, 2), delay_steps=(0, 0)))
    world.reset(0, 0)
    while world.steps <= world.episode.schedule.go + 8:
        world.step(np.array(world.robot.home))
    assert lamp(world) == world.task.right(world.episode)


def test_the_right_colour_is_independent_of_what_is_seen_from_go_on_and_of_the_first() -> None:
    world = make()
    places, firsts = np.zeros((4, 4)), np.zeros((4, 4))
    for index in range(1600):
        world.reset(3, index)
        episode = world.episode
        azimuth = np.arctan2(episode.buttons_m[:, 1], episode.buttons_m[:, 0])
        right = world.task.right(episode)
        places[right, np.argsort(np.argsort(azimuth))[right]] += 1
        firsts[episode.shown[0], right] += episode.count > 1
    # Chi-squared with 15 degrees of freedom: 99.9 % of draws lie below 37.7.
    for table in (places, firsts):
        mean = table.sum() / 16
        assert ((table - mean) ** 2 / mean).sum() < 37.7


@pytest.mark.parametrize("choices", [2, 8])
def test_the_expert_presses_the_right_button(choices: int) -> None:
    config = latest_cue.Config(choices=choices, cues=(1, 3), delay_steps=(16, 16))
    for index in range(3):
        record = record_episode("latest_cue", 1, index, task_config=config, render=False)
        assert record.success[-1]
        assert not record.success[:-1].any()


def test_any_other_button_ends_the_episode_in_failure() -> None:
    record = record_episode("latest_cue", 0, 0, "wrong_object", task_config=SHORT, render=False)
    assert not record.success.any()
    assert record.progress[-1] == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"choices": 1}, "choices: got 1, expected 2 to 8"),
        ({"cues": (0, 2)}, "cues: got 0 2, expected 1 <= min <= max <= 100"),
        ({"cues": (3, 2)}, "cues: got 3 2"),
        ({"delay_steps": (8, 16)}, "delay_steps: got 8 16"),
    ],
)
def test_settings_without_a_proof_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        latest_cue.Config(**settings).build(load_robot("so101"))
