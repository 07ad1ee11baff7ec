"""What every backbone's settings have in common: whose words an instruction is written in."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

from vla.contracts.config import PluginConfig
from vla.nn.text import train_tokenizer


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(PluginConfig):
    """Base of the settings of backbones; they add `build`."""

    def tokenizer(self, instructions: Iterable[str]) -> Tokenizer:
        """Return the tokenizer that a new policy with this backbone reads instructions with."""
        return train_tokenizer(instructions)

    @property
    def source(self) -> dict[str, Any]:
        """Where pretrained weights come from: name, revision, licence, hash; empty for none."""
        return {}
