"""Interface of a reward model plug-in: every frame is encoded once, then scored alone and in pairs.

`reward_models.core.scorer` makes curves, confidence and rewards of these scores, in the same way
for every reward model.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from vla.contracts.types import Frames
from vla.nn.text import TextEncoder


class Reference(NamedTuple):
    """A reference episode, encoded."""

    embeddings: Tensor
    """[k, d]."""
    progress: Tensor
    """f32 [k], in [0, 1]."""


class FrameScores(NamedTuple):
    """Predictions for single frames."""

    value: Tensor
    """f32 [n], progress in [0, 1]."""
    spread: Tensor
    """f32 [n], standard deviation of the predicted distribution of progress."""
    done: Tensor
    """f32 [n], logit of the task being complete."""
    match: Tensor
    """f32 [n], logit of the instruction belonging to the scene."""


class PairScores(NamedTuple):
    """Predictions for pairs of frames a and b."""

    difference: Tensor
    """f32 [n], progress of b minus progress of a, in [-1, 1]; changes sign with the order."""
    trend: Tensor
    """f32 [n, 3], logits of regress, stagnation, progress; mirrored with the order."""


@runtime_checkable
class RewardModelNetwork(Protocol):
    """What a plug-in's `Config.build` returns."""

    cameras: tuple[str, ...]
    """Names of its cameras, in view order; empty if it needs none."""

    def initial_memory(self, batch: int) -> Tensor:
        """Return the memory of `batch` episodes before their first frame, [b, m]."""
        ...

    def embed(self, frames: Frames, task: Sequence[str], memory: Tensor) -> tuple[Tensor, Tensor]:
        """Encode each frame once.

        Args:
            frames: F frames of B episodes; those of an episode in order of time.
            task: Instruction of each of the B episodes.
            memory: [b, m], from each episode's earlier frames (a cue that is no longer visible);
                rows whose time is 0 are reset first.

        Returns:
            Embeddings [f, d] and the memory after the last frame of each episode, [b, m].
        """
        ...

    def score(self, frames: Tensor, first: Tensor, reference: Reference | None) -> FrameScores:
        """Score embeddings [n, d], given the first ones of their episodes [n, d]."""
        ...

    def compare(
        self, a: Tensor, b: Tensor, first: Tensor, reference: Reference | None
    ) -> PairScores:
        """Compare embeddings a and b [n, d] of the same episodes; a == b gives exactly 0."""
        ...


@runtime_checkable
class Exportable(RewardModelNetwork, Protocol):
    """A reward model that `vla export` can write as graphs.

    `embed_step`, `score` and `compare` are functions of tensors alone, in operators that export.
    """

    text: TextEncoder
    """Instructions to token ids."""

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of its input images."""
        ...

    def embed_step(
        self, images: Tensor, token_ids: Tensor, memory: Tensor, is_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Do what `embed` does, for the next frame of each of B episodes.

        Args:
            images: u8 [b, v, h, w, 3].
            token_ids: i64 [b, w], of the instructions, padded with 0.
            memory: [b, m], from earlier frames.
            is_first: bool [b], True where an episode begins: its memory is reset.
        """
        ...
