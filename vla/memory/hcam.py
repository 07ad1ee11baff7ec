"""A hierarchical memory: attention to chunks of decisions, then within the most relevant of them.

Lampinen et al. 2021 (arXiv 2105.14039). Decisions are stored in chunks; a summary of each, the mean
of its entries, says how relevant it is, and what attention finds within the `top_chunks` most
relevant ones is added by that relevance. So few entries share a softmax, however long the memory.
It is exact until it is full, and then drops the oldest chunk.

Otherwise than there: entries are not detached; the age of an entry, log(1 + control steps), is
part of what summaries, keys and values are made of; and the unfinished chunk can be read.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vla.contracts.config import PluginConfig, validate_min
from vla.nn.attention import FREQUENCIES, age_features, age_rates
from vla.nn.context import Retrieved
from vla.nn.memory import StateMemory, gate_mix, memoryless_gate
from vla.nn.norms import Standardize

MASKED = -1e4
"""Added to the score of an entry or a chunk that holds nothing."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the hierarchical memory."""

    chunks: int = 40
    """Chunks that it keeps."""
    chunk_decisions: int = 16
    """Decisions of a chunk: with 40 chunks, 5,120 control steps at 8 a decision."""
    top_chunks: int = 4
    """Chunks that are read, at most `chunks`."""
    layers: int = 2
    """Times that it is read, each with what the last one found."""
    hidden_size: int = 128
    """Width of an entry."""
    heads: int = 4
    """Attention heads within a chunk; they divide the width."""

    def __post_init__(self) -> None:
        validate_min(
            self, chunks=2, chunk_decisions=1, top_chunks=1, layers=1, hidden_size=1, heads=1
        )
        if self.top_chunks > self.chunks:
            raise ValueError(
                f"memory.top_chunks: got {self.top_chunks}, expected at most the {self.chunks} "
                "chunks that it keeps"
            )
        if self.hidden_size % self.heads:
            raise ValueError(
                f"memory.heads must divide hidden_size {self.hidden_size}, got {self.heads}"
            )

    @property
    def window_decisions(self) -> int:
        """Decisions after which it holds nothing of one."""
        return self.chunks * self.chunk_decisions

    def build(self, tokens: int, width: int) -> "HierarchicalMemory":
        """Return a memory for decisions of `tokens` tokens of `width` numbers."""
        return HierarchicalMemory(self, tokens, width)


class Chunks(NamedTuple):
    """What some rows remember, in any order of the chunks."""

    entries: Tensor
    """f32 [m, c, s, w]."""
    log_age: Tensor
    """f32 [m, c, s], log(1 + age in control steps)."""
    mask: Tensor
    """f32 [m, c, s], 1 where there is an entry."""


class ChunkAttention(nn.Module):
    """Attention to chunks, to entries of the best of them, and a perceptron; each a residual."""

    def __init__(self, width: int, heads: int, top: int) -> None:
        super().__init__()
        self.heads, self.top = heads, top
        self.norm, self.norm_entry = nn.LayerNorm(width), nn.LayerNorm(width)
        self.norm_mlp = nn.LayerNorm(width)
        self.query, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.summary_query, self.summary_key = nn.Linear(width, width), nn.Linear(width, width)
        self.age = nn.Linear(2 * FREQUENCIES, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.register_buffer("rates", age_rates(), persistent=False)

    def forward(self, hidden: Tensor, chunks: Chunks) -> Tensor:
        """Return f32 [m, w] for f32 [m, w]."""
        age = self.age(age_features(chunks.log_age, self.rates))
        dated = self.norm_entry(chunks.entries) + age
        dated = dated * chunks.mask[..., None]
        count = chunks.mask.sum(2)
        summary = self.summary_key(dated.sum(2) / count.clamp(min=1.0)[..., None])
        query = self.norm(hidden)
        scores = (summary @ self.summary_query(query)[..., None])[..., 0]
        scores = scores / math.sqrt(hidden.shape[1]) + MASKED * (count == 0)
        top = min(self.top, scores.shape[1])
        best, index = scores.topk(top, 1)
        relevance = scores.softmax(1).gather(1, index) * (best > MASKED / 2)
        chosen = dated.gather(1, index[..., None, None].expand(-1, -1, *dated.shape[2:]))
        mask = chunks.mask.gather(1, index[..., None].expand(-1, -1, dated.shape[2]))
        found = self._within(query, chosen, mask)
        hidden = hidden + self.out((relevance[..., None] * found).sum(1))
        return hidden + self.mlp(self.norm_mlp(hidden))

    def _within(self, query: Tensor, entries: Tensor, mask: Tensor) -> Tensor:
        """Return what a query f32 [m, w] finds in chunks f32 [m, k, s, w], as f32 [m, k, w]."""
        keys, values = (
            part.unflatten(3, (self.heads, -1)) for part in self.key_value(entries).chunk(2, -1)
        )
        asked = self.query(query).unflatten(1, (self.heads, -1))[:, None, None]
        scores = (asked * keys).sum(-1) / math.sqrt(keys.shape[-1]) + MASKED * (1 - mask)[..., None]
        return (scores.softmax(2)[..., None] * values).sum(2).flatten(2)


class HierarchicalMemory(StateMemory):
    """Hierarchical memory; decisions fill a ring of chunks one after another."""

    def __init__(self, config: Config, tokens: int, width: int) -> None:
        super().__init__(tokens, width)
        self.config = config
        self.norm = nn.LayerNorm(width)
        self.input = nn.Linear(tokens * width, config.hidden_size)
        self.layers = nn.ModuleList(
            ChunkAttention(config.hidden_size, config.heads, config.top_chunks)
            for _ in range(config.layers)
        )
        self.recalled = nn.Linear(config.hidden_size, width)
        self.output = nn.Linear(config.hidden_size, self.vector_size)
        self.gate = memoryless_gate(width)
        self.standardize = Standardize(self.vector_size)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of entries, their times, 1 where there is one, and where in the
        ring the next one goes.
        """
        ring = (self.config.chunks, self.config.chunk_decisions)
        return {
            "chunk_entries": (*ring, self.config.hidden_size), "chunk_time": ring,
            "chunk_mask": ring, "written": (1,),
        }  # fmt: skip

    def read(self, state: dict[str, Tensor], x: Tensor, now: Tensor) -> Retrieved:
        """Retrieve for tokens x f32 [b, n, d] at time now f32 [b], before it is written."""
        with torch.autocast(x.device.type, enabled=False):
            age = (now.float()[:, None, None] - state["chunk_time"]).clamp(min=0.0)
            chunks = Chunks(state["chunk_entries"], torch.log1p(age), state["chunk_mask"])
            return self._read(x.float(), self._entry(x), chunks)

    def write(
        self, state: dict[str, Tensor], x: Tensor, now: Tensor, mask: Tensor
    ) -> dict[str, Tensor]:
        """Store tokens x f32 [b, n, d] where mask f32 [b] is 1; in FP32, whatever the dtype."""
        with torch.autocast(x.device.type, enabled=False):
            size = self.config.chunk_decisions
            places = torch.arange(self.config.chunks * size, device=x.device)
            ring = places.float().view(1, -1, size)
            index = state["written"][:, :, None]
            stored = mask.float()[:, None, None]
            here = (ring == index).float() * stored
            # The first entry of a chunk replaces all that was there.
            begins = (ring[..., :1] == index).float() * stored
            kept = (1 - here) * (1 - begins)
            entry = self._entry(x)[:, None, None]
            return {
                "chunk_entries": kept[..., None] * state["chunk_entries"] + here[..., None] * entry,
                "chunk_time": kept * state["chunk_time"] + here * now.float()[:, None, None],
                "chunk_mask": kept * state["chunk_mask"] + here,
                # Its place in the ring alone: a number of months would not fit into 24 bits.
                "written": torch.remainder(
                    state["written"] + mask.float()[:, None], float(len(places))
                ),
            }

    def read_episodes(
        self, x: Tensor, now: Tensor, mask: Tensor, row: Tensor, decision: Tensor
    ) -> Retrieved:
        """See `StateMemory.read_episodes`; every decision is stored once, and masked by time."""
        with torch.autocast(x.device.type, enabled=False):
            x, now, mask = x.float(), now.float(), mask.float()
            size = self.config.chunk_decisions
            before = (
                mask.cumsum(1) - mask
            ).long()  # number of each entry; of a hole: that of the next
            length = size * -(-x.shape[1] // size)
            slot = torch.where(mask > 0, before, length)  # holes: past the end, dropped below
            entries, time, stored = (
                part.new_zeros(len(x), length + 1, *part.shape[2:]).scatter(
                    1, slot.view(*slot.shape, *(1,) * (part.dim() - 2)).expand_as(part), part
                )[:, :length]
                for part in (self._entry(x), now, mask)
            )
            written = before[row, decision][:, None]
            number = torch.arange(length, device=x.device)
            newest = torch.div(written - 1, size, rounding_mode="floor")
            oldest = newest - self.config.chunks + 1
            chunk = torch.div(number, size, rounding_mode="floor")
            seen = stored[row] * (number < written) * (chunk >= oldest)
            age = torch.log1p((now[row, decision][:, None] - time[row]).clamp(min=0.0))
            chunks = Chunks(*(part.unflatten(1, (-1, size)) for part in (entries[row], age, seen)))
            asked = x[row, decision]
            return self._read(asked, self._entry(asked), chunks)

    def _entry(self, x: Tensor) -> Tensor:
        """Return decisions f32 [..., n, d] as entries f32 [..., w]."""
        entry: Tensor = self.input(self.norm(x.float()).flatten(-2))
        return entry

    def _read(self, x: Tensor, hidden: Tensor, chunks: Chunks) -> Retrieved:
        for layer in self.layers:
            hidden = layer(hidden, chunks)
        recalled = self.recalled(hidden)[:, None].expand_as(x)
        vector = self.standardize(self.output(hidden))
        return Retrieved(tokens=gate_mix(self.gate, x, recalled), vector=vector)
