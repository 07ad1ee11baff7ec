"""Diagnostics of a policy's networks, at states of its rollouts."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from training.rl.diagnostics import training_diagnostics
from training.rl.experience.episode import Episode
from vla.nn.context import Context, repeat_context
from vla.policies.vla import VLAPolicy

EPISODES, DECISIONS = 4, 8
"""Episodes of an iteration, and decisions of each, whose states are examined."""
SAMPLES = 8
"""Chunks sampled at every state."""
ACTIVATIONS = (nn.SiLU, nn.GELU, nn.Mish)
"""Modules whose outputs are the activities of units."""


def states(latest: Sequence[Episode]) -> tuple[list[Episode], list[np.ndarray], Tensor]:
    """Return some episodes of an iteration, some decisions of each, and their denoising chains
    f32 [m, steps + 1, k, u].
    """
    episodes = list(latest[:EPISODES])
    decisions = [np.unique(np.linspace(0, len(e) - 1, DECISIONS).astype(int)) for e in episodes]
    chains = [e.latents[d] for e, d in zip(episodes, decisions, strict=True)]
    return episodes, decisions, torch.from_numpy(np.concatenate(chains))


@torch.no_grad()
def examine(policy: VLAPolicy, context: Context, generator: torch.Generator) -> dict[str, float]:
    """Return how far chunks sampled at one state differ, and the share of dormant units, of a
    policy in evaluation mode; `context` is what the head is conditioned on at m states.
    """
    noise = torch.randn((len(context.pooled) * SAMPLES, *policy.noise_shape), generator=generator)
    noise = noise.to(policy.device)
    noise[:, -1] = 0.0  # the minimum of the last deviation would hide that all else is alike
    with activity(policy.head) as units:
        latents, _ = policy.head.sample(repeat_context(context, SAMPLES), noise, True)
    chunks = latents[:, -1, : policy.config.n_action_steps].unflatten(0, (-1, SAMPLES))
    return {
        "diagnostics/action_std": training_diagnostics.action_std(chunks.cpu().numpy()),
        "diagnostics/dormant_frac": training_diagnostics.dormant_frac(units),
    }


@torch.no_grad()
def kl_from_start(
    policy: VLAPolicy, ref_policy: VLAPolicy, contexts: tuple[Context, Context], latents: Tensor
) -> float:
    """Return KL(policy || ref_policy) of Gaussian transitions, in nats per number: the mean over
    denoising chains f32 [m, steps + 1, k, u] from m states, of which each has its context.
    """
    kls, latents = [], latents.to(policy.device)
    for i in range(policy.head.config.num_inference_steps):
        mean, std = policy.head.step(i, latents[:, i], contexts[0], True)
        ref_mean, _ = ref_policy.head.step(i, latents[:, i], contexts[1], True)
        kls.append(gaussian_kl(mean, ref_mean, std))
    return float(np.mean(kls))


def gaussian_kl(mean: Tensor, other: Tensor, std: float) -> float:
    """Return KL of two Gaussians of the same deviation, in nats per number."""
    return float((mean - other).square().mean() / (2 * std**2))


@contextmanager
def activity(network: nn.Module) -> Iterator[Sequence[np.ndarray]]:
    """Collect mean absolute activities f32 [units] of a network's layers while the block runs."""
    sums: dict[nn.Module, tuple[Tensor, int]] = {}
    activities: list[np.ndarray] = []

    def record(layer: nn.Module, _: object, output: Tensor) -> None:
        total, count = sums.get(layer, (torch.zeros(output.shape[-1]), 0))
        sums[layer] = total + output.detach().abs().flatten(0, -2).mean(0).cpu(), count + 1

    layers = [module for module in network.modules() if isinstance(module, ACTIVATIONS)]
    hooks = [layer.register_forward_hook(record) for layer in layers]
    try:
        yield activities
    finally:
        for hook in hooks:
            hook.remove()
        activities += [(total / count).numpy() for total, count in sums.values()]
