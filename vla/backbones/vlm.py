"""A pretrained vision-language model: pictures and instruction in, hidden states to tokens.

SmolVLM2, Qwen3-VL, Qwen2.5-VL, PaliGemma, Gemma 3 and InternVL, as transformers has them. It runs
once per decision; memory, proprioception and all denoising steps work on what it gave.
"""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vla.nn import families, pretrained
from vla.nn.families import Eyes, Prompt, Reader
from vla.nn.pretrained import PretrainedBackbone, PretrainedConfig
from vla.nn.vlm import DTYPES, LOCAL


@dataclass(frozen=True, kw_only=True)
class Config(PretrainedConfig):
    """Settings of a vision-language model as a backbone."""

    layer: int = 0
    """Layers of the language model that run; the others are cut off. 0 for all."""
    look_layer: int = 0
    """Layer after which vision tokens are taken; 0 for those that go into the language model."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        super().__post_init__()
        if self.layer < 0 or not 0 <= self.look_layer <= (self.layer or self.look_layer):
            raise ValueError(
                f"look_layer: got {self.look_layer} with layer {self.layer}; give a layer that runs"
            )

    @property
    def families(self) -> tuple[str, ...]:
        """See `PretrainedConfig.families`."""
        return families.FAMILIES

    def build(self, views: int, proprio: int, vocabulary: int, memory: int) -> "VlmBackbone":
        """Return a backbone; with pretrained weights, unless a checkpoint has them.

        Args:
            views: Cameras.
            proprio: Numbers of proprioception.
            vocabulary: Words of the tokenizer, which must be the model's own.
            memory: Width of the retrieved vector.

        Raises:
            ValueError: the model is missing, of an unknown family, or reads other words.
        """
        if self.given is not None:
            model = _model(self, pretrained.weights_folder(self))
            return VlmBackbone(self, model, views, proprio, vocabulary, memory)
        folder = self.folder()
        config = pretrained.settled(self, _read(self, folder, views))
        model = _model(config, folder)
        return VlmBackbone(config, model, views, proprio, vocabulary, memory)


class VlmBackbone(PretrainedBackbone):
    """See the module's sentence."""

    def __init__(
        self, config: Config, model: torch.nn.Module, views: int, proprio: int, vocabulary: int,
        memory: int,
    ) -> None:  # fmt: skip
        super().__init__(config, views)
        given: dict[str, Any] = config.given or {}
        pretrained.check_vocabulary(vocabulary, given["vocabulary"])
        told = Prompt(given["before"], given["after"])
        self.net = Reader(model, told, Eyes(given["side"], given["tokens"]), config.layer)
        if self.net.views != views:
            raise ValueError(
                f"policy.cameras: got {views}, the checkpoint's prompt shows {self.net.views}"
            )
        self.look_layer = config.look_layer
        have = len(self.net.language.layers)
        if self.look_layer > have:
            raise ValueError(f"look_layer: got {self.look_layer}, the model has {have}")
        pretrained.tune_(model, config, self.net.language, families.LAYERS)
        for name in ("mean", "std"):
            value = torch.tensor(given[name]).view(3, 1, 1)
            self.register_buffer(name, value, persistent=False)
        width = self.net.width
        self.equip_(width, width, given["tokens"], proprio, memory)

    def features(self, images: Tensor, words: Tensor) -> tuple[Tensor, Tensor]:
        """See `PretrainedBackbone.features`."""
        pixels = self.pixels(images, self.net.seen.side, self.mean, self.std)
        seen, last = self.net(pixels, words, self.look_layer)
        return seen.float(), last.float()


def _read(config: Config, folder: Path, views: int) -> dict[str, Any]:
    """Return everything that is needed of a model's folder but its weights."""
    from transformers import AutoConfig

    opened = pretrained.opened
    made = opened(lambda: AutoConfig.from_pretrained(folder, **LOCAL), folder)
    families.check(made.model_type, folder)
    processor = opened(lambda: families.processor_of(folder, made), folder)
    seen = families.eyes(made, config.image_px)
    image_token = getattr(made, "image_token_id", None)
    token = made.image_token_index if image_token is None else image_token
    told = families.prompt(processor, int(token), views, seen.side)
    eyes = processor.image_processor
    normal = bool(getattr(eyes, "do_normalize", True))
    words = pretrained.bare_tokenizer(folder)
    return pretrained.given_of(config, folder, {
        "architecture": {**json.loads(made.to_json_string()), "model_type": made.model_type},
        "before": told.before, "after": told.after, "side": seen.side, "tokens": seen.tokens,
        "mean": [float(v) for v in (eyes.image_mean if normal else (0, 0, 0))],
        "std": [float(v) for v in (eyes.image_std if normal else (1, 1, 1))],
        "vocabulary": words.get_vocab_size(),
    })  # fmt: skip


def _model(config: Config, folder: Path | None) -> torch.nn.Module:
    """Return the model without the head that predicts words: from a folder, or yet to be filled."""
    from transformers import CONFIG_MAPPING, AutoModelForImageTextToText
    from transformers.modeling_utils import no_init_weights

    if folder is not None:
        whole: Any = AutoModelForImageTextToText.from_pretrained(
            folder, dtype=DTYPES[config.dtype], use_safetensors=True, attn_implementation="sdpa",
            **LOCAL,
        )  # fmt: skip
        return whole.model
    architecture = (config.given or {})["architecture"]
    families.check(architecture["model_type"], "policy.json")
    made = CONFIG_MAPPING[architecture["model_type"]].from_dict(copy.deepcopy(architecture))
    with no_init_weights():
        whole = AutoModelForImageTextToText.from_config(
            made, attn_implementation="sdpa", trust_remote_code=False
        )
    return whole.model
