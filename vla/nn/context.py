"""Data that backbone, memory and head exchange within one decision."""

from typing import Any, NamedTuple, Protocol, TypeGuard, runtime_checkable

from torch import Tensor, nn


class Encoded(NamedTuple):
    """A backbone's encoding of one observation, before memory is read."""

    tokens: Tensor
    """f32 [b, n, d]: perceptual tokens, then one cognitive token; memory stores them."""
    cache: Any
    """Intermediate results of the backbone for `refine`; every tensor has b rows."""


@runtime_checkable
class Cacheable(Protocol):
    """A backbone whose expensive part is frozen, so that its features can be cached.

    `encode(images, proprio, token_ids)` must equal `encode_from(frozen_features(images, token_ids),
    proprio, token_ids)`, in training and in evaluation: the frozen part has no dropout and no
    running statistics, and rows are independent. Its weights have `requires_grad` off, and no
    trainable weight takes part in `frozen_features`. `training.data.features` stores the features
    in a zarr store next to the data and returns them in FP32.
    """

    @property
    def frozen(self) -> bool:
        """Whether the part is frozen: the same class may also be fine-tuned as a whole."""

    def frozen_features(self, images: Tensor, token_ids: Tensor) -> dict[str, Tensor]:
        """Return the frozen part's features of images u8 [b, v, h, w, 3] and token_ids i64 [b, w],
        by name, b rows each of a fixed shape.
        """

    def encode_from(
        self, features: dict[str, Tensor], proprio: Tensor, token_ids: Tensor
    ) -> Encoded:
        """Return the encoding of an observation from its frozen features."""


class PoolsFeatures(Protocol):
    """A backbone whose last layers, `pool`, map one vector to `Context.pooled`, so that they can be
    trained on cached vectors: `refine(cache, retrieved).pooled` equals
    `pool(pool_inputs(cache, retrieved))`.
    """

    pool: nn.Sequential
    """Its first layer is linear."""

    def pool_inputs(self, cache: Any, retrieved: "Retrieved") -> Tensor:
        """Return f32 [b, d]."""


def pools_features(backbone: Any) -> TypeGuard[PoolsFeatures]:
    """Return whether a backbone has such last layers. From Python 3.12 on `isinstance` with a
    protocol does not find the submodules of a module.
    """
    return hasattr(backbone, "pool_inputs")


@runtime_checkable
class HasAttention(Protocol):
    """A backbone that tells where in the images it looks."""

    @property
    def num_queries(self) -> int:
        """Queries that look; 0 for a backbone without."""

    def refine_with_attention(
        self, cache: Any, retrieved: "Retrieved"
    ) -> "tuple[Context, Tensor | None]":
        """Return the head's condition and logits over the cells of a square grid, f32
        [b, v, queries, cells]; None for a backbone without queries.
        """


class Retrieved(NamedTuple):
    """The result of a memory's read at one decision."""

    tokens: Tensor
    """f32 [b, n, d]: present tokens, gated with the retrieved ones."""
    vector: Tensor
    """f32 [b, m]: the memory's content as one standardised vector; zeros without memory."""


class Context(NamedTuple):
    """Condition of the action head."""

    pooled: Tensor
    """f32 [b, c]: one vector."""
    tokens: Tensor
    """f32 [b, n, d]: tokens to attend to."""
    memory: Tensor
    """f32 [b, m]: the retrieved vector, for adaptive normalisation."""


def repeat_context(context: Context, count: int) -> Context:
    """Return a context with each row repeated `count` times, next to each other."""
    return Context(*(part.repeat_interleave(count, 0) for part in context))
