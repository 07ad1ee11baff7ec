"""Every recipe is a run that could start, and survives its own config.json."""

import json

import pytest

from training import train
from training.config import TrainConfig
from vla.contracts import config as configs
from vla.contracts import registry
from vla.nn.text import train_tokenizer
from vla.normalize import Statistics

NAMES = registry.names("training.recipes")


@pytest.fixture(params=NAMES)
def recipe(request: pytest.FixtureRequest) -> TrainConfig:
    return registry.load("training.recipes", request.param).recipe()


def test_it_survives_json(recipe: TrainConfig) -> None:
    text = json.dumps(configs.to_json(recipe), allow_nan=False)
    assert configs.from_json(TrainConfig, json.loads(text)) == recipe


@pytest.mark.parametrize("name", NAMES)
def test_without_flags_the_command_runs_the_recipe(name: str) -> None:
    expected = registry.load("training.recipes", name).recipe()
    assert train.parse(["--recipe", name, "--out", "a"]).train == expected


def test_its_task_and_policy_can_be_built_for_its_robot(recipe: TrainConfig) -> None:
    robot = registry.load("vla.robots", recipe.robot).SPEC
    task = recipe.task.build(robot)
    zeros, ones = (0.0,) * len(robot.channels), (1.0,) * len(robot.channels)
    scale = Statistics(state_mean=zeros, state_std=ones, action_low=zeros, action_high=ones)
    policy = recipe.policy.build(robot, scale, train_tokenizer(task.instructions))
    assert policy.noise_shape[1:] == (recipe.policy.chunk, len(robot.channels))


def test_it_is_judged_on_200_episodes_it_was_not_trained_on(recipe: TrainConfig) -> None:
    assert recipe.eval.final_episodes >= 200
    assert recipe.demos.seed not in (recipe.eval.seed, recipe.eval.seed + 1)
