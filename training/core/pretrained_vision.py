"""Initializes the vision encoder of a policy from a trained reward model with the same backbone.

A reward model is trained on thousands of frames of good and bad behaviour, a policy on some hundred
demonstrations: its vision is a better start than random weights.
"""

from dataclasses import replace
from typing import Any

from reward_models.core import checkpoint as reward_model_checkpoint
from vla.contracts.config import type_name
from vla.policies.vla import VLAPolicy


def load_vision(policy: VLAPolicy, reward_model: str) -> None:
    """Copy the weights of a reward model's vision encoder into a policy.

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
