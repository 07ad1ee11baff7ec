"""What training begins with other than random weights: a policy, or a vision encoder."""

from collections.abc import Iterable, Sequence
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


def find_vision(place: Path) -> Path:
    """Return the checkpoint of a policy, or the reward model, at `place`.

    Raises:
        ValueError: neither is there.
    """
    if reward_model_checkpoint.is_reward_model(place):
        return reward_model_checkpoint.find(place)
    return checkpoint.find(place)


def load_vision(policy: VLAPolicy, place: str) -> None:
    """Copy the weights of a trained vision encoder into a policy.

    A reward model is trained on thousands of frames of good and bad behaviour, a policy on some
    hundred demonstrations; the vision of one policy serves others with another memory or head.

    `place` is a reward model, a policy's checkpoint, or the run that trained one of them. Weights
    that depend on the instruction or the memory are not copied: their vocabularies and widths
    differ.

    Raises:
        ValueError: there is none, or its vision encoder or cameras differ.
    """
    if reward_model_checkpoint.is_reward_model(Path(place)):
        source: Any = reward_model_checkpoint.load(place).reward_model
        cameras = tuple(source.cameras)
    else:
        source, _ = checkpoint.load(Path(place))
        cameras = tuple(source.config.cameras)
    backbone: Any = getattr(source, "backbone", None)
    # Queries and text encoders of the source, which are not copied, may differ.
    there, here = _vision(backbone), _vision(policy.backbone)
    different = [name for name, size in here.items() if there.get(name) != size]
    if not here or different or cameras != policy.config.cameras:
        kind = "none" if backbone is None else f"{type_name(backbone.config)!r}"
        raise ValueError(
            f"pretrained_vision_encoder: {place} has backbone {kind} and cameras "
            f"{', '.join(cameras)}; expected the policy's: {type_name(policy.config.backbone)!r} "
            f"with the same settings, and cameras {', '.join(policy.config.cameras)}"
            + (f" (other in {', '.join(different[:3])})" if different and there else "")
        )
    values = backbone.vision()
    for name, weight in policy.backbone.vision().items():
        weight.data.copy_(values[name])


def _vision(backbone: Any) -> dict[str, Any]:
    """Return the size of a backbone's images and the shapes of its vision encoder's weights."""
    if not hasattr(backbone, "vision"):
        return {}
    shapes = {name: tuple(weight.shape) for name, weight in backbone.vision().items()}
    return {"image_px": backbone.config.image_px, **shapes}
