"""Families of vision-language models, each as a function of pixels and word ids to hidden states.

What a processor lays around pictures and words is worked out once, as ids; shapes are fixed and
nothing depends on values, so that it exports.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vla.nn.qwen import Sight
from vla.nn.vlm import LOCAL

MARK = "press the button"
"""Stands for the instruction while the processor's prompt is taken apart."""
LAYERS = r"layers\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
"""What an adapter is attached to in a language model."""
QWEN = ("qwen3_vl", "qwen2_5_vl")
"""Families that take pictures of any size, and count places by row and column."""
FAMILIES = ("smolvlm", "qwen3_vl", "qwen2_5_vl", "paligemma", "gemma3", "internvl")
"""Names that the models give themselves."""


class Prompt(NamedTuple):
    """What stands around pictures and words, as ids."""

    before: list[list[int]]
    """Before each picture; the last before the words."""
    after: list[int]
    """After the words."""


class Eyes(NamedTuple):
    """How large a model sees."""

    side: int
    """Pixels along a side of its pictures."""
    tokens: int
    """Vision tokens along it."""


def check(kind: str, where: object) -> None:
    """Raise ValueError unless a family of models is known."""
    if kind not in FAMILIES:
        raise ValueError(f"{where}: is a {kind}, expected one of {', '.join(FAMILIES)}")


def eyes(config: Any, image_px: int) -> Eyes:
    """Return how large a model sees; one that takes any size, as large as data are read."""
    vision, kind = config.vision_config, config.model_type
    if kind in QWEN:
        cell = vision.patch_size * vision.spatial_merge_size
        count = max(image_px // cell, 1)
        return Eyes(count * cell, count)
    side, patch = _square(vision.image_size), _square(vision.patch_size)
    if kind == "smolvlm":
        return Eyes(side, side // patch // config.scale_factor)
    if kind == "internvl":
        return Eyes(side, int(side // patch * config.downsample_ratio))
    if kind == "gemma3":
        return Eyes(side, int(config.mm_tokens_per_image**0.5))
    return Eyes(side, side // patch)


def prompt(processor: Any, image_token: int, views: int, side: int) -> Prompt:
    """Take apart what a processor makes of so many pictures and an instruction.

    Raises:
        ValueError: the instruction, or as many pictures, are not in it.
    """
    import numpy as np

    if getattr(processor, "chat_template", None):
        content = [{"type": "image"}] * views + [{"type": "text", "text": MARK}]
        messages = [{"role": "user", "content": content}]
        text = processor.apply_chat_template(messages, add_generation_prompt=True)
    else:  # PaliGemma does not chat
        text = processor.tokenizer.convert_ids_to_tokens(image_token) * views + MARK
    settings: dict[str, Any] = {}
    for name in ("crop_to_patches", "do_image_splitting"):  # no dozen tiles of every picture
        if hasattr(processor.image_processor, name):
            settings[name] = False
    blank = [np.zeros((side, side, 3), np.uint8)] * views
    made = processor(text=[text], images=[blank], images_kwargs=settings)
    ids = [int(i) for i in made["input_ids"][0]]
    mark = processor.tokenizer.encode(MARK, add_special_tokens=False)
    found = [i for i in range(len(ids)) if ids[i : i + len(mark)] == mark]
    count = ids.count(image_token)
    if len(found) != 1 or not count or count % views:
        raise ValueError(
            f"{type(processor).__name__}: made {count} picture tokens and {len(found)} "
            f"instructions of {views} pictures and one; copy the model whole, or use another"
        )
    before: list[list[int]] = [[]]
    left = 0
    for one in ids[: found[0]]:
        if one != image_token:
            before[-1].append(one)
            continue
        if not left:
            before.append([])
            left = count // views
        left -= 1
    return Prompt(before, ids[found[0] + len(mark) :])


def processor_of(folder: Path, config: Any) -> Any:
    """Return the processor of the model in a folder."""
    from transformers import AutoProcessor

    if config.model_type == "smolvlm":
        return _SmolProcessor(folder, eyes(config, 0).tokens)
    return AutoProcessor.from_pretrained(folder, **LOCAL)


class _SmolProcessor:
    """What SmolVLM's processor makes of whole pictures; its own needs a package for films."""

    def __init__(self, folder: Path, tokens: int) -> None:
        from transformers import AutoImageProcessor, AutoTokenizer

        self.tokenizer = AutoTokenizer.from_pretrained(folder, **LOCAL)
        self.image_processor = AutoImageProcessor.from_pretrained(folder, use_fast=False, **LOCAL)
        legacy = folder / "chat_template.json"
        self.chat_template = self.tokenizer.chat_template
        if not self.chat_template and legacy.is_file():
            self.chat_template = json.loads(legacy.read_text())["chat_template"]
        self.shown = (
            f"<fake_token_around_image><global-img>{'<image>' * tokens**2}<fake_token_around_image>"
        )

    def apply_chat_template(self, messages: Any, *, add_generation_prompt: bool) -> str:
        return self.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=add_generation_prompt,
            chat_template=self.chat_template,
        )  # fmt: skip

    def __call__(self, *, text: list[str], **_: Any) -> Any:
        return self.tokenizer([one.replace("<image>", self.shown) for one in text])


class Reader(nn.Module):
    """A vision-language model without its last layer: pictures and words to hidden states."""

    def __init__(self, model: nn.Module, told: Prompt, seen: Eyes, layer: int) -> None:
        """Wrap a model.

        Args:
            model: Of transformers, without the head that predicts words.
            told: What stands around pictures and words.
            seen: How large it sees.
            layer: Layers of its language model to keep; 0 for all.

        Raises:
            ValueError: it has fewer.
        """
        super().__init__()
        self.model, self.seen = model, seen
        self.kind = str(model.config.model_type)
        have = len(self.language.layers)
        if not 0 <= layer <= have:
            raise ValueError(f"layer: got {layer}, expected 0 to {have}: the model has {have}")
        if layer:
            self.language.layers = self.language.layers[:layer]
        self.views = len(told.before) - 1
        self.cuts = [len(piece) for piece in told.before]
        flat = [one for piece in told.before for one in piece]
        self._keep("before", torch.tensor(flat, dtype=torch.int64))
        self._keep("after", torch.tensor(told.after, dtype=torch.int64))
        places, groups = _places(self.cuts, seen.tokens, self.kind)
        self.start = int(places.amax()) + 1
        self._keep("places", places)
        self._keep("groups", groups)
        if self.kind in QWEN:
            self.sight = Sight(self.model.visual, seen.tokens)
        if self.kind == "qwen3_vl":
            self._keep("axes", self._axes())

    @property
    def language(self) -> Any:
        """The language model."""
        return self.model.text_model if self.kind == "smolvlm" else self.model.language_model

    @property
    def width(self) -> int:
        """Width of the hidden states."""
        return int(self.language.config.hidden_size)

    def forward(self, pixels: Tensor, words: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Read a prompt.

        Args:
            pixels: f32 [b * v, 3, s, s], normalised.
            words: i64 [b, w], 0 pads.
            layer: Layer after which vision tokens are taken; 0 for those that go in.

        Returns:
            Vision tokens [b, v, n, width] and the last position [b, width].
        """
        kind = next(self.model.parameters()).dtype
        tokens, deep = self._see(pixels.to(kind))
        embed = self.language.embed_tokens
        rows = len(words)
        x = self._laid(
            tokens, embed(self.before).expand(rows, -1, -1), embed(words),
            embed(self.after).expand(rows, -1, -1),
        )  # fmt: skip
        here, sees = self._where(words)
        if self.kind == "paligemma" and self.language.config.model_type in ("gemma", "gemma2"):
            x = x * self.width**0.5
        given = self._turned(x, here)
        taken = x
        for i, block in enumerate(self.language.layers):
            mask = sees
            if getattr(block, "attention_type", "") == "sliding_attention":
                near = here[0, :, :, None] - here[0, :, None] < self.language.config.sliding_window
                mask = sees & near[:, None]
            out = block(x, attention_mask=mask, position_ids=here[0], **given)
            x = out[0] if isinstance(out, tuple) else out
            if i < len(deep):
                x = x + self._laid(deep[i], *self._blank(x, words))
            taken = x if i + 1 == layer else taken
        return self._pictures(taken), self.language.norm(x)[:, -1]

    def _keep(self, name: str, value: Tensor) -> None:
        self.register_buffer(name, value, persistent=False)

    def _blank(self, x: Tensor, words: Tensor) -> list[Tensor]:
        """Return zeros of the shapes of what stands around pictures."""
        rows, _, width = x.shape
        lengths = (len(self.before), words.shape[1], len(self.after))
        return [x.new_zeros(rows, length, width) for length in lengths]

    def _laid(self, pictures: Tensor, before: Tensor, words: Tensor, after: Tensor) -> Tensor:
        """Return a prompt's embeddings in their order."""
        by_view = pictures.unflatten(0, (-1, self.views))
        pieces = before.split(self.cuts, 1)
        parts = [pieces[0]]
        for i in range(self.views):
            parts += [by_view[:, i], pieces[i + 1]]
        return torch.cat([*parts, words.to(before), after], 1)

    def _pictures(self, x: Tensor) -> Tensor:
        """Return the hidden states of pictures [b, v, n, d]."""
        found, at, count = [], 0, self.seen.tokens**2
        for cut in self.cuts[:-1]:
            at += cut
            found.append(x[:, at : at + count])
            at += count
        return torch.stack(found, 1)

    def _where(self, words: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions i64 [3, b, n] and what sees what, bool [b, 1, n, n]."""
        rows, device = len(words), words.device
        written = (words != 0).long()
        # Only what follows the last word pads: a tokenizer may have a word of its own with id 0.
        real = written.sum(1, keepdim=True) - written.cumsum(1) + written > 0
        count = real.sum(1, keepdim=True)
        spoken = self.start + torch.arange(words.shape[1], device=device)
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
            rest = self.groups.new_zeros(words.shape[1] + len(self.after))
            group = torch.cat([self.groups, rest])
            sees = sees | ((group[:, None] == group) & (group > 0))
        return here, (sees & real[:, None])[:, None]

    def _turned(self, x: Tensor, here: Tensor) -> dict[str, Any]:
        """Return the rotary embeddings under the names that layers take them by."""
        language = self.language
        if self.kind == "gemma3":
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
        """Return vision tokens [b * v, n, d], and what is added to them in the first layers."""
        model: Any = self.model
        if self.kind in QWEN:
            return self.sight(model.visual, pixels)
        if self.kind != "smolvlm":
            return model.get_image_features(pixel_values=pixels), []
        tower = model.vision_model  # its own embedding counts patches, picture by picture
        x = tower.embeddings.patch_embedding(pixels).flatten(2).transpose(1, 2)
        x = tower.encoder(inputs_embeds=x + tower.embeddings.position_embedding.weight)
        return model.connector(tower.post_layernorm(x.last_hidden_state)), []

    def _axes(self) -> Tensor:
        """Return which of time, row and column turns each angle of Qwen3-VL's language model."""
        axes = torch.zeros(len(self.language.rotary_emb.inv_freq), dtype=torch.int64)
        sections = self.language.rotary_emb.mrope_section
        for axis in (1, 2):
            axes[axis : 3 * sections[axis] : 3] = axis
        return axes


def _places(cuts: list[int], side: int, kind: str) -> tuple[Tensor, Tensor]:
    """Return positions i64 [3, n] (time, row, column) before the words, and to which picture, from
    1 on, each belongs, i64 [n].
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
