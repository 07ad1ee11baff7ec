"""Torch to ONNX: the networks of a reward model as three graphs of fixed batch.

The choice of frames to compare and everything made of the outputs stay outside, in
`reward_models.core.curves`.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from deploy.export import graph
from deploy.export.graph import Traced
from deploy.reward_model.artefact import COMPARE, EMBED, OUTPUTS, SCORE
from reward_models.core.interface import Exportable, Reference

FRAME = ("images", "token_ids", "memory", "is_first")
REFERENCE = ("reference_embeddings", "reference_progress")
"""One reference episode for all rows; NaN as its first progress means that there is none."""
MAX_REFERENCE_FRAMES = 4096
"""Longest reference episode."""


@torch.no_grad()
def trace(reward_model: Exportable, pairs: int, batch: int) -> dict[str, Traced]:
    """Return the graphs of a reward model in evaluation mode, with examples of `batch` rows.

    A frame is compared with `pairs` earlier ones.
    """
    shape = (batch, len(reward_model.cameras), *reward_model.image_hw, 3)
    frame = dict(zip(FRAME, (
        torch.zeros(shape, dtype=torch.uint8), torch.ones(batch, 4, dtype=torch.int64),
        torch.zeros_like(reward_model.initial_memory(batch)), torch.ones(batch, dtype=torch.bool),
    ), strict=True))  # fmt: skip
    embedding, _ = reward_model.embed_step(*frame.values())
    scored = {"embedding": embedding, "first_embedding": embedding.clone()}
    reference = dict(zip(REFERENCE, (embedding[:1].repeat(3, 1), torch.zeros(3)), strict=True))
    earlier = {"earlier_embeddings": embedding[:, None].repeat(1, pairs, 1)}
    length = torch.export.Dim("num_reference_frames", min=1, max=MAX_REFERENCE_FRAMES)
    axes = {**graph.DYNAMIC_AXES, **{name: {0: length} for name in REFERENCE}}
    return {
        EMBED: Traced(reward_model.embed_step, frame, OUTPUTS[EMBED]),
        SCORE: Traced(_score(reward_model), {**scored, **reference}, OUTPUTS[SCORE], axes),
        COMPARE: Traced(
            _compare(reward_model), {**earlier, **scored, **reference}, OUTPUTS[COMPARE], axes
        ),
    }  # fmt: skip


def _score(reward_model: Exportable) -> Callable[..., tuple[Tensor, ...]]:
    def score(frame: Tensor, first: Tensor, *reference: Tensor) -> tuple[Tensor, ...]:
        return tuple(reward_model.score(frame, first, Reference(*reference)))

    return score


def _compare(reward_model: Exportable) -> Callable[..., tuple[Tensor, ...]]:
    """Compare with all earlier frames in one call: [b, k, d] against [b, d]."""

    def compare(
        earlier: Tensor, frame: Tensor, first: Tensor, *reference: Tensor
    ) -> tuple[Tensor, ...]:
        pairs = earlier.shape[1]
        # One row per comparison: two equal embeddings then differ by exactly 0.
        frame, first = (x[:, None].expand(-1, pairs, -1).flatten(0, 1) for x in (frame, first))
        change = reward_model.compare(earlier.flatten(0, 1), frame, first, Reference(*reference))
        return tuple(x.unflatten(0, (-1, pairs)) for x in change)

    return compare
