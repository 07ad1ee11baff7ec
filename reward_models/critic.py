"""What a critic plug-in offers: every frame encoded once, then judged alone and in pairs.

Curves, confidence and rewards are made of these judgements in `reward_models.scorer`, alike for
every critic.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

from torch import Tensor

from vla.contracts.types import Frames
from vla.nn.text import TextEncoder


class Shown(NamedTuple):
    """A reference episode, encoded."""

    embeddings: Tensor
    """[k, d]."""
    progress: Tensor
    """f32 [k], in [0, 1]."""


class Moment(NamedTuple):
    """What single frames show."""

    value: Tensor
    """f32 [n], progress in [0, 1]."""
    spread: Tensor
    """f32 [n], standard deviation of the predicted distribution of progress."""
    done: Tensor
    """f32 [n], logit of the task being complete."""
    match: Tensor
    """f32 [n], logit of the instruction belonging to the scene."""


class Change(NamedTuple):
    """What happened between two frames a and b."""

    difference: Tensor
    """f32 [n], progress of b minus progress of a, in [-1, 1]; changes sign with the order."""
    trend: Tensor
    """f32 [n, 3], logits of regress, stagnation, progress; mirrored with the order."""


@runtime_checkable
class Critic(Protocol):
    """What a plug-in's `Config.build` returns."""

    cameras: tuple[str, ...]
    """Cameras it looks through, in view order; empty if it needs none."""

    def remember(self, batch: int) -> Tensor:
        """Return what is kept of `batch` episodes that have not begun, [b, m]."""
        ...

    def embed(self, frames: Frames, task: Sequence[str], memory: Tensor) -> tuple[Tensor, Tensor]:
        """Encode each frame once.

        Args:
            frames: F moments of B episodes; frames of an episode in order of time.
            task: Instruction of each of the B episodes.
            memory: [b, m], what is kept of each episode's earlier frames; rows whose time is 0 are
                emptied first. This is how a cue that has gone out still tells what to praise.

        Returns:
            Embeddings [f, d] and the memory after the last frame of each episode, [b, m].
        """
        ...

    def judge(self, frames: Tensor, first: Tensor, shown: Shown | None) -> Moment:
        """Judge embeddings [n, d] alone, beside the first of their episodes [n, d]."""
        ...

    def compare(self, a: Tensor, b: Tensor, first: Tensor, shown: Shown | None) -> Change:
        """Compare embeddings a and b [n, d] of the same episodes; a == b gives exactly 0."""
        ...


@runtime_checkable
class Exportable(Critic, Protocol):
    """A critic that runs without torch once `vla export` has written its graphs.

    `watch`, `judge` and `compare` are then functions of tensors alone, in operators that export.
    """

    text: TextEncoder
    """Instructions to token ids."""

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of the images it works on."""
        ...

    def watch(
        self, images: Tensor, words: Tensor, memory: Tensor, fresh: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Do what `embed` does for the next frame of each of B episodes.

        Args:
            images: u8 [b, v, h, w, 3].
            words: Token ids i64 [b, w] of the instructions, padded with 0.
            memory: [b, m], what is kept of earlier frames.
            fresh: bool [b], True where an episode begins: whatever `memory` holds there is dropped.
        """
        ...
