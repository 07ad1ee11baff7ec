"""sequence: the order is told by the lamp alone, and a press out of order ends the episode."""

import numpy as np
import pytest

from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts.episode import record_episode
from sim.tasks import _lock, sequence
from sim.vec_env import load_robot

SHORT = sequence.Config(delay_steps=(16, 16))


def make(config: sequence.Config = SHORT) -> MujocoWorld:
    return MujocoWorld(compile_scene(config, load_robot("so101")))


def play(variant: str, index: int, config: sequence.Config = SHORT) -> MujocoWorld:
    """Return the world after an episode of the script was played in it."""
    record = record_episode("sequence", 0, index, variant, task_config=config, render=False)
    world = make(config)
    world.reset(0, index)
    for action in record.action[:-1]:
        world.step(action)
    return world


def test_the_lamp_shows_every_colour_of_the_order_once_and_in_order() -> None:
    world = make()
    world.reset(0, 0)
    shown: list[np.ndarray] = []
    while world.steps < world.episode.schedule.go:
        colour = world.model.geom("lamp").rgba[:3].copy()
        if not shown or not np.array_equal(shown[-1], colour):
            shown.append(colour)
        world.step(np.array(world.robot.home))
    lit = [colour for colour in shown if not np.allclose(colour, _lock.OFF_RGB)]
    palette = list(_lock.PALETTE.values())
    np.testing.assert_allclose(lit, [palette[k] for k in world.episode.order], atol=1e-6)


def test_all_orders_are_drawn_alike_and_apart_from_the_layout() -> None:
    world = make()
    orders, spots = [], []
    for index in range(1200):
        world.reset(5, index)
        orders.append(tuple(world.episode.order.tolist()))
        at = world.episode.buttons_m
        spots.append(int(np.argsort(np.arctan2(at[:, 1], at[:, 0]))[0]))
    kinds = sorted(set(orders))
    assert len(kinds) == 24
    table = np.zeros((24, 4))
    np.add.at(table, ([kinds.index(order) for order in orders], spots), 1)
    # Chi-squared with 95 degrees of freedom: 99.9 % of draws lie below 144.
    assert ((table - 12.5) ** 2 / 12.5).sum() < 144


@pytest.mark.parametrize(("choices", "length"), [(4, 3), (2, 2), (6, 4), (8, 5)])
def test_the_expert_presses_them_in_order(choices: int, length: int) -> None:
    config = sequence.Config(choices=choices, length=length, delay_steps=(16, 16))
    for index in range(3):
        record = record_episode("sequence", 1, index, task_config=config, render=False)
        assert record.success[-1]
        assert not record.success[:-1].any()
        assert record.progress[:-1].max() < 1.0


def test_a_button_before_its_turn_ends_the_episode_in_failure() -> None:
    world = play("wrong_object", 0)
    assert world.episode.pressed == 1  # the first was right, the third came second
    assert world.episode.wrong
    assert not world.task.success(world.as_batch)[0]
    assert world.progress() == 0.0


@pytest.mark.parametrize("variant", ["near_miss", "hover"])
def test_without_the_last_press_it_is_not_done(variant: str) -> None:
    for index in range(3):
        world = play(variant, index)
        assert world.episode.pressed == 2
        assert not world.episode.wrong
        assert not world.task.success(world.as_batch)[0]


def test_a_button_that_was_pressed_rightly_may_be_touched_again() -> None:
    world = play("hover", 0)
    first = world.episode.buttons_m[world.episode.order[0]]
    for action in sequence._buttons.motion(world, 4).press(first):
        world.step(action)
    assert not world.episode.wrong
    assert world.episode.pressed == 2


def test_the_named_button_is_the_next_one() -> None:
    world = make()
    world.reset(0, 0)
    assert np.isnan(world.task.referents(world.as_batch)).all()
    world = play("hover", 0)
    last = world.episode.buttons_m[world.episode.order[2]]
    np.testing.assert_array_equal(world.task.referents(world.as_batch), [[last, last]])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length": 5}, "length: got 5, expected 2 to choices=4"),
        ({"length": 1}, "length: got 1"),
        ({"choices": 9}, "choices: got 9, expected 2 to 8"),
        ({"delay_steps": (0, 0)}, "delay_steps: got 0 0"),
        ({"cue_steps": 8}, "cue_steps: got 8, expected at least 16"),
    ],
)
def test_settings_without_a_proof_are_refused(settings: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sequence.Config(**settings).build(load_robot("so101"))
