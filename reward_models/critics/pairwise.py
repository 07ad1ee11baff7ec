"""The default critic: small, from scratch; frames are encoded once, judged alone and in pairs.

The backbone is that of the small policy; what was ever seen and was not there at first is kept as a
running maximum, so a cue that went out still tells which button is the right one. Losses are in
`reward_models.pairs`, training is in `training.critic`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from reward_models.critic import Change, Moment, Shown
from vla.contracts.config import PluginConfig, plugin
from vla.contracts.types import Frames
from vla.nn.context import Retrieved
from vla.nn.text import SumOfWords, TextEncoder


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the pairwise critic."""

    cameras: tuple[str, ...] = ("front", "wrist")
    """Cameras it looks through, in view order."""
    backbone: PluginConfig = plugin("vla.backbones", "tiny")
    """Images and text to one vector per frame."""
    memory_width: int = 64
    """Numbers that memory steers vision with."""
    text_width: int = 32
    """Numbers that the instruction steers vision with."""
    width: int = 256
    """Width of the heads."""
    bins: int = 33
    """Bins of the distribution over progress, from 0 to 1."""
    aims: int = 8
    """Numbers of the arm's state at the goal that training lets every frame foretell."""

    def build(self, tokenizer: Tokenizer | None = None) -> "PairwiseCritic":
        """Return a critic with fresh weights.

        Raises:
            ValueError: no cameras, or no tokenizer.
        """
        if not self.cameras or tokenizer is None:
            raise ValueError(
                f"a pairwise critic needs a camera and a tokenizer, got cameras {self.cameras} and "
                f"{'a' if tokenizer else 'no'} tokenizer; load a trained one, or train it"
            )
        return PairwiseCritic(self, tokenizer)


class PairwiseCritic(nn.Module):
    """Satisfies `reward_models.critic.Critic`."""

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.config, self.cameras = config, config.cameras
        self.text = TextEncoder(tokenizer)
        views, recalled, width = len(config.cameras), config.memory_width, config.width
        steer = recalled + config.text_width
        self.backbone = config.backbone.build(views, 0, self.text.vocabulary, steer)
        pooled = self.backbone.sizes(steer)[0]
        # One word in eight names the colour: a mean would drown it, and what memory says is louder.
        self.words = SumOfWords(self.text.vocabulary, config.text_width)
        self.standardize_text = nn.BatchNorm1d(config.text_width, affine=False)
        # Each place of the picture keeps its own: what comes into view elsewhere hides no cue.
        self.kept = prod(self.backbone.token_shape)
        self.recall = nn.Sequential(
            nn.Linear(self.kept, 2 * recalled), nn.ReLU(), nn.Linear(2 * recalled, recalled)
        )
        # Contrast between memories is small beside what they share (see vla.memory.bank).
        self.standardize = nn.BatchNorm1d(recalled, affine=False)
        self.ask = nn.Linear(2 * pooled, width)
        self.offer = nn.Linear(pooled, width)
        self.tell = nn.Linear(pooled + 1, width)
        self.nothing_shown = nn.Parameter(torch.zeros(width + 1))
        self.single = nn.Sequential(
            nn.Linear(3 * pooled + width + 1, width), nn.ReLU(),
            nn.Linear(width, width), nn.ReLU(),
        )  # fmt: skip
        self.value = nn.Linear(width, config.bins)
        self.verdict = nn.Linear(width, 2)
        self.potential = nn.Linear(width, 1)
        self.pair = nn.Sequential(nn.Linear(3 * width, width), nn.ReLU(), nn.Linear(width, 3))
        # Only training asks it. Progress says little of which thing is meant; where the arm will be
        # when the work is done says it all, as actions do when a policy learns.
        self.goal = nn.Sequential(
            nn.Linear(pooled, width), nn.ReLU(), nn.Linear(width, config.aims)
        )
        self.register_buffer("levels", torch.linspace(0, 1, config.bins), persistent=False)

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of the images it works on."""
        return (self.config.backbone.image_px,) * 2

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.value.weight.device

    # --- the contract --------------------------------------------------------------------------

    def remember(self, batch: int) -> Tensor:
        """Return the memory of episodes that have not begun: less than anything seen."""
        return torch.full((batch, 2 * self.kept), -torch.inf, device=self.device)

    def embed(self, frames: Frames, task: Sequence[str], memory: Tensor) -> tuple[Tensor, Tensor]:
        """See `Critic.embed`."""
        row = torch.as_tensor(frames.row, device=self.device)
        kept, look = self.encode(frames, task)
        fresh = torch.as_tensor(frames.time_s, device=self.device) == 0
        seen, after = news(kept, row, memory, fresh)
        return look(seen), after

    def watch(
        self, images: Tensor, words: Tensor, memory: Tensor, fresh: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Exportable.watch`."""
        kept, look = self.look(images, words)
        seen, after = newer(kept, memory, fresh)
        return look(seen), after

    def judge(self, frames: Tensor, first: Tensor, shown: Shown | None) -> Moment:
        """See `Critic.judge`."""
        return self.judgement(self.read(frames, first, shown))

    def compare(self, a: Tensor, b: Tensor, first: Tensor, shown: Shown | None) -> Change:
        """See `Critic.compare`."""
        return self.change(self.read(a, first, shown), self.read(b, first, shown))

    # --- what training uses, too ---------------------------------------------------------------

    def encode(self, frames: Frames, task: Sequence[str]) -> tuple[Tensor, "Look"]:
        """Return what to keep of each frame [f, m], and the second look that memory steers."""
        images = torch.as_tensor(frames.images, device=self.device)
        row = torch.as_tensor(frames.row, device=self.device)
        return self.look(images, self.text(tuple(task), self.device)[row])

    def look(self, images: Tensor, words: Tensor) -> tuple[Tensor, "Look"]:
        """Do what `encode` does, given u8 [f, v, h, w, 3] and token ids i64 [f, w]."""
        encoded = self.backbone.encode(images, images.new_zeros(len(images), 0).float(), words)
        told = self.standardize_text(self.words(words))
        return encoded.tokens.flatten(1), Look(self, encoded.tokens, (told, *encoded.cache))

    def read(self, frames: Tensor, first: Tensor, shown: Shown | None) -> Tensor:
        """Return what the heads see of embeddings [n, d]: [n, w].

        `shown` may hold one reference for all ([k, d]) or one for each ([n, k, d]; a progress of
        NaN in its first place says that this one has none).
        """
        example = self._consult(frames, first, shown)
        return self.single(torch.cat([frames, first, frames - first, example], 1))

    def value_logits(self, seen: Tensor) -> Tensor:
        """Return logits over `levels` [n, bins]."""
        return self.value(seen)

    def judgement(self, seen: Tensor) -> Moment:
        """Return what the heads say of single moments."""
        probability = self.value(seen).softmax(1)
        mean = probability @ self.levels
        variance = (probability * (self.levels - mean[:, None]) ** 2).sum(1)
        done, match = self.verdict(seen).unbind(1)
        value = middle(probability) @ self.levels
        return Moment(value, variance.clamp(min=0).sqrt(), done, match)

    def change(self, a: Tensor, b: Tensor) -> Change:
        """Return what the heads say of pairs: every term changes sign or place with the order."""
        forth = self.pair(torch.cat([a, b, b - a], 1))
        back = self.pair(torch.cat([b, a, a - b], 1))
        potential = (self.potential(b) - self.potential(a))[:, 0]
        difference = torch.tanh(potential + (forth[:, 0] - back[:, 0]))  # mirrored to the bit
        still = forth[:, 2] + back[:, 2]
        return Change(difference, torch.stack([back[:, 1], still, forth[:, 1]], 1))

    def _consult(self, frames: Tensor, first: Tensor, shown: Shown | None) -> Tensor:
        """Attend to a reference episode: [n, w + 1], the last number being its progress there."""
        if shown is None:
            return self.nothing_shown.expand(len(frames), -1)
        keys, progress = shown
        if keys.dim() == 2:
            keys, progress = keys[None], progress[None]
        none = progress[:, :1].isnan()
        progress = progress.nan_to_num()[..., None]
        ask = self.ask(torch.cat([frames, frames - first], 1))
        score = (self.offer(keys) * ask[:, None]).sum(2) / ask.shape[1] ** 0.5
        weight = score.softmax(1)[..., None]
        told = (weight * self.tell(torch.cat([keys, progress], 2))).sum(1)
        found = torch.cat([told, (weight * progress).sum(1)], 1)
        return torch.where(none, self.nothing_shown, found)


def middle(probability: Tensor) -> Tensor:
    """Return what is left of distributions over bins [n, bins] around their median, scaled to 1.

    The median bin and its neighbours: `pairs.two_hot` spreads one value over two bins, so the mean
    of these is the median to a fraction of a bin. The mean of all bins lies between "all is done"
    and "nothing is" where the critic wavers, which is never true, and above 0 wherever 0 is likely.
    """
    bins = torch.arange(probability.shape[1], device=probability.device)
    median = (probability.cumsum(1) < 0.5).sum(1).clamp(max=len(bins) - 1)
    kept = torch.where((bins - median[:, None]).abs() <= 1, probability, 0.0)
    return kept / kept.sum(1, keepdim=True)


class Look:
    """The second look at frames already encoded, steered by what memory holds."""

    def __init__(self, critic: PairwiseCritic, tokens: Tensor, cache: tuple[Tensor, ...]) -> None:
        self._critic, self._tokens, self._cache = critic, tokens, cache

    def only(self, frames: Tensor) -> "Look":
        """Return the look at some of the frames, i64 [q]."""
        return Look(self._critic, self._tokens[frames], tuple(x[frames] for x in self._cache))

    def __call__(self, seen: Tensor) -> Tensor:
        """Return embeddings [f, d] for memories [f, m]."""
        critic, (told, *cache) = self._critic, self._cache
        vector = torch.cat([critic.standardize(critic.recall(seen)), told], 1)
        return critic.backbone.refine(tuple(cache), Retrieved(self._tokens, vector)).pooled


def newer(kept: Tensor, memory: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:
    """Return what `news` does where every episode has one frame, in operators that export.

    Args:
        kept: [b, m].
        memory: [b, 2 m], the maximum so far and the first frame.
        fresh: bool [b], True where an episode begins: what came before is dropped.
    """
    best, first = memory.chunk(2, 1)
    begins = fresh[:, None]
    first = torch.where(begins | first.isinf(), kept, first)
    best = torch.where(begins, kept, torch.maximum(best, kept))
    return best - first, torch.cat([best, first], 1)


def news(kept: Tensor, row: Tensor, memory: Tensor, fresh: Tensor) -> tuple[Tensor, Tensor]:
    """Return by how much the maximum up to each frame exceeds its episode's first frame.

    What was there from the beginning differs between episodes far more than a cue does.

    Args:
        kept: [f, m], frames of an episode in order of time.
        row: i64 [f], episode of each frame.
        memory: [b, 2 m], the maximum so far and the first frame.
        fresh: bool [f], True where an episode begins: what came before is dropped.

    Returns:
        [f, m] for every frame, and [b, 2 m] after each episode's last one.
    """
    memory, begun = memory.chunk(2, 1)
    rows, width = memory.shape
    place = torch.zeros_like(row)
    count = torch.bincount(row, minlength=rows)
    order = torch.argsort(row, stable=True)
    begin = count.cumsum(0) - count
    place[order] = torch.arange(len(row), device=row.device) - begin[row[order]]
    started = torch.zeros(rows, dtype=torch.bool, device=row.device)
    started[row[fresh]] = True
    memory = torch.where(started[:, None], -torch.inf, memory)
    opening = place == 0
    first = begun.index_put((row[opening],), kept[opening])
    first = torch.where(started[:, None] | begun.isinf(), first, begun)
    steps = int(place.max()) + 1 if len(row) else 0
    grid = kept.new_full((rows, steps + 1, width), -torch.inf)
    grid[:, 0] = memory
    grid = grid.index_put((row, place + 1), kept)
    best = grid.cummax(1).values
    after = best[torch.arange(rows, device=row.device), count]
    return best[row, place + 1] - first[row], torch.cat([after, first], 1)
