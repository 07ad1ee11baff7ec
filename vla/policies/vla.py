"""Vision-language-action policy composed of a backbone, a memory and an action head.

It holds no state between calls: memory, noise and time are arguments. Inputs and outputs are in
physical units, networks work in normalised ones.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from vla.contracts.config import PluginConfig, plugin
from vla.contracts.specs import RobotSpec
from vla.contracts.types import (
    ActionChunk,
    Array,
    DenoisingChain,
    EpisodeBatch,
    Observation,
    PolicyState,
    Prefix,
)
from vla.nn.context import Context, Encoded, HasAttention, Retrieved, pools_features
from vla.nn.denoisers import widened
from vla.nn.grounding import grounding_loss
from vla.nn.normalize import NormalizationStatistics, Normalizer
from vla.nn.text import TextEncoder
from vla.policies import _settings
from vla.runtime import prefixes


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the policy."""

    chunk_size: int = 16
    """Actions predicted per decision."""
    n_action_steps: int = 8
    """Actions executed before the next decision: the period of memory writes."""
    cameras: tuple[str, ...] = ("front", "wrist")
    """Cameras the policy uses, in view order; a subset of the robot's."""
    max_action_dim: int = 0
    """Channels of the networks; states and actions of an arm with fewer are padded with zeros. 0
    for the arm's."""
    backbone: PluginConfig = plugin("vla.backbones", "tiny")
    """Images, text and proprioception to tokens."""
    memory: PluginConfig = plugin("vla.memory", "bank")
    """State from decision to decision."""
    head: PluginConfig = plugin("vla.heads", "diffusion")
    """Tokens to actions."""

    @property
    def image_px(self) -> int:
        """Side of the images that data sets are read with."""
        return self.backbone.image_px

    @property
    def source(self) -> dict[str, Any]:
        """Name and hash of pretrained weights; empty for none."""
        return self.backbone.source

    def tokenizer(self, instructions: Iterable[str]) -> Tokenizer:
        """Return the tokenizer of instructions."""
        return self.backbone.tokenizer(instructions)

    def check(self) -> None:
        """Check its parts; see `PluginConfig.check`."""
        for part in (self.backbone, self.memory, self.head):
            part.check()

    def build(
        self, robot: RobotSpec, statistics: NormalizationStatistics, tokenizer: Tokenizer
    ) -> "VLAPolicy":
        """Return a policy with random weights; ValueError as `_settings.views`."""
        _settings.views(self, robot)
        return VLAPolicy(self, robot, statistics, tokenizer)


@dataclass(frozen=True, kw_only=True)
class Embodiment:
    """An arm that a policy drives, and how its numbers are scaled."""

    robot: RobotSpec
    """The arm."""
    statistics: NormalizationStatistics
    """Of its data."""


class VLAPolicy(nn.Module):
    """Satisfies `TrainablePolicy`; arrays may be numpy or torch, results are torch tensors."""

    def __init__(
        self,
        config: Config,
        robot: RobotSpec,
        statistics: NormalizationStatistics,
        tokenizer: Tokenizer,
    ) -> None:
        super().__init__()
        self.robot, self.statistics = robot, statistics
        self.text = TextEncoder(tokenizer)
        self.normalizer = Normalizer(statistics)
        channels = len(robot.channels)
        if config.max_action_dim and config.max_action_dim < channels:
            raise ValueError(
                f"policy.max_action_dim: got {config.max_action_dim}, expected 0 or at least the "
                f"{channels} channels of {robot.name}"
            )
        self.width = max(config.max_action_dim, channels)
        backbone = config.backbone
        inputs = (len(config.cameras), self.width, self.text.vocabulary)
        tokens = getattr(backbone, "token_shape", None)  # a pretrained one is too large to probe
        self.memory = config.memory.build(*(tokens or backbone.build(*inputs, 0).token_shape))
        size = self.memory.vector_size
        self.backbone = backbone.build(*inputs, size)
        self.config = replace(config, backbone=self.backbone.config)
        self.head = config.head.build(config.chunk_size, self.width, self.backbone.sizes(size))
        self.head.actions = channels
        self.views = _settings.views(config, robot)
        self.co_embodiments: tuple[Embodiment, ...] = ()
        """Further arms that these weights drive; see `for_robot`."""
        self.grounding_loss_coef = 0.0
        """Weight of `grounding_loss` in `bc_loss`; set by the algorithm."""
        self.stochastic_denoising = True
        """Whether `sample` draws noise in every denoising step, as policy gradients need it; set by
        the algorithm."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.normalizer.state_mean.device

    @property
    def n_action_steps(self) -> int:
        """Actions executed before the next decision."""
        return self.config.n_action_steps

    @property
    def remembers(self) -> bool:
        """Whether a decision depends on earlier observations."""
        return self.memory.remembers

    @property
    def has_queries(self) -> bool:
        """Whether its backbone has queries, which can be told where to look."""
        return isinstance(self.backbone, HasAttention) and self.backbone.num_queries > 0

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of one row of `noise`: (denoising steps + 1, chunk, channels)."""
        return self.head.noise_shape

    @property
    def max_prefix_len(self) -> int:
        """Longest prefix that it was trained with, in actions; 0 for none."""
        return self.head.config.max_prefix_len

    def with_steps(self, steps: int) -> "VLAPolicy":
        """Return a policy with these weights that denoises in another number of steps.

        Raises:
            ValueError: it has a separate network for its last steps.
        """
        expected = self.head.config.num_inference_steps
        if steps == expected:
            return self
        if self.head.config.ft_denoising_steps:
            raise ValueError(
                f"steps: got {steps}, expected {expected}: a policy with a separate network "
                "for the last steps keeps its number of steps"
            )
        config = replace(self.config, head=replace(self.head.config, num_inference_steps=steps))
        other = config.build(self.robot, self.statistics, self.text.tokenizer)
        other.load_state_dict(self.state_dict())
        other.co_embodiments = self.co_embodiments
        return other.to(self.device).train(self.training)

    def for_robot(self, name: str) -> "VLAPolicy":
        """Return this policy for one of the arms that it drives; the weights are shared.

        Raises:
            ValueError: it does not drive that arm.
        """
        if name == self.robot.name:
            return self
        arms = {arm.robot.name: arm for arm in self.co_embodiments}
        if name not in arms:
            known = ", ".join([self.robot.name, *arms])
            raise ValueError(f"robot: got {name!r}, this policy drives {known}")
        robot, statistics = arms[name].robot, arms[name].statistics
        view, head = copy.copy(self), copy.copy(self.head)
        head.actions = len(robot.channels)
        normalizer = Normalizer(statistics).to(self.device)
        # A copied module shares the table of its parts; the view gets one of its own.
        view._modules = {**self._modules, "head": head, "normalizer": normalizer}  # noqa: SLF001
        view.robot, view.statistics = robot, statistics
        view.views = _settings.views(self.config, robot)
        own = Embodiment(robot=self.robot, statistics=self.statistics)
        view.co_embodiments = (own, *(arm for arm in arms.values() if arm.robot.name != name))
        return view

    def initial_state(self, batch: int) -> PolicyState:
        """Return the empty memory of `batch` arms."""
        return PolicyState(tensors=self.memory.initial(batch, self.device))

    @torch.no_grad()
    def act(
        self, obs: Observation, state: PolicyState, noise: Array, prefix: Prefix | None = None
    ) -> tuple[ActionChunk, PolicyState]:
        """See `Policy.act`; deterministic given the noise.

        Raises:
            ValueError: the policy does not support the prefix, or `obs.proprio` is not finite.
        """
        _check_finite(obs.proprio)
        fixed = None if prefix is None else self.normalized_prefix(prefix, len(obs.time_s))
        context, state = self._perceive(obs, state)
        latents, _ = self.head.sample(context, self._tensor(noise), False, fixed)
        return self.chunk_of(obs, latents[:, -1]), state

    @torch.no_grad()
    def observe(self, obs: Observation, state: PolicyState) -> PolicyState:
        """Return the state after a decision whose action nobody needs: that of `act`, sooner."""
        _check_finite(obs.proprio)
        encoded, before, now = self._encode(obs, state)
        after = self.memory.write(before, encoded.tokens, now, torch.ones_like(now))
        return PolicyState(tensors=after)

    @torch.no_grad()
    def sample(
        self, obs: Observation, state: PolicyState, noise: Array
    ) -> tuple[ActionChunk, DenoisingChain, PolicyState]:
        """See `TrainablePolicy.sample`; ValueError as `act`."""
        _check_finite(obs.proprio)
        context, state = self._perceive(obs, state)
        noise = self._tensor(noise)
        latents, log_prob = self.head.sample(context, noise, self.stochastic_denoising)
        chain = DenoisingChain(latents=latents, log_prob=log_prob)
        return self.chunk_of(obs, latents[:, -1]), chain, state

    def normalized_prefix(self, prefix: Prefix, rows: int) -> Prefix:
        """Return a prefix of `rows` rows as tensors in normalised units.

        Raises:
            ValueError: the policy does not support it.
        """
        prefixes.check(prefix, self.max_prefix_len, (rows, *self.noise_shape[1:]))
        values = self.normalizer.action(self._tensor(prefix.values))
        return Prefix(values=values, mask=self._tensor(prefix.mask), guided=prefix.guided)

    def log_prob(self, obs: Observation, state: PolicyState, chain: DenoisingChain) -> Tensor:
        """See `TrainablePolicy.log_prob`; `state` is the one passed to `sample`."""
        context, _ = self._perceive(obs, state)
        return self.head.log_prob(context, self._tensor(chain.latents))

    def bc_loss(
        self, batch: EpisodeBatch, generator: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See `TrainablePolicy.bc_loss`; one parallel pass over whole episodes.

        The losses of the shares of a batch add up to the loss of the batch.
        """
        cache, retrieved = self._read_batch(batch)
        context, attention = self._refine(cache, retrieved)
        clean = self.normalizer.action(self._tensor(batch.actions))
        random, shard, weight = generator, batch.shard, self._tensor(batch.weight)
        if shard is not None:  # a row's noise must not depend on the processes
            random = self.head.draw(shard.num_losses, generator).rows(shard.first_loss, len(weight))
        loss = self.head.loss(clean, self._tensor(batch.action_is_pad), context, random)
        total = weight.sum().clamp(min=1e-6) if shard is None else shard.total_weight
        mean = (loss * weight).sum() / total
        parts = {"loss": mean.detach()}
        if attention is not None and batch.referents is not None and self.grounding_loss_coef:
            where = self._tensor(batch.referents)
            if batch.grounding_weight is not None:
                weight = self._tensor(batch.grounding_weight)
                total = weight.sum().clamp(min=1e-6) if shard is None else total
            grounding = (grounding_loss(attention, where) * weight).sum() / total
            parts["grounding_loss"] = grounding.detach()
            mean = mean + self.grounding_loss_coef * grounding
        return mean, parts

    def _refine(self, cache: Any, retrieved: Retrieved) -> tuple[Context, Tensor | None]:
        """Return the head's condition, and where the backbone looks if it tells."""
        if isinstance(self.backbone, HasAttention):
            return self.backbone.refine_with_attention(cache, retrieved)
        return self.backbone.refine(cache, retrieved), None

    @torch.no_grad()
    def attention(self, batch: EpisodeBatch) -> Tensor | None:
        """Return where the backbone looks at the batch's loss frames, as `HasAttention` says; None
        if it tells nothing.
        """
        return self._refine(*self._read_batch(batch))[1]

    def contexts(self, batch: EpisodeBatch) -> Context:
        """Return the head's condition at the batch's loss frames, through the memory."""
        return self.backbone.refine(*self._read_batch(batch))

    @torch.no_grad()
    def batch_features(self, batch: EpisodeBatch) -> Tensor:
        """Return `features` at the batch's loss frames, f32 [m, d]."""
        return self._pool_inputs(*self._read_batch(batch))

    def _read_batch(self, batch: EpisodeBatch) -> tuple[Any, Retrieved]:
        """Encode a batch and read the memory at its loss frames."""
        row, decision = self._tensor(batch.episode_index), self._tensor(batch.decision)
        query = self._tensor(batch.loss_index)
        if batch.frame_task is None:
            token_ids = self.text(batch.task, self.device)[row]
        else:
            token_ids = self.text(batch.frame_task, self.device)
        proprio = self.padded(self.normalizer.state(self._tensor(batch.proprio)))
        if batch.features is None:
            encoded = self.backbone.encode(self._tensor(batch.images), proprio, token_ids)
        else:
            features = {name: self._tensor(part) for name, part in batch.features.items()}
            encoded = self.backbone.encode_from(features, proprio, token_ids)
        # From the batch on the CPU: reading the number from a GPU would wait for it.
        rows, steps = len(batch.task), int(batch.decision.max()) + 1 if len(decision) else 1
        tokens = _padded(encoded.tokens, row, decision, rows, steps)
        now = _padded(self._tensor(batch.step_index), row, decision, rows, steps)
        mask = _padded(torch.ones_like(row, dtype=torch.float32), row, decision, rows, steps)
        retrieved = self.memory.read_episodes(tokens, now, mask, row[query], decision[query])
        return tuple(part[query] for part in encoded.cache), retrieved

    @torch.no_grad()
    def features(self, obs: Observation, state: PolicyState) -> tuple[Tensor, PolicyState]:
        """Return what the last layers map to a chunk, f32 [b, d], and the state after the decision.

        It depends on no weight that `context_of` or the head has: fine-tuning these, an algorithm
        keeps features instead of images.
        """
        cache, retrieved, after = self._read(obs, state)
        return self._pool_inputs(cache, retrieved), after

    def context_of(self, features: Tensor) -> Context:
        """Return the head's condition from features f32 [b, d], without tokens and memory."""
        empty = features.new_zeros(len(features), 0)
        pooled = self.backbone.pool(features) if pools_features(self.backbone) else features
        return Context(pooled, empty, empty)

    def _pool_inputs(self, cache: Any, retrieved: Retrieved) -> Tensor:
        if pools_features(self.backbone):
            return self.backbone.pool_inputs(cache, retrieved)
        return self.backbone.refine(cache, retrieved).pooled

    def _perceive(self, obs: Observation, state: PolicyState) -> tuple[Context, PolicyState]:
        """Return the head's condition and the state after: a decision without its action."""
        cache, retrieved, after = self._read(obs, state)
        return self.backbone.refine(cache, retrieved), after

    def _read(self, obs: Observation, state: PolicyState) -> tuple[Any, Retrieved, PolicyState]:
        """Encode, reset, read and write; see `_read_batch`."""
        encoded, before, now = self._encode(obs, state)
        retrieved = self.memory.read(before, encoded.tokens, now)
        after = self.memory.write(before, encoded.tokens, now, torch.ones_like(now))
        return encoded.cache, retrieved, PolicyState(tensors=after)

    def _encode(
        self, obs: Observation, state: PolicyState
    ) -> tuple[Encoded, dict[str, Tensor], Tensor]:
        """Encode, and forget where an episode begins; return the time in control steps as well."""
        images = self._tensor(obs.images)[:, self.views]
        proprio = self.padded(self.normalizer.state(self._tensor(obs.proprio)))
        time_s = self._tensor(obs.time_s)
        encoded = self.backbone.encode(images, proprio, self.text(obs.task, self.device))
        now = (time_s * self.robot.control_hz).float()
        before = {
            name: forget(self._tensor(state[name]), time_s == 0)
            for name in self.memory.state_shapes()
        }
        return encoded, before, now

    def padded(self, proprio: Tensor) -> Tensor:
        """Return normalised channel positions f32 [b, s] as the backbone reads them."""
        return widened(proprio, self.width)

    def chunk_of(self, obs: Observation, clean: Tensor) -> ActionChunk:
        """Return normalised actions f32 [b, k, u] in physical units, within the arm's limits."""
        low, high = (torch.tensor(x, device=self.device) for x in (self.robot.low, self.robot.high))
        values = torch.minimum(torch.maximum(self.normalizer.action_inverse(clean), low), high)
        return ActionChunk(values=values, start_s=self._tensor(obs.time_s))

    def _tensor(self, value: Any) -> Tensor:
        return torch.as_tensor(value, device=self.device)


def _check_finite(proprio: Array) -> None:
    """Refuse what a memory would never forget."""
    if isinstance(proprio, FakeTensor):  # of a sketch, which holds no numbers
        return
    is_finite = torch.isfinite if isinstance(proprio, Tensor) else np.isfinite
    if not is_finite(proprio).all():
        raise ValueError("proprio: is not finite; hold the arm, and observe again")


def forget(part: Tensor, first: Tensor) -> Tensor:
    """Zero the rows that start an episode; a product would keep NaN."""
    return part.masked_fill(first.view(-1, *(1,) * (part.dim() - 1)), 0.0)


def _padded(flat: Tensor, row: Tensor, decision: Tensor, rows: int, steps: int) -> Tensor:
    """Return [rows, steps, ...] with flat frames at their episode and decision, zero elsewhere."""
    return flat.new_zeros(rows, steps, *flat.shape[1:]).index_put((row, decision), flat)
