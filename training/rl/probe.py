"""Figures of a policy's health that have to be asked of its networks, at states of practice."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor, nn

from training.rl import health
from training.rl.experience import Episode
from vla.nn.context import Context, widened
from vla.policies.vla import VLAPolicy

EPISODES, DECISIONS = 4, 8
"""States of a round at which it is asked: so many episodes, so many decisions of each."""
DRAWS = 8
"""Chunks drawn at every state."""
ACTIVATIONS = (nn.SiLU, nn.GELU, nn.Mish)
"""Modules whose outputs are activities of units."""


def states(latest: Sequence[Episode]) -> tuple[list[Episode], list[np.ndarray], Tensor]:
    """Return some episodes of a round, places of some decisions of each, and the paths f32
    [m, steps + 1, k, u] through the chain that were taken there.
    """
    episodes = list(latest[:EPISODES])
    places = [np.unique(np.linspace(0, len(e) - 1, DECISIONS).astype(int)) for e in episodes]
    paths = [e.latents[p] for e, p in zip(episodes, places, strict=True)]
    return episodes, places, torch.from_numpy(np.concatenate(paths))


@torch.no_grad()
def examine(policy: VLAPolicy, context: Context, generator: torch.Generator) -> dict[str, float]:
    """Return how far chunks drawn at the same state differ, and how many units are dormant.

    Args:
        policy: In evaluation mode.
        context: What the head is conditioned on at m states.
        generator: Draws the noise.
    """
    noise = torch.randn((len(context.pooled) * DRAWS, *policy.noise_shape), generator=generator)
    noise = noise.to(policy.device)
    if policy.steering is None:
        noise[:, -1] = 0.0  # the floor under the last deviation would hide that all else is alike
    learning = policy.head if policy.steering is None else policy.steering.actor
    with activity(learning) as units:
        latents, _ = policy.denoise(widened(context, DRAWS), noise, True)
    chunks = latents[:, -1, : policy.config.execute].unflatten(0, (-1, DRAWS))
    return {
        "health/spread": health.spread(chunks.cpu().numpy()),
        "health/dormant": health.dormant(units),
    }


@torch.no_grad()
def moved(
    policy: VLAPolicy, begun: VLAPolicy, contexts: tuple[Context, Context], latents: Tensor
) -> float:
    """Return the divergence KL(policy || begun) of Gaussian transitions, in nats per number, the
    mean over the transitions of paths that were taken.

    Args:
        policy: Present weights.
        begun: Those that practice started from.
        contexts: What each is conditioned on at m states.
        latents: f32 [m, steps + 1, k, u], paths from there.
    """
    found, latents = [], latents.to(policy.device)
    for i in range(policy.head.config.steps):
        mean, std = policy.head.step(i, latents[:, i], contexts[0], True)
        other, _ = begun.head.step(i, latents[:, i], contexts[1], True)
        found.append(gaussian_kl(mean, other, std))
    return float(np.mean(found))


def gaussian_kl(mean: Tensor, other: Tensor, std: float) -> float:
    """Return KL of two Gaussians of the same deviation, in nats per number."""
    return float((mean - other).square().mean() / (2 * std**2))


@contextmanager
def activity(network: nn.Module) -> Iterator[Sequence[np.ndarray]]:
    """Collect mean absolute activities f32 [units] of a network's layers while the block runs."""
    sums: dict[nn.Module, tuple[Tensor, int]] = {}
    found: list[np.ndarray] = []

    def note(layer: nn.Module, _: object, output: Tensor) -> None:
        total, count = sums.get(layer, (torch.zeros(output.shape[-1]), 0))
        sums[layer] = total + output.detach().abs().flatten(0, -2).mean(0).cpu(), count + 1

    layers = [module for module in network.modules() if isinstance(module, ACTIVATIONS)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
        found += [(total / count).numpy() for total, count in sums.values()]
