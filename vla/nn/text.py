"""Instructions to token ids: a small tokenizer, trained on the given instructions."""

from collections.abc import Iterable

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn

VOCABULARY = 512
"""Largest vocabulary."""
CACHED = 256
"""Most instructions whose tokens are kept: whoever asks chooses them."""


def train_tokenizer(instructions: Iterable[str]) -> Tokenizer:
    """Return a byte-pair tokenizer of lower-case words; id 0 pads, id 1 is unknown."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["[PAD]", "[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator(sorted(set(instructions)), trainer)
    return tokenizer


class SumEmbedding(nn.Embedding):
    """Sum of the token embeddings of an instruction; `nn.EmbeddingBag` in exportable operators."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__(vocabulary, width, padding_idx=0)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return f32 [b, width] for token ids i64 [b, w]; 0 pads and does not count."""
        return (super().forward(token_ids) * (token_ids != 0).float()[..., None]).sum(1)


class MeanEmbedding(SumEmbedding):
    """Mean of the token embeddings of an instruction."""

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return f32 [b, width] for token ids i64 [b, w]; 0 pads and does not count."""
        count = (token_ids != 0).float().sum(1, keepdim=True)
        return super().forward(token_ids) / count.clamp(min=1.0)


class TextEncoder:
    """Encodes instructions with a cache: an episode repeats its instruction."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._cache: dict[str, list[int]] = {}

    @property
    def vocabulary(self) -> int:
        """Number of token ids."""
        return self.tokenizer.get_vocab_size()

    def __call__(self, tasks: tuple[str, ...], device: torch.device) -> Tensor:
        """Return ids i64 [b, w], padded with 0."""
        rows = [self._ids(task) for task in tasks]
        width = max(len(row) for row in rows)
        return torch.tensor([row + [0] * (width - len(row)) for row in rows], device=device)

    def _ids(self, task: str) -> list[int]:
        ids = self._cache.pop(task, None) or self.tokenizer.encode(task).ids or [1]
        self._cache[task] = ids  # the latest is last
        if len(self._cache) > CACHED:
            del self._cache[next(iter(self._cache))]
        return ids
