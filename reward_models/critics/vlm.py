"""A critic that asks a pretrained vision-language model; its answers are read from probabilities.

An embedding is the moment itself, instruction and pixels, since such a model judges images side by
side. Tuning an adapter on labelled pairs is done in `reward_models.vlm_tune`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from reward_models.critic import Change, Moment, Shown
from reward_models.truth import SLACK
from vla.contracts.config import PluginConfig, check_least
from vla.contracts.types import Frames
from vla.nn import vlm
from vla.nn.vlm import Prompt, Slot, Vlm

WORDS = 256
"""Bytes an embedding keeps for the instruction."""
DIGITS = tuple("0123456789")
"""Progress in ninths."""
TRENDS = (" worse", " same", " better")
STILL = 5.0
"""Logit of stagnation between a frame and itself."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Which model, and what it is shown."""

    model: str = "Qwen/Qwen3-VL-2B-Instruct"
    """Folder, or name in Hugging Face's cache on this machine; "hub:OWNER/NAME" may download."""
    cameras: tuple[str, ...] = ("front",)
    """Cameras it looks through, shown side by side."""
    image_px: int = 224
    """Height and width to which every camera's image is brought."""
    recall_s: tuple[float, ...] = ()
    """Times since the episode began whose frames are shown again later, such as 1.6: a cue."""
    example_frames: int = 3
    """Frames shown of a reference episode."""
    batch: int = 8
    """Questions per forward pass: bounds memory."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Of the model's weights."""
    lora_rank: int = 0
    """Rank of the trainable adapter; 0 for the model as it is."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, image_px=1, example_frames=1, batch=1, lora_rank=0)
        if not self.cameras:
            raise ValueError("cameras: got none, expected one or more")
        if any(time_s <= 0 for time_s in self.recall_s):
            raise ValueError(f"recall_s: got {self.recall_s}, expected times above 0")

    def build(self, tokenizer: Tokenizer | None = None) -> "VlmCritic":
        """Load the model, which has a tokenizer of its own.

        Raises:
            ValueError: the model is not on this machine, or cannot tell the answers apart.
        """
        loaded = vlm.load(self.model, dtype=self.dtype, batch=self.batch, lora_rank=self.lora_rank)
        return VlmCritic(self, loaded)


class VlmCritic(nn.Module):
    """Satisfies `reward_models.critic.Critic`; its weights are the adapter's alone.

    An embedding u8 [d] holds the instruction, then one flag for each time of `recall_s`, then the
    frames of those times and the frame itself. Memory [m] is the middle of it.
    """

    def __init__(self, config: Config, model: Vlm) -> None:
        """Wrap a model, which the actor may share."""
        super().__init__()
        self.config, self.cameras, self.vlm = config, config.cameras, model
        digits = model.tokens(DIGITS)
        verdict = model.tokens((" no", " yes"))
        self._moment = (
            Slot("Progress now, from 0 (not begun) to 9 (complete): ", digits),
            Slot("\nIs the task complete now, yes or no:", verdict),
            Slot("\nDoes the task belong to this scene, yes or no:", verdict),
        )
        self._pair = (
            Slot("Progress at A, from 0 (not begun) to 9 (complete): ", digits),
            Slot("\nProgress at B: ", digits),
            Slot("\nFrom A to B it became worse, same or better:", model.tokens(TRENDS)),
        )
        self._shape = (config.image_px, config.image_px * len(config.cameras), 3)

    # --- the contract --------------------------------------------------------------------------

    def remember(self, batch: int) -> Tensor:
        """Return the memory of episodes that have not begun."""
        kept = len(self.config.recall_s)
        return torch.zeros(batch, kept * (1 + int(np.prod(self._shape))), dtype=torch.uint8)

    def embed(self, frames: Frames, task: Sequence[str], memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the moments themselves; see `Critic.embed`.

        Raises:
            ValueError: an instruction is too long, or the images are of other cameras.
        """
        told = torch.stack([_bytes(text) for text in task])
        now = self._pixels(torch.as_tensor(frames.images))
        row, time_s = (torch.as_tensor(x).tolist() for x in (frames.row, frames.time_s))
        kept = [*memory]
        rows = []
        for at, (r, t) in enumerate(zip(row, time_s, strict=True)):
            kept[r] = self._recalled(kept[r], now[at], t)
            rows.append(torch.cat([told[r], kept[r], now[at]]))
        return torch.stack(rows), torch.stack(kept)

    @torch.no_grad()
    def judge(self, frames: Tensor, first: Tensor, shown: Shown | None) -> Moment:
        """See `Critic.judge`; all answers of a frame come from one forward pass."""
        digits, done, match = self.ask_moment(frames, first, shown)
        value, spread = expectation(digits)
        return Moment(value, spread, done[:, 1] - done[:, 0], match[:, 1] - match[:, 0])

    @torch.no_grad()
    def compare(self, a: Tensor, b: Tensor, first: Tensor, shown: Shown | None) -> Change:
        """See `Critic.compare`: asked in both orders, which are then averaged."""
        moved = torch.nonzero((a != b).any(1))[:, 0]
        difference = torch.zeros(len(a))
        trend = torch.tensor([0.0, STILL, 0.0]).repeat(len(a), 1)
        at_a, at_b, forth = self.ask_pair(a[moved], b[moved], first[moved], shown)
        back_b, back_a, back = self.ask_pair(b[moved], a[moved], first[moved], shown)
        gain = expectation(at_b)[0] - expectation(at_a)[0]
        gain_back = expectation(back_b)[0] - expectation(back_a)[0]
        difference[moved] = 0.5 * (gain + gain_back)
        logits = 0.5 * (F.log_softmax(forth, 1) + F.log_softmax(back, 1).flip(1))
        trend[moved] = logits
        return Change(difference, trend)

    # --- what tuning uses, too -----------------------------------------------------------------

    def ask_moment(self, frames: Tensor, first: Tensor, shown: Shown | None) -> list[Tensor]:
        """Return logits of progress in ninths [n, 10], of done and of match ([n, 2]: no, yes)."""
        example = self._example(shown)
        prompts = [
            [*example, *self._scene(now, first[i]), "Now:", self._image(now), "\nAnswer in short."]
            for i, now in enumerate(frames)
        ]
        return [logits.cpu() for logits in self.vlm.fill(prompts, self._moment)]

    def ask_pair(self, a: Tensor, b: Tensor, first: Tensor, shown: Shown | None) -> list[Tensor]:
        """Return logits of progress at a and at b [n, 10], and of worse, same, better [n, 3]."""
        example = self._example(shown)
        # What is recalled is zero until it was seen, and then the same in a and in b.
        either = torch.maximum(a, b)
        prompts = [
            [
                *example, *self._scene(either[i], first[i]), "Image A:",
                self._image(a[i]), "\nImage B:", self._image(b[i]),
                "\nA and B are in no order of time. Answer in short.",
            ]
            for i in range(len(a))
        ]  # fmt: skip
        return [logits.cpu() for logits in self.vlm.fill(prompts, self._pair)]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the adapter's weights; the model's own stay where they were loaded from."""
        return vlm.adapter_weights(self.vlm)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Set the adapter's weights."""
        vlm.load_adapter_weights_(self.vlm, dict(state_dict))

    # --- embeddings ----------------------------------------------------------------------------

    def _pixels(self, images: Tensor) -> Tensor:
        """Return u8 [f, pixels] of images u8 [f, v, h, w, 3], the views side by side."""
        if images.shape[1] != len(self.cameras):
            raise ValueError(
                f"got images of {images.shape[1]} cameras, expected {self.cameras}: give those"
            )
        size = (self.config.image_px, self.config.image_px)
        flat = images.flatten(0, 1).movedim(-1, 1)
        if flat.shape[2:] != size:
            flat = F.interpolate(flat.float(), size, mode="bilinear", antialias=True)
            flat = flat.round().clamp(0, 255).byte()
        views = flat.unflatten(0, images.shape[:2]).permute(0, 3, 1, 4, 2)
        return views.flatten(1)

    def _recalled(self, kept: Tensor, now: Tensor, time_s: float) -> Tensor:
        """Return the memory after a moment: emptied at 0, filled where a time has come."""
        kept = torch.zeros_like(kept) if time_s == 0 else kept.clone()
        count, size = len(self.config.recall_s), len(now)
        for k, due_s in enumerate(self.config.recall_s):
            if not kept[k] and time_s >= due_s - SLACK:
                kept[k] = 1
                kept[count + k * size : count + (k + 1) * size] = now
        return kept

    def _image(self, embedding: Tensor) -> np.ndarray:
        """Return the frame itself, u8 [h, w, 3]."""
        return embedding[-int(np.prod(self._shape)) :].cpu().numpy().reshape(self._shape)

    def _scene(self, embedding: Tensor, first: Tensor) -> Prompt:
        """Return what comes before the question: the task, the beginning, and what is recalled."""
        text = bytes(embedding[:WORDS].tolist()).rstrip(b"\0").decode()
        parts: list[str | np.ndarray] = [f"Task: {vlm.plain(text)}\nBeginning:"]
        parts.append(self._image(first))
        count, size = len(self.config.recall_s), int(np.prod(self._shape))
        for k in range(count):
            if embedding[WORDS + k]:
                begin = WORDS + count + k * size
                parts += ["\nEarlier:", self._image(embedding[begin : begin + size])]
        return [*parts, "\n"]

    def _example(self, shown: Shown | None) -> Prompt:
        """Return a reference episode as frames with their progress."""
        if shown is None:
            return []
        count = min(self.config.example_frames, len(shown.embeddings))
        parts: list[str | np.ndarray] = ["Another episode, as an example."]
        for at in torch.linspace(0, len(shown.embeddings) - 1, count).round().long():
            digit = round(float(shown.progress[at]) * (len(DIGITS) - 1))
            parts += [f"\nProgress {digit}:", self._image(shown.embeddings[at])]
        return [*parts, "\n"]


def expectation(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation f32 [n] of digits read as ninths, from logits [n, 10]."""
    probability = logits.float().softmax(1)
    levels = torch.linspace(0, 1, logits.shape[1], device=logits.device)
    mean = probability @ levels
    return mean, (probability * (levels - mean[:, None]) ** 2).sum(1).sqrt()


def retold(embeddings: Tensor, text: str) -> Tensor:
    """Return embeddings [..., d] of the same moments under another instruction."""
    words = _bytes(text).expand(*embeddings.shape[:-1], -1)
    return torch.cat([words, embeddings[..., WORDS:]], -1)


def _bytes(text: str) -> Tensor:
    data = text.encode()
    if len(data) > WORDS:
        raise ValueError(
            f"instruction of {len(data)} bytes, expected at most {WORDS}: shorten {text[:40]!r}"
        )
    return torch.tensor([*data, *bytes(WORDS - len(data))], dtype=torch.uint8)
