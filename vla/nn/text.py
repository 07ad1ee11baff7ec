"""Instructions to token ids: a small tokenizer, trained on the given instructions."""

import math
from collections.abc import Iterable

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from torch import Tensor, nn

from vla.nn.norms import Standardize

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


class TextTransformer(nn.Module):
    """Small transformer over the tokens of an instruction: what a word means may depend on where it
    stands, as in "the cube in front of the can"; in exportable operators. Its output is
    standardised over the batch: instructions differ in a few words only.
    """

    def __init__(self, vocabulary: int, width: int, depth: int = 1, heads: int = 4) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, width, padding_idx=0)
        self.blocks = nn.ModuleList(_Block(width, heads) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.score, self.value = nn.Linear(width, heads), nn.Linear(width, width)
        self.standardize = Standardize(width)
        rates = torch.exp(torch.linspace(0.0, -math.log(64.0), width // 2))
        self.register_buffer("rates", rates, persistent=False)

    def forward(self, token_ids: Tensor) -> Tensor:
        """Return f32 [b, width] for token ids i64 [b, w]; 0 pads and does not count."""
        there = (token_ids != 0).float()[..., None]
        phase = (there.cumsum(1) - 1) * self.rates
        x = self.words(token_ids) + torch.cat([phase.sin(), phase.cos()], 2)
        for block in self.blocks:
            x = block(x, there)
        x = self.norm(x)
        # Each head picks words: in a mean the few that matter would hardly count.
        share = (self.score(x) + (there - 1.0) * 1e4).softmax(1)
        value = self.value(x).unflatten(2, (share.shape[2], -1))
        return self.standardize((share[..., None] * value).sum(1).flatten(1))


class _Block(nn.Module):
    """Pre-norm block of self-attention and a two-layer perceptron."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, there: Tensor) -> Tensor:
        """Return f32 [b, w, width]; `there` f32 [b, w, 1] is 0 where a token pads."""
        parts = self.project(self.norm(x)).unflatten(2, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        scores = scores + (there[:, None, None, :, 0] - 1.0) * 1e4
        mixed = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        x = x + self.out(mixed)
        return x + self.mlp(self.norm_mlp(x))


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
