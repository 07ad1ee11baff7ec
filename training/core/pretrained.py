"""What training begins with other than random weights: a policy, or a reward model's vision."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from reward_models.core import checkpoint as reward_model_checkpoint
from vla import checkpoint
from vla.contracts.config import PluginConfig, difference, to_json, type_name
from vla.contracts.specs import RobotSpec
from vla.policies.vla import VLAPolicy


def load_policy(path: Path, config: PluginConfig, robots: Sequence[RobotSpec]) -> Any:
    """Return the policy of a checkpoint, to be trained further, in training mode.

    Its tokenizer and its normalisation stay: both have a meaning in its weights.

    Args:
        path: A checkpoint, or the run folder of one.
        config: The settings that the policy has to have.
        robots: The arms that it has to drive, in order.

    Raises:
        ValueError: there is no such checkpoint, or something of it differs.
    """
    policy, _ = checkpoint.load(path)
    steps = getattr(getattr(config, "head", None), "num_inference_steps", 0)
    if isinstance(policy, VLAPolicy) and steps and not policy.head.config.ft_denoising_steps:
        policy = policy.with_steps(steps)  # no weight depends on their number
    there, here = _settings(policy.config), _settings(config)
    if there != here:
        raise ValueError(
            f"pretrained_path: {path} has other settings of the policy "
            f"({difference(there, here, 'policy')}); give its settings as --policy flags"
        )
    arms = (policy.robot, *(arm.robot for arm in getattr(policy, "co_embodiments", ())))
    if arms != tuple(robots):
        raise ValueError(
            f"pretrained_path: {path} drives {_names(arms)}, expected {_names(robots)}; give its "
            "arms in its order with --robot and --co-robots"
        )
    return policy.train()


def _settings(config: PluginConfig) -> dict[str, Any]:
    """Return a policy's settings; what a checkpoint keeps of a published model is none of them."""
    settings = to_json(config)
    for part in (settings, settings.get("backbone", {})):
        part.pop("description", None)
    return settings


def _names(robots: Iterable[RobotSpec]) -> str:
    return ", ".join(robot.name for robot in robots)


def load_vision(policy: VLAPolicy, reward_model: str) -> None:
    """Copy the weights of a reward model's vision encoder into a policy.

    A reward model is trained on thousands of frames of good and bad behaviour, a policy on some
    hundred demonstrations.

    `reward_model` is its folder, or that of the run that trained it. Weights that depend on the
    instruction or the memory are not copied: their vocabularies and widths differ.

    Raises:
        ValueError: there is no such reward model, or its backbone or cameras differ.
    """
    source = reward_model_checkpoint.load(reward_model).reward_model
    config = policy.config
    backbone = getattr(source, "backbone", None)
    same = backbone is not None and _vision(backbone.config) == _vision(config.backbone)
    if backbone is None or not same or tuple(source.cameras) != config.cameras:
        kind = "none" if backbone is None else f"{type_name(backbone.config)!r}"
        raise ValueError(
            f"pretrained_vision_encoder: {reward_model} has backbone {kind} and cameras "
            f"{', '.join(source.cameras)}; expected the policy's: {type_name(config.backbone)!r} "
            f"with the same settings, and cameras {', '.join(config.cameras)}"
        )
    values = backbone.vision()
    for name, weight in policy.backbone.vision().items():
        weight.data.copy_(values[name])


def _vision(config: Any) -> Any:
    """Return a backbone's configuration without the field that says whether its vision learns."""
    return replace(config, frozen=False) if hasattr(config, "frozen") else config
