"""A reward model that prompts a pretrained vision-language model and reads token probabilities.

An embedding holds instruction and pixels, since such a model takes several images at once.
`reward_models.losses.vlm` tunes an adapter on labelled pairs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor, nn

from reward_models.core.interface import FrameScores, PairScores, Reference
from reward_models.core.truth import SLACK
from vla.contracts.config import PluginConfig, validate_min
from vla.contracts.types import Frames
from vla.nn import vlm
from vla.nn.vlm import Prompt, Slot, Vlm

TEXT_BYTES = 256
"""Bytes of the instruction in an embedding."""
DIGITS = tuple("0123456789")
"""Progress in ninths."""
TRENDS = (" worse", " same", " better")
STILL = 5.0
"""Logit of stagnation between a frame and itself."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """The model and its inputs."""

    model: str = "Qwen/Qwen3-VL-2B-Instruct"
    """Folder, or name in Hugging Face's cache on this machine; "hub:OWNER/NAME" may download."""
    cameras: tuple[str, ...] = ("front",)
    """Names of its cameras; their images are concatenated."""
    image_px: int = 224
    """Height and width to which every camera's image is resized."""
    recall_s: tuple[float, ...] = ()
    """Times since the start of the episode whose frames stay in the prompt, such as 1.6: a cue."""
    example_frames: int = 3
    """Frames of a reference episode in the prompt."""
    batch_size: int = 8
    """Prompts per forward pass: bounds memory."""
    dtype: Literal["float32", "bfloat16"] = "bfloat16"
    """Type of the model's weights."""
    lora_rank: int = 0
    """Rank of the trainable adapter; 0 for none."""

    def __post_init__(self) -> None:
        validate_min(self, image_px=1, example_frames=1, batch_size=1, lora_rank=0)
        if not self.cameras:
            raise ValueError("cameras: got none, expected one or more")
        if any(time_s <= 0 for time_s in self.recall_s):
            raise ValueError(f"recall_s: got {self.recall_s}, expected times above 0")

    def build(self, tokenizer: Tokenizer | None = None) -> "VlmRewardModel":
        """Load the model; it has its own tokenizer.

        Raises:
            ValueError: the model is not on this machine, or answers share tokens.
        """
        loaded = vlm.load(
            self.model, dtype=self.dtype, batch=self.batch_size, lora_rank=self.lora_rank
        )
        return VlmRewardModel(self, loaded)


class VlmRewardModel(nn.Module):
    """Satisfies `reward_models.core.interface.RewardModelNetwork`; its weights are the adapter's.

    An embedding u8 [d] holds the instruction, then one flag for each time of `recall_s`, then the
    frames of those times and the current frame. Memory [m] is the flags and recalled frames.
    """

    def __init__(self, config: Config, model: Vlm) -> None:
        """Wrap a model, which a policy may share."""
        super().__init__()
        self.config, self.cameras, self.vlm = config, config.cameras, model
        digits = model.tokens(DIGITS)
        yes_no = model.tokens((" no", " yes"))
        self._frame_form = (
            Slot("Progress now, from 0 (not begun) to 9 (complete): ", digits),
            Slot("\nIs the task complete now, yes or no:", yes_no),
            Slot("\nDoes the task belong to this scene, yes or no:", yes_no),
        )
        self._pair_form = (
            Slot("Progress at A, from 0 (not begun) to 9 (complete): ", digits),
            Slot("\nProgress at B: ", digits),
            Slot("\nFrom A to B it became worse, same or better:", model.tokens(TRENDS)),
        )
        self._shape = (config.image_px, config.image_px * len(config.cameras), 3)

    def initial_memory(self, batch: int) -> Tensor:
        """Return a memory without recalled frames."""
        recalled = len(self.config.recall_s)
        return torch.zeros(batch, recalled * (1 + int(np.prod(self._shape))), dtype=torch.uint8)

    def embed(self, frames: Frames, task: Sequence[str], memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return instruction, recalled frames and pixels; see `RewardModelNetwork.embed`.

        Raises:
            ValueError: an instruction is too long, or the images are of other cameras.
        """
        text = torch.stack([_bytes(instruction) for instruction in task])
        pixels = self._pixels(torch.as_tensor(frames.images))
        index, time_s = (torch.as_tensor(x).tolist() for x in (frames.episode_index, frames.time_s))
        recalled = [*memory]
        embeddings = []
        for now, e, t in zip(pixels, index, time_s, strict=True):
            recalled[e] = self._recall(recalled[e], now, t)
            embeddings.append(torch.cat([text[e], recalled[e], now]))
        return torch.stack(embeddings), torch.stack(recalled)

    @torch.no_grad()
    def score(self, frames: Tensor, first: Tensor, reference: Reference | None) -> FrameScores:
        """See `RewardModelNetwork.score`; one forward pass answers all questions of a frame."""
        digits, done, match = self.frame_logits(frames, first, reference)
        value, spread = expectation(digits)
        return FrameScores(value, spread, done[:, 1] - done[:, 0], match[:, 1] - match[:, 0])

    @torch.no_grad()
    def compare(
        self, a: Tensor, b: Tensor, first: Tensor, reference: Reference | None
    ) -> PairScores:
        """See `RewardModelNetwork.compare`: the mean over both orders."""
        moved = torch.nonzero((a != b).any(1))[:, 0]
        difference = torch.zeros(len(a))
        trend = torch.tensor([0.0, STILL, 0.0]).repeat(len(a), 1)
        at_a, at_b, forward = self.pair_logits(a[moved], b[moved], first[moved], reference)
        back_b, back_a, backward = self.pair_logits(b[moved], a[moved], first[moved], reference)
        gain = expectation(at_b)[0] - expectation(at_a)[0]
        gain_back = expectation(back_b)[0] - expectation(back_a)[0]
        difference[moved] = 0.5 * (gain + gain_back)
        logits = 0.5 * (F.log_softmax(forward, 1) + F.log_softmax(backward, 1).flip(1))
        trend[moved] = logits
        return PairScores(difference, trend)

    # Also used in tuning:

    def frame_logits(
        self, frames: Tensor, first: Tensor, reference: Reference | None
    ) -> list[Tensor]:
        """Return logits of progress in ninths [n, 10], of done and of match ([n, 2]: no, yes)."""
        example = self._example(reference)
        prompts = [
            [*example, *self._scene(now, first[i]), "Now:", self._image(now), "\nAnswer in short."]
            for i, now in enumerate(frames)
        ]
        return [logits.cpu() for logits in self.vlm.fill(prompts, self._frame_form)]

    def pair_logits(
        self, a: Tensor, b: Tensor, first: Tensor, reference: Reference | None
    ) -> list[Tensor]:
        """Return logits of progress at a and at b [n, 10], and of worse, same, better [n, 3]."""
        example = self._example(reference)
        # A recalled frame is zero until its time, and then equal in a and b.
        either = torch.maximum(a, b)
        prompts = [
            [
                *example, *self._scene(either[i], first[i]), "Image A:",
                self._image(a[i]), "\nImage B:", self._image(b[i]),
                "\nA and B are in no order of time. Answer in short.",
            ]
            for i in range(len(a))
        ]  # fmt: skip
        return [logits.cpu() for logits in self.vlm.fill(prompts, self._pair_form)]

    def state_dict(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """Return the adapter's weights; those of the model stay in its own folder."""
        return vlm.adapter_weights(self.vlm)

    def load_state_dict(self, state_dict: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        """Set the adapter's weights."""
        vlm.load_adapter_weights(self.vlm, dict(state_dict))

    def _pixels(self, images: Tensor) -> Tensor:
        """Return u8 [f, pixels] of images u8 [f, v, h, w, 3], views concatenated in width."""
        if images.shape[1] != len(self.cameras):
            raise ValueError(
                f"got images of {images.shape[1]} cameras, expected those of {self.cameras}"
            )
        size = (self.config.image_px, self.config.image_px)
        flat = images.flatten(0, 1).movedim(-1, 1)
        if flat.shape[2:] != size:
            flat = F.interpolate(flat.float(), size, mode="bilinear", antialias=True)
            flat = flat.round().clamp(0, 255).byte()
        views = flat.unflatten(0, images.shape[:2]).permute(0, 3, 1, 4, 2)
        return views.flatten(1)

    def _recall(self, memory: Tensor, now: Tensor, time_s: float) -> Tensor:
        """Return the memory after a frame: reset at time 0, with the frame if a time is reached."""
        memory = torch.zeros_like(memory) if time_s == 0 else memory.clone()
        count, size = len(self.config.recall_s), len(now)
        for k, due_s in enumerate(self.config.recall_s):
            if not memory[k] and time_s >= due_s - SLACK:
                memory[k] = 1
                memory[count + k * size : count + (k + 1) * size] = now
        return memory

    def _image(self, embedding: Tensor) -> np.ndarray:
        """Return the current frame, u8 [h, w, 3]."""
        return embedding[-int(np.prod(self._shape)) :].cpu().numpy().reshape(self._shape)

    def _scene(self, embedding: Tensor, first: Tensor) -> Prompt:
        """Return the start of the prompt: the task, the first frame, and the recalled frames."""
        text = bytes(embedding[:TEXT_BYTES].tolist()).rstrip(b"\0").decode()
        parts: list[str | np.ndarray] = [f"Task: {vlm.plain(text)}\nBeginning:"]
        parts.append(self._image(first))
        count, size = len(self.config.recall_s), int(np.prod(self._shape))
        for k in range(count):
            if embedding[TEXT_BYTES + k]:
                begin = TEXT_BYTES + count + k * size
                parts += ["\nEarlier:", self._image(embedding[begin : begin + size])]
        return [*parts, "\n"]

    def _example(self, reference: Reference | None) -> Prompt:
        """Return the prompt of a reference episode: frames with their progress."""
        if reference is None:
            return []
        count = min(self.config.example_frames, len(reference.embeddings))
        parts: list[str | np.ndarray] = ["Another episode, as an example."]
        for at in torch.linspace(0, len(reference.embeddings) - 1, count).round().long():
            digit = round(float(reference.progress[at]) * (len(DIGITS) - 1))
            parts += [f"\nProgress {digit}:", self._image(reference.embeddings[at])]
        return [*parts, "\n"]


def expectation(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and standard deviation f32 [n] of digits read as ninths, from logits [n, 10]."""
    probability = logits.float().softmax(1)
    levels = torch.linspace(0, 1, logits.shape[1], device=logits.device)
    mean = probability @ levels
    return mean, (probability * (levels - mean[:, None]) ** 2).sum(1).sqrt()


def with_instruction(embeddings: Tensor, text: str) -> Tensor:
    """Return embeddings [..., d] with another instruction."""
    instruction = _bytes(text).expand(*embeddings.shape[:-1], -1)
    return torch.cat([instruction, embeddings[..., TEXT_BYTES:]], -1)


def _bytes(text: str) -> Tensor:
    data = text.encode()
    if len(data) > TEXT_BYTES:
        raise ValueError(
            f"got an instruction of {len(data)} bytes, expected at most {TEXT_BYTES}: shorten "
            f"{text[:40]!r}"
        )
    return torch.tensor([*data, *bytes(TEXT_BYTES - len(data))], dtype=torch.uint8)
