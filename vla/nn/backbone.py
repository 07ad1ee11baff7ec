"""Base of the settings of backbones: tokenizer and source of pretrained weights."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from vla.contracts.config import PluginConfig
from vla.nn.text import train_tokenizer


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(PluginConfig):
    """Base of the settings of backbones; they add `build(views, proprio, vocabulary, memory)`: the
    numbers of cameras, of channels of proprioception and of token ids (id 0 pads), and the width of
    the retrieved vector.
    """

    def tokenizer(self, instructions: Iterable[str]) -> Tokenizer:
        """Return the tokenizer of a new policy with this backbone."""
        return train_tokenizer(instructions)

    @property
    def source(self) -> dict[str, Any]:
        """Source of pretrained weights: name, revision, licence, hash; empty for none."""
        return {}
