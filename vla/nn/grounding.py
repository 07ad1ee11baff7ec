"""Loss on where a backbone looks: at the things that the instruction names."""

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
    count, side = where.shape[2], round(logits.shape[-1] ** 0.5)
    inside = (where.abs() < 1.0).all(-1)
    # In units of cells from the centre of the first one; at most the centre of the last one.
    place = ((where.nan_to_num().clamp(-1, 1) + 1) / 2 * side - 0.5).clamp(0, side - 1)
    cells = torch.arange(side, device=where.device)
    x, y = (1 - (place[..., None] - cells).abs()).clamp(min=0).unbind(-2)
    share = (y[..., :, None] * x[..., None, :]).flatten(-2)
    log_prob = logits[:, :, :count].log_softmax(-1)
    divergence = (torch.xlogy(share, share) - share * log_prob).sum(-1)
    total = inside.sum((1, 2)).clamp(min=1)
    return (divergence * inside).sum((1, 2)) / total
