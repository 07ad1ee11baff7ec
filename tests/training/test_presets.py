"""Every preset changes every recipe into a run that could start; flags change it further."""

import json

import pytest

from training.commands import train
from training.core.config import TrainConfig
from vla.contracts import config as configs
from vla.contracts import registry
from vla.memory import bank
from vla.nn.vlm import HUB

PRESETS = registry.names("training.presets")
RECIPES = registry.names("training.recipes")
PRETRAINED = [name for name in PRESETS if name != "tiny"]


def recipe(name: str) -> TrainConfig:
    return registry.load("training.recipes", name).recipe()


def preset(name: str, of: TrainConfig) -> TrainConfig:
    return registry.load("training.presets", name).preset(of)


@pytest.mark.parametrize("of", ["pick_place", "cue_colour"])
@pytest.mark.parametrize("name", PRESETS)
def test_the_command_runs_the_preset_of_the_recipe(name, of):
    expected = preset(name, recipe(of))
    assert train.parse(["--recipe", of, "--preset", name, "--out", "a"]).train == expected


@pytest.mark.parametrize("of", RECIPES)
@pytest.mark.parametrize("name", PRESETS)
def test_it_survives_json(name, of):
    expected = preset(name, recipe(of))
    text = json.dumps(configs.to_json(expected), allow_nan=False)
    assert configs.from_json(TrainConfig, json.loads(text)) == expected


@pytest.mark.parametrize("of", RECIPES)
@pytest.mark.parametrize("name", PRESETS)
def test_the_task_its_demonstrations_and_its_judgement_stay_those_of_the_recipe(name, of):
    was = recipe(of)
    now = preset(name, was)
    assert (now.task, now.demos) == (was.task, was.demos)
    assert now.eval.final_episodes == was.eval.final_episodes
    assert type(now.policy.memory) is type(was.policy.memory)
    assert (now.policy.chunk_size, now.policy.n_action_steps) == (
        was.policy.chunk_size,
        was.policy.n_action_steps,
    )


@pytest.mark.parametrize("of", RECIPES)
@pytest.mark.parametrize("name", PRESETS)
def test_as_much_is_learned_from_as_in_the_recipe(name, of):
    was = recipe(of)
    now = preset(name, was)
    learned = now.steps * now.algo.batch_size
    assert (
        was.steps * was.algo.batch_size
        <= learned
        < was.steps * was.algo.batch_size + now.algo.batch_size
    )


@pytest.mark.parametrize("name", PRETRAINED)
def test_pretrained_presets_name_a_download_and_train_in_sixteen_bits_on_a_gpu(name):
    now = preset(name, recipe("cue_colour"))
    assert now.policy.backbone.model.startswith(HUB)
    assert now.policy.backbone.dtype == "bfloat16"
    assert now.policy.backbone.gradient_checkpointing
    assert now.policy.head.denoiser == "transformer"
    assert now.device == "cuda"


def test_tiny_is_what_recipes_are_by_themselves():
    assert all(preset("tiny", recipe(of)) == recipe(of) for of in RECIPES)


def test_presets_grow():
    runs = [preset(name, recipe("cue_colour")) for name in ("small", "base", "large")]
    for field in ("width", "depth"):
        sizes = [getattr(run.policy.head, field) for run in runs]
        assert sizes == sorted(set(sizes))


def test_a_recipe_with_more_slots_than_the_preset_keeps_them():
    was = recipe("cue_colour")
    many = configs.from_json(
        TrainConfig,
        {
            **configs.to_json(was),
            "policy": {
                **configs.to_json(was.policy),
                "memory": configs.to_json(bank.Config(slots=200)),
            },
        },
    )
    assert preset("small", many).policy.memory.slots == 200
    assert preset("small", was).policy.memory.slots == 32


def test_flags_after_the_preset_change_it():
    words = ["--recipe", "pick_place", "--preset", "base", "--out", "a", "--device", "cpu",
             "--policy.backbone.model", "elsewhere", "--policy.backbone.lora_rank", "4",
             "--algo.batch-size", "2"]  # fmt: skip
    told = train.parse(words).train
    assert told.policy.backbone.model == "elsewhere"
    assert told.policy.backbone.lora_rank == 4
    assert told.algo.batch_size == 2
    assert told.device == "cpu"
    assert told.policy.head == preset("base", recipe("pick_place")).policy.head


def test_the_task_may_be_named_beside_a_preset():
    told = train.parse(["--task", "push", "--preset", "small", "--out", "a"]).train
    assert configs.type_name(told.task) == "push"
    assert told.policy.backbone.num_vlm_layers == 16


def test_an_unknown_preset_is_named_with_its_neighbours():
    with pytest.raises(ValueError, match="unknown preset 'smal': did you mean small"):
        train.parse(["--preset", "smal", "--out", "a"])
