"""What training begins with other than random weights: a policy, or a vision encoder."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from reward_models.core import checkpoint as reward_model_checkpoint
from vla import checkpoint
from vla.contracts.config import PluginConfig, difference, to_json, type_name
from vla.contracts.specs import RobotSpec
from vla.policies.vla import VLAPolicy

AFTER_QUERIES = ("trunk", "attend", "blocks")
"""Parts of a backbone with queries, and what follows them."""


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
        if str(place) in reward_model_checkpoint.UNTRAINED and not place.exists():
            raise ValueError(
                f"pretrained_vision_encoder: the reward model {place} has no vision encoder; give "
                "the folder of a trained one, or of a policy"
            )
        return reward_model_checkpoint.find(place)
    try:
        return checkpoint.find(place)
    except ValueError as error:
        raise ValueError(
            f"pretrained_vision_encoder: neither a reward model nor a policy: {error}"
        ) from error


def load_vision(policy: VLAPolicy, place: str) -> None:
    """Copy the weights of a trained vision encoder into a policy.

    A reward model is trained on thousands of frames of good and bad behaviour, a policy on some
    hundred demonstrations; the vision of one policy serves others with another memory or head.

    `place` is a reward model, a policy's checkpoint, or the run that trained one of them. Weights
    that depend on the instruction or the memory are not copied: their vocabularies and widths
    differ. Nor are queries, and what follows them, where only one of the two has any.

    Raises:
        ValueError: there is none, or its vision encoder or cameras differ.
    """
    found = find_vision(Path(place))
    if reward_model_checkpoint.is_reward_model(found):
        source: Any = reward_model_checkpoint.load(found).reward_model
        cameras = tuple(source.cameras)
    else:
        source, _ = checkpoint.load(found)
        cameras = tuple(source.config.cameras)
    backbone: Any = getattr(source, "backbone", None)
    kind = "none" if backbone is None else f"{type_name(backbone.config)!r}"
    expected = type_name(policy.config.backbone)
    if not hasattr(policy.backbone, "vision"):
        raise ValueError(
            f"pretrained_vision_encoder: the policy's backbone {expected!r} takes none; leave it "
            "out, or choose --policy.backbone.type tiny"
        )
    there, here = _vision(backbone, policy.backbone), _vision(policy.backbone, backbone)
    other = sorted(name for name in {*there, *here} if there.get(name) != here.get(name))
    if other or cameras != policy.config.cameras:
        raise ValueError(
            f"pretrained_vision_encoder: {place} has backbone {kind} and cameras "
            f"{', '.join(cameras)}; expected the policy's: {expected!r} with the same vision "
            f"encoder, and cameras {', '.join(policy.config.cameras)}"
            + (f" (they differ in {', '.join(other[:3])})" if other and there else "")
        )
    values, weights = backbone.vision(), policy.backbone.vision()
    for name in here.keys() & weights.keys():
        weights[name].data.copy_(values[name])


def _vision(backbone: Any, other: Any) -> dict[str, Any]:
    """Return the size of a backbone's images, and the shapes of its vision encoder's weights that
    another one takes or gives.
    """
    if not hasattr(backbone, "vision"):
        return {}
    shapes = {name: tuple(weight.shape) for name, weight in backbone.vision().items()}
    if bool(backbone.num_queries) != bool(getattr(other, "num_queries", 0)):
        shapes = {n: s for n, s in shapes.items() if n.split(".")[0] not in AFTER_QUERIES}
    return {"image_px": backbone.config.image_px, **shapes}
