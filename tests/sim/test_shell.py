"""shell: cups move along half circles, none is lost, and the ball is where its cup went."""

import numpy as np
import pytest

from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import shell
from sim.vec_env import load_robot

SHORT = shell.Config(delay_steps=(16, 16), swaps=3)


def make(config: shell.Config = SHORT) -> MujocoWorld:
    return MujocoWorld(compile_scene(config, load_robot("so101")))


def cups(world: MujocoWorld) -> np.ndarray:
    """Return where the cups are, by their first place, f64 [K, 3]."""
    names = [f"button{k}" for k in range(world.task.config.choices)]
    return np.array([world.data.geom(name).xpos for name in names])


@pytest.mark.parametrize("index", range(4))
def test_the_marked_cup_can_be_followed_to_where_the_ball_is(index: int) -> None:
    world = make()
    world.reset(0, index)
    episode, home = world.episode, np.array(world.robot.home)
    before, marked = cups(world), set()
    while world.steps < episode.schedule.go - 1:
        red = [k for k in range(3) if world.model.geom(f"button{k}").rgba[1] < 0.3]
        marked |= set(red)
        assert bool(red) == (0 <= world.steps - episode.schedule.cue_start < 16)
        now = cups(world)
        # A way of pi / 2 * 17 cm in 24 steps: 1.2 cm a step; nothing jumps.
        assert np.linalg.norm(now - before, axis=1).max() < 0.013
        before = now
        world.step(home)
    assert marked == {episode.cue}
    right = world.task.right(episode)
    np.testing.assert_allclose(cups(world)[episode.cue], episode.buttons_m[right], atol=1e-9)
    world.step(home)
    np.testing.assert_allclose(cups(world), episode.buttons_m)  # nothing tells them apart


def test_the_last_place_is_independent_of_the_first() -> None:
    world = make(shell.Config(swaps=1))
    table = np.zeros((3, 3))
    for index in range(900):
        world.reset(2, index)
        table[world.episode.cue, world.task.right(world.episode)] += 1
    # Chi-squared with 8 degrees of freedom: 99.9 % of draws lie below 26.1.
    assert ((table - 100) ** 2 / 100).sum() < 26.1


@pytest.mark.parametrize(("choices", "swaps"), [(3, 0), (3, 4), (5, 2)])
def test_the_expert_finds_the_ball(choices: int, swaps: int) -> None:
    config = shell.Config(choices=choices, swaps=swaps, delay_steps=(16, 16))
    for index in range(3):
        record = record_episode("shell", 1, index, task_config=config, render=False)
        assert record.success[-1]
        assert not record.success[:-1].any()


def test_any_other_cup_ends_the_episode_in_failure() -> None:
    record = record_episode("shell", 0, 0, "wrong_object", task_config=SHORT, render=False)
    assert not record.success.any()
    assert record.progress[-1] == 0.0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"choices": 6}, "choices: got 6, expected 2 to 5"),
        ({"swap_steps": 8}, "swaps, swap_steps: got 2 of 8 steps"),
        ({"swaps": -1}, "swaps, swap_steps: got -1"),
        ({"delay_steps": (0, 0)}, "delay_steps: got 0 0"),
    ],
)
def test_settings_without_a_proof_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        shell.Config(**settings).build(load_robot("so101"))
