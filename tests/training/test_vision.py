"""A policy that begins with a critic's vision sees as the critic does, and is otherwise its own."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reward_models import checkpoint
from reward_models.critics import pairwise
from reward_models.scorer import Scorer
from tests.fakes import PX, TASKS, fake_policy, liven_
from tests.training.tiny_run import tiny_config
from training.vision import borrow_
from vla.backbones import tiny
from vla.nn.text import train_tokenizer

CONFIG = pairwise.Config(backbone=tiny.Config(image_px=PX), memory_width=8, width=16, bins=5)


def saved(config: pairwise.Config, folder: Path) -> pairwise.PairwiseCritic:
    tokenizer = train_tokenizer(TASKS)
    critic = config.build(tokenizer).eval()
    liven_(critic, 3)
    checkpoint.save(
        Scorer(critic), config, tokenizer, folder, weights=critic.state_dict(), provenance={},
        also=lambda folder: None,
    )  # fmt: skip
    return critic


def test_maps_of_pictures_become_those_of_the_critic_and_all_else_stays(tmp_path: Path) -> None:
    critic, policy = saved(CONFIG, tmp_path / "critic"), fake_policy()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    borrow_(policy, str(tmp_path / "critic"))
    looking = {f"backbone.{name}" for name in policy.backbone.vision()}
    assert looking
    for name, value in policy.state_dict().items():
        taken = critic.state_dict()[name] if name in looking else before[name]
        torch.testing.assert_close(value, taken, rtol=0, atol=0)
    images = torch.randn(2, 3, PX, PX)
    torch.testing.assert_close(policy.backbone.stem(images), critic.backbone.stem(images))


def test_what_is_asked_and_remembered_has_no_share_in_vision() -> None:
    names = set(fake_policy().backbone.vision())
    assert {"stem.0.weight", "blocks.1.conv.weight", "blocks.0.norm.bias", "temperature"} <= names
    assert not {n for n in names if n.split(".")[0] in ("words", "think", "select", "pool")}
    assert not {n for n in names if "film" in n}


@pytest.mark.parametrize(
    "changed", [{"cameras": ("front",)}, {"backbone": tiny.Config(image_px=PX, channels=16)}]
)
def test_a_critic_that_looks_otherwise_is_refused(tmp_path: Path, changed: dict) -> None:
    saved(replace(CONFIG, **changed), tmp_path / "critic")
    with pytest.raises(ValueError, match=r"vision_from.*expected the policy's: 'tiny'"):
        borrow_(fake_policy(), str(tmp_path / "critic"))


def test_a_critic_without_a_backbone_is_refused() -> None:
    with pytest.raises(ValueError, match=r"vision_from: time has backbone none"):
        borrow_(fake_policy(), "time")


def test_cloning_begins_with_the_vision_that_its_run_names(
    tmp_path: Path, arm_dataset: Path
) -> None:
    critic = saved(CONFIG, tmp_path / "critic")
    config = tiny_config(vision_from=str(tmp_path / "critic"))
    policy = config.algo.start(config, arm_dataset).module
    torch.testing.assert_close(policy.backbone.view.weight, critic.backbone.view.weight)
    assert not torch.equal(policy.backbone.words.weight, critic.backbone.words.weight)
