"""Loss on where a backbone looks: at the things that the instruction names."""

import itertools

import torch
from torch import Tensor


def grounding_loss(logits: Tensor, where: Tensor) -> Tensor:
    """Return the divergence of the first queries' attention from the places of the referents,
    f32 [m]: the mean over what is in the images, 0 for a row in which nothing is.

    A place is shared out to the four cells around it (bilinear weights), so that the mean of a
    perfect attention is the place itself, between the cells.

    Args:
        logits: f32 [m, v, queries, cells], over the cells of a square grid; as many queries as
            referents, or more.
        where: f32 [m, v, r, 2], image coordinates as in `vla.contracts.referents`; NaN or beyond
            -1 to 1 for what is not in the image.
    """
    side = round(logits.shape[-1] ** 0.5)
    count, side = where.shape[2], round(logits.shape[-1] ** 0.5)
    inside = (where.abs() < 1.0).all(-1)
    # In units of cells from the centre of the first one; at most the centre of the last one.
    place = ((where.nan_to_num().clamp(-1, 1) + 1) / 2 * side - 0.5).clamp(0, side - 1)
    first = place.floor().clamp(max=max(side - 2, 0))
    part = place - first
    log_prob = logits[:, :, :count].log_softmax(-1)
    divergence = torch.zeros_like(log_prob[..., 0])
    for dx, dy in itertools.product((0, 1), (0, 1)):
        share = (part[..., 0] if dx else 1 - part[..., 0]) * (
            part[..., 1] if dy else 1 - part[..., 1]
        )
        index = ((first[..., 1] + dy) * side + first[..., 0] + dx).long().clamp(max=side * side - 1)
        found = log_prob.gather(-1, index[..., None])[..., 0]
        divergence = divergence + share * (share.clamp(min=1e-6).log() - found)
    total = inside.sum((1, 2)).clamp(min=1)
    return (divergence * inside).sum((1, 2)) / total
