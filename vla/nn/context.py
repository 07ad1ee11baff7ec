"""What backbone, memory and head hand to each other within one decision."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor


class Encoded(NamedTuple):
    """What a backbone makes of one observation, before memory is consulted."""

    tokens: Tensor
    """f32 [b, n, d]: perceptual tokens, then one cognitive token. This is what memory stores."""
    cache: Any
    """The backbone's own intermediate results, for `refine`; every tensor in it has b rows."""


@runtime_checkable
class Cacheable(Protocol):
    """A backbone whose expensive part is frozen, so that it need look at a picture but once.

    `encode(images, proprio, words)` must be `encode_from(frozen_features(images, words), proprio,
    words)`, in training as in evaluation: the frozen part has no dropout and no running statistics,
    and a row depends on nothing but that row. Its weights have `requires_grad` off, and nothing
    that learns has a share in `frozen_features`. What it gives is kept in a zarr store beside the
    data (`training.data.features`) and comes back in FP32.
    """

    @property
    def frozen(self) -> bool:
        """Whether it is: the same class may also learn as a whole."""
        ...

    def frozen_features(self, images: Tensor, words: Tensor) -> dict[str, Tensor]:
        """Return what the frozen part makes of images u8 [b, v, h, w, 3] and words i64 [b, w], by
        name, b rows each of a fixed shape.
        """
        ...

    def encode_from(self, features: dict[str, Tensor], proprio: Tensor, words: Tensor) -> Encoded:
        """Go on from there."""
        ...


class Settled(NamedTuple):
    """Actions that a chunk has to go on from; see `vla.contracts.types.Prefix`."""

    values: Tensor
    """f32 [b, k, u], in normalised units."""
    weight: Tensor
    """f32 [b, k]."""
    guided: bool
    """Whether denoising is pulled towards them, or the networks are given them."""


class Retrieved(NamedTuple):
    """What a memory returns for one decision."""

    tokens: Tensor
    """f32 [b, n, d]: present tokens, gated with what attention fetched."""
    vector: Tensor
    """f32 [b, m]: everything remembered in one standardised vector; zeros without memory."""


class Context(NamedTuple):
    """What the action head is conditioned on."""

    pooled: Tensor
    """f32 [b, c]: one vector."""
    tokens: Tensor
    """f32 [b, n, d]: tokens to attend to."""
    memory: Tensor
    """f32 [b, m]: the retrieved vector, for adaptive normalisation."""


def widened(context: Context, count: int) -> Context:
    """Return a context `count` times for each row, side by side."""
    return Context(*(part.repeat_interleave(count, 0) for part in context))
