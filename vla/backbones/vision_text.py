"""A pretrained vision tower with a text tower, for smaller policies: SigLIP2, or DINOv2.

DINOv2 has no text tower: a token embedding that is trained with the policy reads the instruction.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from vla.nn import pretrained
from vla.nn.context import Encoded
from vla.nn.pretrained import PretrainedBackbone, PretrainedConfig
from vla.nn.text import MeanEmbedding, train_tokenizer
from vla.nn.vlm import LOCAL

FAMILIES = ("siglip", "dinov2", "dinov2_with_registers")
"""Supported model types; SigLIP2 for images of one size is a siglip."""
LAYERS = r".*\.(q_proj|k_proj|v_proj|out_proj|fc1|fc2|query|key|value)"
"""Layers that adapters are attached to."""


@dataclass(frozen=True, kw_only=True)
class Config(PretrainedConfig):
    """Settings of a vision tower and a text tower as a backbone."""

    text_width: int = 64
    """Width of the token embedding, for a model without text tower."""

    @property
    def families(self) -> tuple[str, ...]:
        """Supported model types; see `PretrainedConfig.families`."""
        return FAMILIES

    def tokenizer(self, instructions: Iterable[str]) -> Tokenizer:
        """Return the text tower's tokenizer; without tower, one trained on the instructions."""
        folder = self.folder()
        if "text_config" not in json.loads((folder / "config.json").read_text()):
            return train_tokenizer(instructions)
        return pretrained.bare_tokenizer(folder, ends=True)

    def build(self, views: int, proprio: int, vocabulary: int, memory: int) -> "VisionText":
        """Return a backbone with pretrained weights, unless a checkpoint holds them.

        Raises:
            ValueError: as `described`, or the tokenizer is not that of the text tower.
        """
        config, folder = self.described(lambda folder: _read(self, folder))
        return VisionText(config, _model(config, folder), views, proprio, vocabulary, memory)


class VisionText(PretrainedBackbone):
    """Backbone around a vision tower and, with SigLIP2, its text tower."""

    def __init__(
        self, config: Config, model: nn.Module, views: int, proprio: int, vocabulary: int,
        memory: int,
    ) -> None:  # fmt: skip
        super().__init__(config, views)
        description = self.description
        self.net, self.side, self.pad = model, int(description["side"]), description["pad"]
        made: Any = model.config
        if self.pad is None:
            self.words = MeanEmbedding(vocabulary, config.text_width)
            side, last, width = self.side // made.patch_size, config.text_width, made.hidden_size
            self._prepare_dino(side)
        else:
            pretrained.check_vocabulary(vocabulary, description["vocabulary"])
            side, width = self.side // made.vision_config.patch_size, made.vision_config.hidden_size
            last = made.text_config.projection_size
            self.longest = int(made.text_config.max_position_embeddings)
        pretrained.set_trainable(model, config, model, LAYERS)
        self.add_trainable_layers(width, last, side, proprio, memory)

    def features(self, images: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """See `PretrainedBackbone.features`; without a text tower the token ids are returned."""
        kind = next(self.net.parameters()).dtype
        pixels = self.pixels(images, self.side).to(kind)
        net: Any = self.net
        if self.pad is None:
            return self._dino_features(pixels).float().unflatten(0, (-1, self.views)), token_ids
        vision = net.vision_model(pixel_values=pixels).last_hidden_state
        written = (token_ids != 0).long()
        real = written.sum(1, keepdim=True) - written.cumsum(1) + written > 0
        ids = torch.where(real, token_ids, self.pad)
        # The tower was trained on texts padded to one length.
        ids = torch.cat([ids, torch.full_like(ids[:, :1], self.pad).expand(-1, self.longest)], 1)
        text = net.text_model(input_ids=ids[:, : self.longest]).pooler_output
        return vision.float().unflatten(0, (-1, self.views)), text.float()

    def frozen_features(self, images: Tensor, token_ids: Tensor) -> dict[str, Tensor]:
        """See `Cacheable`; token ids that a trained embedding reads are not features."""
        features = super().frozen_features(images, token_ids)
        return {"seen": features["seen"]} if self.pad is None else features

    def encode_from(
        self, features: dict[str, Tensor], proprio: Tensor, token_ids: Tensor
    ) -> Encoded:
        """Encode from frozen features; see `Cacheable`."""
        return self.encode_features(features["seen"], features.get("last", token_ids), proprio)

    def encode_features(self, seen: Tensor, last: Tensor, proprio: Tensor) -> Encoded:
        """Encode the result of `features`."""
        text = self.words(last) if self.pad is None else last
        return super().encode_features(seen, text, proprio)

    def _prepare_dino(self, side: int) -> None:
        """Compute the resampling matrix of the tower's position embeddings."""
        net: Any = self.net
        count = net.embeddings.position_embeddings.shape[1] - 1
        trained_side = int(count**0.5)
        spread = torch.eye(count)
        if trained_side != side:
            spread = nn.functional.interpolate(
                spread.view(count, 1, trained_side, trained_side), (side, side), mode="bicubic",
                antialias=hasattr(net.embeddings, "register_tokens"),
            ).flatten(1).T.contiguous()  # fmt: skip
        self.register_buffer("spread", spread, persistent=False)

    def _dino_features(self, pixels: Tensor) -> Tensor:
        """Run DINOv2 with resampling as a matrix product; return its patch tokens."""
        net: Any = self.net
        parts = net.embeddings
        x = parts.patch_embeddings(pixels)
        places = parts.position_embeddings
        x = x + self.spread.to(x) @ places[0, 1:]
        summary = [(parts.cls_token + places[:, :1]).expand(len(x), -1, -1)]
        if hasattr(parts, "register_tokens"):
            summary.append(parts.register_tokens.expand(len(x), -1, -1))
        skipped = sum(part.shape[1] for part in summary)
        x = net.encoder(torch.cat([*summary, x], 1)).last_hidden_state
        return net.layernorm(x)[:, skipped:]


def _read(config: Config, folder: Path) -> dict[str, Any]:
    """Return the description of a model in a folder: everything but weights and tokenizer."""
    from transformers import AutoTokenizer

    from vla.nn.transformers_versions import image_processor

    read_model = pretrained.read_model
    made = pretrained.read_architecture(config, folder)
    processor = read_model(lambda: image_processor(folder, torchvision=True), folder)
    texts, pad = made.model_type == "siglip", None
    if texts:
        pad = read_model(
            lambda: AutoTokenizer.from_pretrained(folder, **LOCAL).pad_token_id, folder
        )
    patch = 1 if texts else made.patch_size
    side = made.vision_config.image_size if texts else max(config.image_px // patch, 1) * patch
    vocabulary = pretrained.bare_tokenizer(folder).get_vocab_size() if texts else 0
    return pretrained.describe_model(config, folder, made, {
        "side": side, "pad": pad, "vocabulary": vocabulary,
        "mean": [float(v) for v in processor.image_mean],
        "std": [float(v) for v in processor.image_std],
    })  # fmt: skip


def _model(config: Config, folder: Path | None) -> nn.Module:
    """Return the towers without unused heads, with a folder's weights or uninitialised."""
    from transformers import AutoModel

    model = pretrained.load_network(AutoModel, config, folder)
    if model.config.model_type == "siglip":
        model.vision_model.use_head = False
        del model.vision_model.head, model.logit_scale, model.logit_bias
    else:
        model.embeddings.mask_token = None
    return model
