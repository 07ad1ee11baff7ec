"""Flags that choose plug-ins, before tyro sees the rest."""

from pathlib import Path

import pytest

from training.commands import train
from training.core import plugin_flags
from training.core.config import TrainConfig
from vla.memory import bank, none


def test_a_flag_is_taken_wherever_it_stands_and_in_both_spellings() -> None:
    assert plugin_flags.take(["--a", "1", "--x", "y", "--b"], "--x", "z") == (
        "y",
        ["--a", "1", "--b"],
    )
    assert plugin_flags.take(["--x=y=1", "--a"], "--x", "z") == ("y=1", ["--a"])
    assert plugin_flags.take(["--a"], "--x", "z") == ("z", ["--a"])


@pytest.mark.parametrize("argv", [["--x"], ["--x="]])
def test_a_flag_without_its_value_is_told(argv: list[str]) -> None:
    with pytest.raises(ValueError, match="--x needs a value"):
        plugin_flags.take(argv, "--x", "z")


def test_a_plug_in_is_replaced_by_the_defaults_of_the_one_named() -> None:
    argv = ["--steps", "3", "--policy.memory.type", "none", "--task.type=pick_place"]
    config, rest = plugin_flags.choose_plugins(TrainConfig(), argv)
    assert rest == ["--steps", "3"]
    assert config.policy.memory == none.Config()
    assert type(config.task).__module__ == "sim.tasks.pick_place"
    assert config.policy.head == TrainConfig().policy.head


@pytest.mark.parametrize(
    ("flag", "name", "message"),
    [
        ("--policy.memory.type", "bnak", "unknown memory 'bnak': did you mean bank"),
        ("--task.type", "os", "unknown task 'os'"),
        ("--policy.memroy.type", "bank", "no field 'memroy'; expected one of .*memory"),
        ("--steps.type", "bank", "'steps' is not a plug-in"),
        ("--steps.more.type", "bank", "no field 'more'; expected one of none"),
    ],
)
def test_a_wrong_name_is_told(flag: str, name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        plugin_flags.choose_plugins(TrainConfig(), [flag, name])


def test_the_command_line_reaches_every_level_of_the_configuration() -> None:
    argv = ["--recipe", "cue_colour", "--out", "runs/a", "--policy.memory.slots", "20"]
    argv += ["--optimizer.lr", "0.5", "--task.delay-steps", "8", "9", "--steps", "7"]
    told = train.parse(argv)
    assert (told.out, told.dataset) == (Path("runs/a"), ())
    assert told.train.policy.memory == bank.Config(slots=20)
    assert told.train.optimizer.lr == 0.5
    assert told.train.task.delay_steps == (8, 9)
    assert told.train.steps == 7


def test_settings_of_a_chosen_plug_in_are_flags_and_those_of_the_other_are_not() -> None:
    argv = ["--out", "a", "--policy.memory.type", "bank", "--policy.memory.slots", "20"]
    assert train.parse(argv).train.policy.memory.slots == 20
    argv[3] = "none"
    with pytest.raises(ValueError, match="unrecognized options: --policy.memory.slots, 20"):
        train.parse(argv)


def test_an_unknown_recipe_is_told() -> None:
    with pytest.raises(ValueError, match="unknown recipe 'cue_color': did you mean cue_colour"):
        train.parse(["--recipe", "cue_color", "--out", "a"])
