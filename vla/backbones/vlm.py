"""A pretrained vision-language model as a backbone: images and instruction to tokens.

SmolVLM2, Qwen3-VL, Qwen2.5-VL, PaliGemma, Gemma 3 and InternVL of transformers. It runs once per
decision; memory, proprioception and all denoising steps use its hidden states.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla.nn import families, pretrained
from vla.nn.families import ImageSize, Prompt, VlmEncoder
from vla.nn.pretrained import PretrainedBackbone, PretrainedConfig


@dataclass(frozen=True, kw_only=True)
class Config(PretrainedConfig):
    """Settings of a vision-language model as a backbone."""

    num_vlm_layers: int = 0
    """First layers of the language model that are kept; 0 for all."""
    vision_feature_layer: int = 0
    """Layer whose hidden states are the vision tokens; 0 for the inputs of the language model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_vlm_layers < 0 or not 0 <= self.vision_feature_layer <= (
            self.num_vlm_layers or self.vision_feature_layer
        ):
            raise ValueError(
                f"vision_feature_layer: got {self.vision_feature_layer}, expected a kept one: 0 to "
                f"num_vlm_layers = {self.num_vlm_layers}"
            )

    @property
    def families(self) -> tuple[str, ...]:
        """Supported model types; see `PretrainedConfig.families`."""
        return families.FAMILIES

    def build(self, views: int, proprio: int, vocabulary: int, memory: int) -> "VlmBackbone":
        """Return a backbone with pretrained weights, unless a checkpoint holds them.

        Raises:
            ValueError: as `described`, or the tokenizer is not the model's.
        """
        from transformers import AutoModelForImageTextToText

        config, folder = self.described(lambda folder: _read(self, folder, views))
        model = pretrained.load_network(AutoModelForImageTextToText, config, folder).model
        return VlmBackbone(config, model, views, proprio, vocabulary, memory)


class VlmBackbone(PretrainedBackbone):
    """Backbone around a vision-language model."""

    def __init__(
        self, config: Config, model: torch.nn.Module, views: int, proprio: int, vocabulary: int,
        memory: int,
    ) -> None:  # fmt: skip
        super().__init__(config, views)
        description = self.description
        pretrained.check_vocabulary(vocabulary, description["vocabulary"])
        prompt = Prompt(description["before"], description["after"])
        size = ImageSize(description["side"], description["tokens"])
        self.net = VlmEncoder(model, prompt, size, config.num_vlm_layers)
        if self.net.views != views:
            raise ValueError(
                f"policy.cameras: got {views}, expected the checkpoint's {self.net.views}"
            )
        self.vision_feature_layer = config.vision_feature_layer
        count = len(self.net.language.layers)
        if self.vision_feature_layer > count:
            raise ValueError(
                f"vision_feature_layer: got {self.vision_feature_layer}, the model has {count}"
            )
        pretrained.set_trainable(model, config, self.net.language, families.LAYERS)
        width = self.net.width
        self.add_trainable_layers(width, width, description["tokens"], proprio, memory)

    def features(self, images: Tensor, token_ids: Tensor) -> tuple[Tensor, Tensor]:
        """See `PretrainedBackbone.features`."""
        pixels = self.pixels(images, self.net.size.side)
        vision, last = self.net(pixels, token_ids, self.vision_feature_layer)
        return vision.float(), last.float()


def _read(config: Config, folder: Path, views: int) -> dict[str, Any]:
    """Return the description of a model in a folder: everything but weights and tokenizer."""
    made = pretrained.read_architecture(config, folder)
    processor = pretrained.read_model(lambda: families.load_processor(folder, made), folder)
    size = families.image_size(made, config.image_px)
    image_token = getattr(made, "image_token_id", None)
    token = made.image_token_index if image_token is None else image_token
    prompt = families.prompt(processor, int(token), views, size.side)
    images = processor.image_processor
    normal = bool(getattr(images, "do_normalize", True))
    return pretrained.describe_model(config, folder, made, {
        "before": prompt.before, "after": prompt.after, "side": size.side, "tokens": size.tokens,
        "mean": [float(v) for v in (images.image_mean if normal else (0, 0, 0))],
        "std": [float(v) for v in (images.image_std if normal else (1, 1, 1))],
        "vocabulary": pretrained.bare_tokenizer(folder).get_vocab_size(),
    })  # fmt: skip
