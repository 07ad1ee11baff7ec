"""Loss on where a backbone looks: at the things that the instruction names."""

from torch import Tensor


def grounding_loss(logits: Tensor, where: Tensor) -> Tensor:
    """Return the cross-entropy of the first queries' attention with the places of the referents,
    f32 [m]: the mean over what is in the images, 0 for a row in which nothing is.

    Args:
        logits: f32 [m, v, queries, cells], over the cells of a square grid; as many queries as
            referents, or more.
        where: f32 [m, v, r, 2], image coordinates as in `vla.contracts.referents`; NaN or beyond
            -1 to 1 for what is not in the image.
    """
    side = round(logits.shape[-1] ** 0.5)
    inside = (where.abs() < 1.0).all(-1)
    cell = ((where.nan_to_num().clamp(-0.999, 0.999) + 1.0) / 2.0 * side).long()
    index = cell[..., 1] * side + cell[..., 0]
    count = where.shape[2]
    found = logits[:, :, :count].log_softmax(-1).gather(-1, index[..., None])[..., 0]
    total = inside.sum((1, 2)).clamp(min=1)
    return -(found * inside).sum((1, 2)) / total
