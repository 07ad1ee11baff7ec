"""The study of language: what it counts, and that a blank instruction reaches the policy blank."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.training import language_study as study
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.tasks import tabletop
from sim.tasks._language import Goal
from sim.vec_env import load_robot
from tests.fakes import fake_observation
from vla.contracts.types import Observation


def cell(goals: list[Goal], achieved: list[Goal | None], thing: str = "red cube") -> dict[str, Any]:
    index = study.GOALS.index
    return {
        "goals": [index(goal) for goal in goals],
        "achieved": [-1 if goal is None else index(goal) for goal in achieved],
        "success": [a == b for a, b in zip(goals, achieved, strict=True)],
        "things": [thing] * len(goals),
    }


LIFT, OTHER, TOUCH = Goal("lift", 0), Goal("lift", 2), Goal("touch", 0)


def test_another_thing_counts_as_wrong_and_another_act_does_not() -> None:
    done = cell([LIFT, LIFT, LIFT, LIFT], [LIFT, OTHER, TOUCH, None])
    assert study.wrong_thing(done, 4) == 1
    rows = study.confusion([done])
    lift = next(row for row in rows if row[0] == "lift")
    columns = dict(zip((*study._language.ACTS, "nothing"), lift[1:], strict=True))
    assert (columns["lift"], columns["touch"], columns["nothing"]) == ("2", "1", "1")


def test_instructions_come_worst_first() -> None:
    parts = [cell([LIFT, LIFT], [LIFT, None]), cell([TOUCH], [TOUCH])]
    assert study.by_instruction(parts) == [("lift, red cube", 1, 2), ("touch, red cube", 1, 1)]


def test_a_swap_counts_where_both_instructions_are_followed() -> None:
    three_goals_two_scenes = [[True, True], [True, False], [False, True]]
    assert study.swapped([three_goals_two_scenes]) == (2 + 2, 4 + 4)


def test_the_named_thing_is_the_one_of_the_goal() -> None:
    config = tabletop.Config()
    world = MujocoWorld(compile_scene(config, load_robot("so101")))
    for index, name in enumerate(study.things(config, load_robot("so101"), 6, 3)):
        world.reset(3, index)
        colour, shape = name.split()
        assert world.task.shapes[int(world.episode.thing)] == shape  # type: ignore[attr-defined]
        body = tabletop.THINGS[int(world.episode.thing)][0]
        rgb = world.model.geom_rgba[world.model.geom(body).id, :3]
        np.testing.assert_allclose(rgb, study.tabletop.layout.COLOURS[colour], atol=1e-6)


def test_a_blank_instruction_reaches_the_policy_blank() -> None:
    told: list[tuple[str, ...]] = []

    class Listening:
        n_action_steps = 3

        def act(self, obs: Observation, *_: object) -> None:
            told.append(obs.task)

    blank = study.Blanked(Listening())  # type: ignore[arg-type]
    blank.act(fake_observation(np.random.default_rng(0), 2, [0.0, 0.0]), None, None)  # type: ignore[arg-type]
    assert told == [("", "")]
    assert blank.n_action_steps == 3


def test_no_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="policies: got none"):
        study.Study(policies=(), out=Path("x"))
