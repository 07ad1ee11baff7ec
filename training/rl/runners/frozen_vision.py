"""Policies of which the last layers alone learn, from features that are computed once."""

from typing import TypeAlias

from torch import Tensor

from training.rl.value.standardized import StandardizedLinear
from vla.contracts.types import EpisodeBatch
from vla.nn.context import Context, pools_features
from vla.policies.vla import VLAPolicy

Decisions: TypeAlias = EpisodeBatch | Tensor
"""Observations of decisions, or their `VLAPolicy.features` f32 [m, d] where vision is frozen."""


def context_of(policy: VLAPolicy, decisions: Decisions) -> Context:
    """Return the head's condition at decisions."""
    if isinstance(decisions, Tensor):
        return policy.context_of(decisions)
    return policy.contexts(decisions)


def freeze_vision(policy: VLAPolicy) -> int:
    """Let only the layers behind `VLAPolicy.features` learn; return the number of features.

    Raises:
        ValueError: its head attends to tokens, which are no features.
    """
    if policy.head.config.denoiser != "mlp":
        raise ValueError(
            f"policy: got the denoiser {policy.head.config.denoiser!r}, which attends to tokens of "
            "the images, and not one vector per decision that could be kept; use a policy with "
            "--policy.head.denoiser mlp, or --algo.type dppo or ogpo without --algo.freeze-vision"
        )
    policy.requires_grad_(requires_grad=False)
    for denoiser in (policy.head.denoiser, policy.head.late):
        if denoiser is not None:
            denoiser.requires_grad_()
    standardize_inputs(policy)
    if not pools_features(policy.backbone):
        return policy.backbone.sizes(policy.memory.vector_size)[0]
    pool = policy.backbone.pool.requires_grad_()
    return pool[0].in_features


def standardize_inputs(policy: VLAPolicy) -> VLAPolicy:
    """Make the first layer behind the features a `StandardizedLinear`, if there is one; return the
    policy.
    """
    if pools_features(policy.backbone):
        pool = policy.backbone.pool
        if not isinstance(pool[0], StandardizedLinear):
            pool[0] = StandardizedLinear(pool[0]).to(policy.device)
    return policy


def standardize(policy: VLAPolicy, features: Tensor) -> None:
    """Let the first layer see features f32 [n, d] standardised; what it computes stays the same."""
    for layer in policy.modules():
        if isinstance(layer, StandardizedLinear):
            layer.standardize(features)
