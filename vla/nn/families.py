"""Families of vision-language models, each as a function of pixels and token ids to hidden states.

The prompt around images and instruction is computed once, as token ids; shapes are fixed and do not
depend on values, so that it exports.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vla.nn.qwen import QwenVision
from vla.nn.vlm import LOCAL

MARK = "press the button"
"""Placeholder of the instruction in the processor's prompt."""
LAYERS = r"layers\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
"""Layers of a language model that adapters are attached to."""
QWEN = ("qwen3_vl", "qwen2_5_vl")
"""Families that take images of any size and have positions by row and column."""
FAMILIES = ("smolvlm", "qwen3_vl", "qwen2_5_vl", "paligemma", "gemma3", "internvl")
"""Supported model types, as in config.json."""


class Prompt(NamedTuple):
    """Token ids around images and instruction."""

    before: list[list[int]]
    """Before each image; the last ones before the instruction."""
    after: list[int]
    """After the instruction."""


class ImageSize(NamedTuple):
    """Size of a model's images."""

    side: int
    """Pixels along a side."""
    tokens: int
    """Vision tokens along a side."""


def image_size(config: Any, image_px: int) -> ImageSize:
    """Return the size of a model's images; about `image_px` if it takes any size."""
    vision, kind = config.vision_config, config.model_type
    if kind in QWEN:
        cell = vision.patch_size * vision.spatial_merge_size
        count = max(image_px // cell, 1)
        return ImageSize(count * cell, count)
    side, patch = _square(vision.image_size), _square(vision.patch_size)
    if kind == "smolvlm":
        return ImageSize(side, side // patch // config.scale_factor)
    if kind == "internvl":
        return ImageSize(side, int(side // patch * config.downsample_ratio))
    if kind == "gemma3":
        return ImageSize(side, int(config.mm_tokens_per_image**0.5))
    return ImageSize(side, side // patch)


def prompt(processor: Any, image_token: int, views: int, side: int) -> Prompt:
    """Return the token ids that a processor puts around `views` images and an instruction.

    Raises:
        ValueError: its output lacks the instruction or the images.
    """
    import numpy as np

    if getattr(processor, "chat_template", None):
        content = [{"type": "image"}] * views + [{"type": "text", "text": MARK}]
        messages = [{"role": "user", "content": content}]
        text = processor.apply_chat_template(messages, add_generation_prompt=True)
    else:  # PaliGemma does not chat
        text = processor.tokenizer.convert_ids_to_tokens(image_token) * views + MARK
    settings: dict[str, Any] = {}
    for name in ("crop_to_patches", "do_image_splitting"):  # one tile per image
        if hasattr(processor.image_processor, name):
            settings[name] = False
    blank = [np.zeros((side, side, 3), np.uint8)] * views
    made = processor(text=[text], images=[blank], images_kwargs=settings)
    ids = [int(i) for i in made["input_ids"][0]]
    mark = processor.tokenizer.encode(MARK, add_special_tokens=False)
    marks = [i for i in range(len(ids)) if ids[i : i + len(mark)] == mark]
    count = ids.count(image_token)
    if len(marks) != 1 or not count or count % views:
        raise ValueError(
            f"{type(processor).__name__}: got {count} image tokens and {len(marks)} instructions, "
            f"expected {views} images and 1 instruction; copy the model whole, or use another"
        )
    before: list[list[int]] = [[]]
    left = 0
    for token in ids[: marks[0]]:
        if token != image_token:
            before[-1].append(token)
            continue
        if not left:
            before.append([])
            left = count // views
        left -= 1
    return Prompt(before, ids[marks[0] + len(mark) :])


def load_processor(folder: Path, config: Any) -> Any:
    """Return the processor of the model in a folder."""
    from transformers import AutoProcessor

    if config.model_type == "smolvlm":
        return _SmolProcessor(folder, image_size(config, 0).tokens)
    return AutoProcessor.from_pretrained(folder, **LOCAL)


class _SmolProcessor:
    """SmolVLM's processor for whole images; the original needs a package for videos."""

    def __init__(self, folder: Path, tokens: int) -> None:
        from transformers import AutoTokenizer

        from vla.nn.transformers_versions import image_processor

        self.tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
        self.image_processor = image_processor(folder, torchvision=False)
        legacy = folder / "chat_template.json"
        self.chat_template = self.tokenizer.chat_template
        if not self.chat_template and legacy.is_file():
            self.chat_template = json.loads(legacy.read_text())["chat_template"]
        self.image_text = (
            f"<fake_token_around_image><global-img>{'<image>' * tokens**2}<fake_token_around_image>"
        )

    def apply_chat_template(self, messages: Any, *, add_generation_prompt: bool) -> str:
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt,
            chat_template=self.chat_template,
        )  # fmt: skip

    def __call__(self, *, text: list[str], **_: Any) -> Any:
        return self.tokenizer([prompt.replace("<image>", self.image_text) for prompt in text])


class VlmEncoder(nn.Module):
    """A vision-language model without language head: images and token ids to hidden states."""

    def __init__(self, model: nn.Module, prompt: Prompt, size: ImageSize, layers: int) -> None:
        """Wrap a model of transformers without its language head; `layers` of its language model
        are kept, 0 for all.

        Raises:
            ValueError: it has fewer layers.
        """
        super().__init__()
        self.model, self.size = model, size
        self.kind = str(model.config.model_type)
        count = len(self.language.layers)
        if not 0 <= layers <= count:
            raise ValueError(f"num_vlm_layers: got {layers}, expected 0 to the model's {count}")
        if layers:
            self.language.layers = self.language.layers[:layers]
        self.views = len(prompt.before) - 1
        self.cuts = [len(piece) for piece in prompt.before]
        flat = [token for piece in prompt.before for token in piece]
        self._buffer("before", torch.tensor(flat, dtype=torch.int64))
        self._buffer("after", torch.tensor(prompt.after, dtype=torch.int64))
        places, groups = _places(self.cuts, size.tokens, self.kind)
        self.start = int(places.amax()) + 1
        self._buffer("places", places)
        self._buffer("groups", groups)
        if self.kind in QWEN:
            self.vision = QwenVision(self.model.visual, size.tokens)
        if self.kind == "qwen3_vl":
            self._buffer("axes", self._axes())

    @property
    def language(self) -> Any:
        """The language model."""
        return self.model.text_model if self.kind == "smolvlm" else self.model.language_model

    @property
    def width(self) -> int:
        """Width of the hidden states."""
        return int(self.language.config.hidden_size)

    def forward(self, pixels: Tensor, token_ids: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Return hidden states of images and instruction.

        Args:
            pixels: f32 [b * v, 3, s, s], normalised.
            token_ids: i64 [b, w], 0 pads.
            layer: Layer whose hidden states are the vision tokens; 0 for the inputs.

        Returns:
            Vision tokens [b, v, n, width] and the last position [b, width].
        """
        kind = next(self.model.parameters()).dtype
        tokens, deep = self._see(pixels.to(kind))
        embed = self.language.embed_tokens
        rows = len(token_ids)
        x = self._joined(
            tokens, embed(self.before).expand(rows, -1, -1), embed(token_ids),
            embed(self.after).expand(rows, -1, -1),
        )  # fmt: skip
        here, sees = self._where(token_ids)
        gemma = self.kind == "paligemma" and self.language.config.model_type in ("gemma", "gemma2")
        if gemma and not hasattr(embed, "embed_scale"):  # transformers 5 scales in the embedding
            x = x * self.width**0.5
        blocks = self.language.layers
        kinds = (getattr(self.language.config, "layer_types", None) or [""] * len(blocks))[
            : len(blocks)
        ]
        rotary = {each: self._rotary(x, here, each) for each in set(kinds)}
        taken = x
        for i, (block, attention) in enumerate(zip(blocks, kinds, strict=True)):
            mask = sees
            if attention == "sliding_attention":
                near = here[0, :, :, None] - here[0, :, None] < self.language.config.sliding_window
                mask = sees & near[:, None]
            out = block(x, attention_mask=mask, position_ids=here[0], **rotary[attention])
            x = out[0] if isinstance(out, tuple) else out
            if i < len(deep):
                x = x + self._joined(deep[i], *self._blank(x, token_ids))
            taken = x if i + 1 == layer else taken
        return self._vision_tokens(taken), self.language.norm(x)[:, -1]

    def _buffer(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def _blank(self, x: Tensor, token_ids: Tensor) -> list[Tensor]:
        """Return zeros of the shapes of the parts around the images."""
        rows, _, width = x.shape
        lengths = (len(self.before), token_ids.shape[1], len(self.after))
        return [x.new_zeros(rows, length, width) for length in lengths]

    def _joined(self, images: Tensor, before: Tensor, token_ids: Tensor, after: Tensor) -> Tensor:
        """Return the embeddings of a prompt in order."""
        by_view = images.unflatten(0, (-1, self.views))
        pieces = before.split(self.cuts, 1)
        parts = [pieces[0]]
        for i in range(self.views):
            parts += [by_view[:, i], pieces[i + 1]]
        return torch.cat([*parts, token_ids.to(before), after], 1)

    def _vision_tokens(self, x: Tensor) -> Tensor:
        """Return the hidden states of the images [b, v, n, d]."""
        views, at, count = [], 0, self.size.tokens**2
        for cut in self.cuts[:-1]:
            at += cut
            views.append(x[:, at : at + count])
            at += count
        return torch.stack(views, 1)

    def _where(self, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions i64 [3, b, n] and the attention mask, bool [b, 1, n, n]."""
        rows, device = len(token_ids), token_ids.device
        written = (token_ids != 0).long()
        # Padding follows the last token: id 0 before it may be a token of the vocabulary.
        real = written.sum(1, keepdim=True) - written.cumsum(1) + written > 0
        count = real.sum(1, keepdim=True)
        spoken = self.start + torch.arange(token_ids.shape[1], device=device)
        ends = self.start + count + torch.arange(len(self.after), device=device)
        here = torch.cat([
            self.places[:, None].expand(3, rows, -1), spoken.expand(3, rows, -1),
            ends.expand(3, rows, -1),
        ], 2)  # fmt: skip
        there = torch.ones(rows, 1, dtype=torch.bool, device=device)
        real = torch.cat(
            [there.expand(rows, len(self.groups)), real, there.expand(rows, len(self.after))], 1
        )
        order = torch.arange(real.shape[1], device=device)
        sees = order[:, None] >= order
        if self.kind == "paligemma":
            sees = sees | True
        if self.kind == "gemma3":
            rest = self.groups.new_zeros(token_ids.shape[1] + len(self.after))
            group = torch.cat([self.groups, rest])
            sees = sees | ((group[:, None] == group) & (group > 0))
        return here, (sees & real[:, None])[:, None]

    def _rotary(self, x: Tensor, here: Tensor, attention: str) -> dict[str, Any]:
        """Return the rotary embeddings as keyword arguments of layers of a kind of attention."""
        language = self.language
        if self.kind == "gemma3" and not hasattr(language, "rotary_emb_local"):
            return {"position_embeddings": language.rotary_emb(x, here[0], attention)}
        if self.kind == "gemma3":  # transformers 4
            return {
                "position_embeddings_global": language.rotary_emb(x, here[0]),
                "position_embeddings_local": language.rotary_emb_local(x, here[0]),
            }
        if self.kind == "qwen3_vl":
            angle = here[self.axes].permute(1, 2, 0).float() * language.rotary_emb.inv_freq.float()
            angle = torch.cat([angle, angle], 2)
            scale = language.rotary_emb.attention_scaling
            turn = ((angle.cos() * scale).to(x.dtype), (angle.sin() * scale).to(x.dtype))
            return {"position_embeddings": turn}
        # Qwen2.5-VL's layers choose among the axes themselves.
        axes = here if self.kind == "qwen2_5_vl" else here[0]
        return {"position_embeddings": language.rotary_emb(x, axes)}

    def _see(self, pixels: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return vision tokens [b * v, n, d], and features added to them in the first layers."""
        model: Any = self.model
        if self.kind in QWEN:
            return self.vision(model.visual, pixels)
        if self.kind != "smolvlm":
            seen = model.get_image_features(pixel_values=pixels)
            return getattr(seen, "pooler_output", seen), []  # transformers 5 returns all it has
        tower = model.vision_model  # its embedding counts patches image by image
        x = tower.embeddings.patch_embedding(pixels).flatten(2).transpose(1, 2)
        x = tower.encoder(inputs_embeds=x + tower.embeddings.position_embedding.weight)
        return model.connector(tower.post_layernorm(x.last_hidden_state)), []

    def _axes(self) -> Tensor:
        """Return the axis (time, row, column) of each rotary angle of Qwen3-VL's language model."""
        axes = torch.zeros(len(self.language.rotary_emb.inv_freq), dtype=torch.int64)
        sections = self.language.rotary_emb.mrope_section
        for axis in (1, 2):
            axes[axis : 3 * sections[axis] : 3] = axis
        return axes


def _places(cuts: list[int], side: int, kind: str) -> tuple[Tensor, Tensor]:
    """Return positions i64 [3, n] (time, row, column) before the instruction, and the image, from
    1 on, of each, i64 [n].
    """
    rows: list[tuple[int, int, int]] = []
    groups: list[int] = []
    at = 1 if kind == "paligemma" else 0  # it counts from one
    for i, cut in enumerate(cuts):
        rows += [(at + k,) * 3 for k in range(cut)]
        groups += [0] * cut
        at += cut
        if i + 1 == len(cuts):
            break
        cells = [(y, x) for y in range(side) for x in range(side)]
        groups += [i + 1] * len(cells)
        if kind in QWEN:
            rows += [(at, at + y, at + x) for y, x in cells]
            at += side
        else:
            rows += [(at + k,) * 3 for k in range(len(cells))]
            at += len(cells)
    return torch.tensor(rows).T.contiguous(), torch.tensor(groups)


def _square(size: Any) -> int:
    return int(size[0] if isinstance(size, (list, tuple)) else size)
