"""Lets a policy begin with the vision of a trained critic, which looks through the same backbone.

A critic has seen a task in thousands of moments, good and bad, of a policy's few demonstrations
there are some hundred: what it learned to see is worth more than random weights.
"""

from dataclasses import replace
from typing import Any

from reward_models import checkpoint as critics
from vla.contracts.config import type_name
from vla.policies.vla import VLAPolicy


def borrow_(policy: VLAPolicy, critic: str) -> None:
    """Overwrite what of a policy's backbone looks at pictures with what a critic learned.

    What depends on instruction or memory stays as it is: theirs are other words and widths.

    Args:
        policy: To begin with that vision.
        critic: Folder of the critic, or of the run that trained it.

    Raises:
        ValueError: there is no such critic, or it looks otherwise than the policy.
    """
    giver = critics.load(critic).critic
    own = policy.config
    theirs = getattr(giver, "backbone", None)
    same = theirs is not None and _looking(theirs.config) == _looking(own.backbone)
    if theirs is None or not same or tuple(giver.cameras) != own.cameras:
        kind = "none" if theirs is None else f"{type_name(theirs.config)!r}"
        raise ValueError(
            f"vision_from: {critic} has backbone {kind} and cameras {', '.join(giver.cameras)}; "
            f"expected the policy's: {type_name(own.backbone)!r} with the same settings, and "
            f"cameras {', '.join(own.cameras)}"
        )
    values = theirs.vision()
    for name, weight in policy.backbone.vision().items():
        weight.data.copy_(values[name])


def _looking(config: Any) -> Any:
    """Return a backbone's settings but the one that says whether its vision learns."""
    return replace(config, frozen=False) if hasattr(config, "frozen") else config
