"""Training goes on from the policy of a checkpoint."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from tests.training.tiny_run import run, tiny_config
from training.commands import train
from vla import checkpoint
from vla.memory import gru


@pytest.fixture
def first(arm_dataset: Path, tmp_path: Path) -> Path:
    return run(tiny_config(steps=3), arm_dataset, tmp_path / "first")


def test_it_begins_with_the_weights_the_words_and_the_normalisation(
    first: Path, arm_dataset: Path
) -> None:
    before, _ = checkpoint.load(first)
    config = tiny_config(pretrained_path=str(first), seed=9)
    learner = config.algo.start(config, arm_dataset)
    assert learner.module.training
    for name, value in before.state_dict().items():
        torch.testing.assert_close(learner.module.state_dict()[name], value, msg=name)
    assert learner.module.statistics == before.statistics
    assert learner.module.text.tokenizer.to_str() == before.text.tokenizer.to_str()


def test_a_run_goes_on_from_it_and_is_resumed(
    first: Path, arm_dataset: Path, tmp_path: Path
) -> None:
    config = tiny_config(pretrained_path=str(first), steps=3)
    second = run(config, arm_dataset, tmp_path / "second")
    assert run(config, arm_dataset, tmp_path / "second") == second
    before, after = (checkpoint.load(folder)[0].state_dict() for folder in (first, second))
    assert any(not torch.equal(before[name], after[name]) for name in before)


def test_other_settings_or_arms_are_refused(first: Path, arm_dataset: Path) -> None:
    policy = replace(tiny_config().policy, memory=gru.Config())
    config = tiny_config(pretrained_path=str(first), policy=policy)
    with pytest.raises(ValueError, match="policy.memory.type is 'bank' there, 'gru' here"):
        config.algo.start(config, arm_dataset)
    with pytest.raises(ValueError, match="pretrained_path: not with pretrained_vision_encoder"):
        tiny_config(pretrained_path=str(first), pretrained_vision_encoder="time")


def test_the_number_of_denoising_steps_may_differ(first: Path, arm_dataset: Path) -> None:
    policy = tiny_config().policy
    steps = policy.head.num_inference_steps + 1
    policy = replace(policy, head=replace(policy.head, num_inference_steps=steps))
    config = tiny_config(pretrained_path=str(first), policy=policy)
    learner = config.algo.start(config, arm_dataset)
    assert learner.module.head.config.num_inference_steps == steps
    before = checkpoint.load(first)[0].state_dict()
    for name, value in before.items():
        torch.testing.assert_close(learner.module.state_dict()[name], value, msg=name)


def test_a_missing_checkpoint_is_refused_before_anything_is_recorded(tmp_path: Path) -> None:
    config = tiny_config(pretrained_path=str(tmp_path / "none"))
    with pytest.raises(ValueError, match="none"):
        train.train(config, tmp_path / "run", (), Console(quiet=True))
    assert list(tmp_path.iterdir()) == []
