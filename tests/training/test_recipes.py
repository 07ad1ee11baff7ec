"""Every recipe is a run that could start, and survives its own config.json."""

import json

import numpy as np
import pytest

from sim import vec_env
from sim.experts.episode import record_episode
from training.commands import train
from training.core.config import TrainConfig
from vla.contracts import config as configs
from vla.contracts import registry
from vla.nn.normalize import NormalizationStatistics
from vla.nn.text import train_tokenizer

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
    robot = vec_env.load_arm(recipe.task, recipe.robot)
    task = recipe.task.build(robot)
    zeros, ones = (0.0,) * len(robot.channels), (1.0,) * len(robot.channels)
    scale = NormalizationStatistics(
        state_mean=zeros, state_std=ones, action_low=zeros, action_high=ones
    )
    policy = recipe.policy.build(robot, scale, train_tokenizer(task.instructions))
    assert policy.noise_shape[1:] == (recipe.policy.chunk_size, len(robot.channels))


def test_it_is_judged_on_200_episodes_it_was_not_trained_on(recipe: TrainConfig) -> None:
    assert recipe.eval.final_episodes >= 200
    assert recipe.demos.seed not in (recipe.eval.seed, recipe.eval.seed + 1)


def test_episodes_as_short_as_part_of_its_batches_asks_for_are_recorded(
    recipe: TrainConfig,
) -> None:
    limit = getattr(recipe.algo, "short_decisions", 0)
    name = configs.type_name(recipe.task)
    count = 20 if limit else 0
    lengths = [
        len(record_episode(name, 5, k, task_config=recipe.task, render=False).action)
        for k in range(count)
    ]
    decisions = np.ceil(np.array(lengths) / recipe.policy.n_action_steps)
    # Of 20 episodes, a quarter that short, none is in 3 of 1,000 draws.
    assert not limit or (decisions <= limit).any()
