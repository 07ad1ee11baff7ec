"""A policy that begins with a reward model's vision sees as the reward model does, and is
otherwise its own.
"""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from reward_models.core import checkpoint
from reward_models.core.scorer import Scorer
from reward_models.models import pairwise
from tests.fakes import PX, TASKS, fake_policy, liven_
from tests.training.tiny_run import tiny_config
from training.core.pretrained import find_vision, load_vision
from vla import checkpoint as policy_checkpoint
from vla.backbones import tiny
from vla.memory import transformer
from vla.nn.text import train_tokenizer
from vla.policies import vla

CONFIG = pairwise.Config(backbone=tiny.Config(image_px=PX), memory_width=8, width=16, bins=5)


def saved(config: pairwise.Config, folder: Path) -> pairwise.PairwiseRewardModel:
    tokenizer = train_tokenizer(TASKS)
    reward_model = config.build(tokenizer).eval()
    liven_(reward_model, 3)
    checkpoint.save(
        Scorer(reward_model), config, tokenizer, folder, weights=reward_model.state_dict(),
        provenance={}, also=lambda folder: None,
    )  # fmt: skip
    return reward_model


def test_maps_of_pictures_become_those_of_the_reward_model_and_all_else_stays(
    tmp_path: Path,
) -> None:
    reward_model, policy = saved(CONFIG, tmp_path / "reward_model"), fake_policy()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    load_vision(policy, str(tmp_path / "reward_model"))
    looking = {f"backbone.{name}" for name in policy.backbone.vision()}
    assert looking
    for name, value in policy.state_dict().items():
        taken = reward_model.state_dict()[name] if name in looking else before[name]
        torch.testing.assert_close(value, taken, rtol=0, atol=0)
    images = torch.randn(2, 3, PX, PX)
    torch.testing.assert_close(policy.backbone.stem(images), reward_model.backbone.stem(images))


def test_a_policy_gives_its_vision_to_one_with_another_memory_and_queries(tmp_path: Path) -> None:
    backbone = tiny.Config(image_px=PX, queries=2, text_encoder="transformer", text_width=64)
    teacher = fake_policy(vla.Config(memory=transformer.Config(), backbone=backbone), seed=3)
    policy = fake_policy()
    before = {name: value.clone() for name, value in policy.state_dict().items()}
    load_vision(policy, str(_saved_policy(tmp_path / "teacher", teacher)))
    # What comes after queries in one of the two means something else in the other.
    looking = {n for n in policy.backbone.vision() if not n.startswith("blocks")}
    assert {"stem.0.weight", "perceive.weight", "view.weight"} <= looking
    for name, value in policy.state_dict().items():
        short = name.removeprefix("backbone.")
        taken = teacher.state_dict()[name] if short in looking else before[name]
        torch.testing.assert_close(value, taken, rtol=0, atol=0)


def test_a_policy_with_other_convolutions_is_refused(tmp_path: Path) -> None:
    backbone = tiny.Config(image_px=PX, blocks=3)
    teacher = _saved_policy(tmp_path / "teacher", fake_policy(vla.Config(backbone=backbone)))
    with pytest.raises(ValueError, match=r"same vision encoder, .*\(they differ in blocks.2"):
        load_vision(fake_policy(), str(teacher))


def _saved_policy(folder: Path, policy: vla.VLAPolicy) -> Path:
    origin = policy_checkpoint.provenance({}, TASKS, 1)
    policy_checkpoint.save(policy, origin, folder, policy.state_dict())
    return folder


def test_nothing_trained_at_a_place_is_told_before_demonstrations(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="neither a reward model nor a policy: .*no checkpoint"):
        find_vision(tmp_path)


def test_what_is_asked_and_remembered_has_no_share_in_vision() -> None:
    names = set(fake_policy().backbone.vision())
    assert {"stem.0.weight", "blocks.1.conv.weight", "blocks.0.norm.bias", "temperature"} <= names
    assert not {n for n in names if n.split(".")[0] in ("words", "think", "select", "pool")}
    assert not {n for n in names if "film" in n}
    told = tiny.Config(image_px=PX, text_encoder="transformer", text_width=64)
    names = set(fake_policy(vla.Config(backbone=told)).backbone.vision())
    assert not {n for n in names if n.startswith("words")}


@pytest.mark.parametrize(
    "changed", [{"cameras": ("front",)}, {"backbone": tiny.Config(image_px=PX, channels=16)}]
)
def test_a_reward_model_that_looks_otherwise_is_refused(tmp_path: Path, changed: dict) -> None:
    saved(replace(CONFIG, **changed), tmp_path / "reward_model")
    with pytest.raises(
        ValueError, match=r"pretrained_vision_encoder.*expected the policy's: 'tiny'"
    ):
        load_vision(fake_policy(), str(tmp_path / "reward_model"))


def test_a_reward_model_without_a_backbone_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"the reward model time has no vision encoder; give the folder"
    ):
        load_vision(fake_policy(), "time")


def test_cloning_begins_with_the_vision_that_its_run_names(
    tmp_path: Path, arm_dataset: Path
) -> None:
    reward_model = saved(CONFIG, tmp_path / "reward_model")
    config = tiny_config(pretrained_vision_encoder=str(tmp_path / "reward_model"))
    policy = config.algo.start(config, arm_dataset).module
    torch.testing.assert_close(policy.backbone.view.weight, reward_model.backbone.view.weight)
    assert not torch.equal(policy.backbone.words.weight, reward_model.backbone.words.weight)
