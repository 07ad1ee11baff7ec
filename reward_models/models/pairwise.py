"""The default reward model: small, trained from scratch; it scores frames alone and in pairs.

The backbone is that of the small policy. A running maximum of the features, minus those of the
first frame, is its memory: a cue that went out still tells the right button. Losses are in
`reward_models.losses.pairwise`, training is in `training.reward_model`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from reward_models.core.interface import FrameScores, PairScores, Reference
from vla.contracts.config import PluginConfig, plugin
from vla.contracts.types import Frames
from vla.nn.context import Context, HasAttention, Retrieved
from vla.nn.text import SumEmbedding, TextEncoder


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the pairwise reward model."""

    cameras: tuple[str, ...] = ("front", "wrist")
    """Names of its cameras, in view order."""
    backbone: PluginConfig = plugin("vla.backbones", "tiny")
    """Images and text to one vector per frame."""
    memory_width: int = 64
    """Numbers of the memory that condition vision."""
    text_width: int = 32
    """Numbers of the instruction that condition vision."""
    width: int = 256
    """Width of the heads."""
    bins: int = 33
    """Bins of the distribution over progress, from 0 to 1."""
    goal_width: int = 8
    """Numbers of the arm's goal state that every frame predicts in training."""

    def build(self, tokenizer: Tokenizer | None = None) -> "PairwiseRewardModel":
        """Return a reward model with initial weights.

        Raises:
            ValueError: no cameras, or no tokenizer.
        """
        if not self.cameras or tokenizer is None:
            raise ValueError(
                "a pairwise reward model needs a camera and a tokenizer, got cameras "
                f"{self.cameras} and {'a' if tokenizer else 'no'} tokenizer; load a trained one, "
                "or train it"
            )
        return PairwiseRewardModel(self, tokenizer)


class PairwiseRewardModel(nn.Module):
    """Satisfies `reward_models.core.interface.RewardModelNetwork`."""

    def __init__(self, config: Config, tokenizer: Tokenizer) -> None:
        super().__init__()
        self.config, self.cameras = config, config.cameras
        self.text = TextEncoder(tokenizer)
        views, recalled, width = len(config.cameras), config.memory_width, config.width
        condition = recalled + config.text_width
        self.backbone = config.backbone.build(views, 0, self.text.vocabulary, condition)
        pooled = self.backbone.sizes(condition)[0]
        # One word in eight names the colour: in a mean it would be lost.
        self.words = SumEmbedding(self.text.vocabulary, config.text_width)
        self.standardize_text = nn.BatchNorm1d(config.text_width, affine=False)
        # Memory has a maximum for each place of the image: a change elsewhere hides no cue.
        self.num_features = prod(self.backbone.token_shape)
        self.recall = nn.Sequential(
            nn.Linear(self.num_features, 2 * recalled), nn.ReLU(), nn.Linear(2 * recalled, recalled)
        )
        # Contrast between memories is small against what they share (see vla.memory.bank).
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
        # For training alone: progress hardly teaches which object is meant, the goal of the arm
        # does, as actions do for a policy.
        self.goal = nn.Sequential(
            nn.Linear(pooled, width), nn.ReLU(), nn.Linear(width, config.goal_width)
        )
        self.register_buffer("levels", torch.linspace(0, 1, config.bins), persistent=False)

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of its input images."""
        return (self.config.backbone.image_px,) * 2

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.value.weight.device

    def initial_memory(self, batch: int) -> Tensor:
        """Return -inf, below every feature, [b, 2 m]."""
        return torch.full((batch, 2 * self.num_features), -torch.inf, device=self.device)

    def embed(self, frames: Frames, task: Sequence[str], memory: Tensor) -> tuple[Tensor, Tensor]:
        """See `RewardModelNetwork.embed`."""
        episode_index = torch.as_tensor(frames.episode_index, device=self.device)
        tokens, refine = self.encode(frames, task)
        is_first = torch.as_tensor(frames.time_s, device=self.device) == 0
        seen, new_memory = update_memory(tokens, episode_index, memory, is_first)
        return refine(seen), new_memory

    def embed_step(
        self, images: Tensor, token_ids: Tensor, memory: Tensor, is_first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """See `Exportable.embed_step`."""
        tokens, refine = self.encode_images(images, token_ids)
        seen, new_memory = update_memory_step(tokens, memory, is_first)
        return refine(seen), new_memory

    def score(self, frames: Tensor, first: Tensor, reference: Reference | None) -> FrameScores:
        """See `RewardModelNetwork.score`."""
        return self.score_features(self.features(frames, first, reference))

    def compare(
        self, a: Tensor, b: Tensor, first: Tensor, reference: Reference | None
    ) -> PairScores:
        """See `RewardModelNetwork.compare`."""
        features = (self.features(x, first, reference) for x in (a, b))
        return self.score_pairs(*features)

    # Also used in training:

    def encode(self, frames: Frames, task: Sequence[str]) -> tuple[Tensor, "Refinement"]:
        """Return the tokens of each frame [f, m], and their refinement by memory."""
        images = torch.as_tensor(frames.images, device=self.device)
        episode_index = torch.as_tensor(frames.episode_index, device=self.device)
        return self.encode_images(images, self.text(tuple(task), self.device)[episode_index])

    def encode_images(self, images: Tensor, token_ids: Tensor) -> tuple[Tensor, "Refinement"]:
        """Do what `encode` does, given u8 [f, v, h, w, 3] and token ids i64 [f, w]."""
        encoded = self.backbone.encode(images, images.new_zeros(len(images), 0).float(), token_ids)
        text = self.standardize_text(self.words(token_ids))
        return encoded.tokens.flatten(1), Refinement(self, encoded.tokens, (text, *encoded.cache))

    def features(self, frames: Tensor, first: Tensor, reference: Reference | None) -> Tensor:
        """Return the input of the heads for embeddings [n, d]: [n, w].

        `reference` may hold one episode for all ([k, d]) or one for each ([n, k, d]; NaN in the
        first place of its progress stands for none).
        """
        example = self._attend(frames, first, reference)
        return self.single(torch.cat([frames, first, frames - first, example], 1))

    def score_features(self, features: Tensor) -> FrameScores:
        """Return the scores of single frames."""
        probability = self.value(features).softmax(1)
        mean = probability @ self.levels
        variance = (probability * (self.levels - mean[:, None]) ** 2).sum(1)
        done, match = self.verdict(features).unbind(1)
        value = around_median(probability) @ self.levels
        return FrameScores(value, variance.clamp(min=0).sqrt(), done, match)

    def score_pairs(self, a: Tensor, b: Tensor) -> PairScores:
        """Return the scores of pairs: every term changes sign or place with the order."""
        forward = self.pair(torch.cat([a, b, b - a], 1))
        backward = self.pair(torch.cat([b, a, a - b], 1))
        potential = (self.potential(b) - self.potential(a))[:, 0]
        difference = torch.tanh(potential + (forward[:, 0] - backward[:, 0]))  # mirrored to the bit
        still = forward[:, 2] + backward[:, 2]
        return PairScores(difference, torch.stack([backward[:, 1], still, forward[:, 1]], 1))

    def _attend(self, frames: Tensor, first: Tensor, reference: Reference | None) -> Tensor:
        """Attend to a reference episode: [n, w + 1], the last number being its progress there."""
        if reference is None:
            return self.nothing_shown.expand(len(frames), -1)
        keys, progress = reference
        if keys.dim() == 2:
            keys, progress = keys[None], progress[None]
        none = progress[:, :1].isnan()
        progress = progress.nan_to_num()[..., None]
        query = self.ask(torch.cat([frames, frames - first], 1))
        score = (self.offer(keys) * query[:, None]).sum(2) / query.shape[1] ** 0.5
        weight = score.softmax(1)[..., None]
        value = (weight * self.tell(torch.cat([keys, progress], 2))).sum(1)
        attended = torch.cat([value, (weight * progress).sum(1)], 1)
        return torch.where(none, self.nothing_shown, attended)


def around_median(probability: Tensor) -> Tensor:
    """Return distributions over bins [n, bins], cut to the median bin and its neighbours.

    `losses.pairwise.two_hot` spreads one value over two bins, so the mean of the result is the
    median to a fraction of a bin. The mean of all bins would lie between 0 and 1 where the model is
    unsure whether all is done or nothing, and above 0 wherever 0 is likely.
    """
    bins = torch.arange(probability.shape[1], device=probability.device)
    median = (probability.cumsum(1) < 0.5).sum(1).clamp(max=len(bins) - 1)
    near = torch.where((bins - median[:, None]).abs() <= 1, probability, 0.0)
    return near / near.sum(1, keepdim=True)


class Refinement:
    """The backbone's second pass over encoded frames, conditioned on memory."""

    def __init__(
        self, reward_model: PairwiseRewardModel, tokens: Tensor, cache: tuple[Tensor, ...]
    ) -> None:
        self._reward_model, self._tokens, self._cache = reward_model, tokens, cache

    def only(self, frames: Tensor) -> "Refinement":
        """Return the refinement of some of the frames, i64 [q]."""
        cache = tuple(x[frames] for x in self._cache)
        return Refinement(self._reward_model, self._tokens[frames], cache)

    def __call__(self, memory: Tensor) -> Tensor:
        """Return embeddings [f, d] for memories [f, m]."""
        cache, retrieved = self._inputs(memory)
        context: Context = self._reward_model.backbone.refine(cache, retrieved)
        return context.pooled

    def with_attention(self, memory: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return embeddings, and where the backbone looks if it tells (`HasAttention`)."""
        backbone = self._reward_model.backbone
        if not isinstance(backbone, HasAttention):
            return self(memory), None
        context, attention = backbone.refine_with_attention(*self._inputs(memory))
        return context.pooled, attention

    def _inputs(self, memory: Tensor) -> tuple[tuple[Tensor, ...], Retrieved]:
        reward_model, (text, *cache) = self._reward_model, self._cache
        vector = torch.cat([reward_model.standardize(reward_model.recall(memory)), text], 1)
        return tuple(cache), Retrieved(self._tokens, vector)


def update_memory_step(tokens: Tensor, memory: Tensor, is_first: Tensor) -> tuple[Tensor, Tensor]:
    """Do what `update_memory` does for one frame per episode, in operators that export."""
    best, first = memory.chunk(2, 1)
    begins = is_first[:, None]
    first = torch.where(begins | first.isinf(), tokens, first)
    best = torch.where(begins, tokens, torch.maximum(best, tokens))
    return best - first, torch.cat([best, first], 1)


def update_memory(
    tokens: Tensor, episode_index: Tensor, memory: Tensor, is_first: Tensor
) -> tuple[Tensor, Tensor]:
    """Return by how much the maximum up to each frame exceeds its episode's first frame.

    The first frame is subtracted since it differs between episodes far more than a cue changes it.

    Args:
        tokens: [f, m], frames of an episode in order of time.
        episode_index: i64 [f].
        memory: [b, 2 m], the maximum so far and the first frame.
        is_first: bool [f], True where an episode begins: its memory is reset.

    Returns:
        [f, m] for every frame, and the memory [b, 2 m] after each episode's last one.
    """
    memory, previous_first = memory.chunk(2, 1)
    episodes, width = memory.shape
    place = torch.zeros_like(episode_index)
    count = torch.bincount(episode_index, minlength=episodes)
    order = torch.argsort(episode_index, stable=True)
    begin = count.cumsum(0) - count
    place[order] = (
        torch.arange(len(episode_index), device=tokens.device) - begin[episode_index[order]]
    )
    started = torch.zeros(episodes, dtype=torch.bool, device=tokens.device)
    started[episode_index[is_first]] = True
    memory = torch.where(started[:, None], -torch.inf, memory)
    opening = place == 0
    first = previous_first.index_put((episode_index[opening],), tokens[opening])
    first = torch.where(started[:, None] | previous_first.isinf(), first, previous_first)
    steps = int(place.max()) + 1 if len(tokens) else 0
    grid = tokens.new_full((episodes, steps + 1, width), -torch.inf)
    grid[:, 0] = memory
    grid = grid.index_put((episode_index, place + 1), tokens)
    best = grid.cummax(1).values
    after = best[torch.arange(episodes, device=tokens.device), count]
    return (
        best[episode_index, place + 1] - first[episode_index], torch.cat([after, first], 1)
    )  # fmt: skip
