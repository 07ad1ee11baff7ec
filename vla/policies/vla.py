"""Vision-language-action policy: backbone, memory and action head, composed.

It holds no state between calls: memory, noise and time are arguments. Units are physical at its
edges and normalised inside.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from vla import prefixes
from vla.contracts.config import PluginConfig, plugin
from vla.contracts.specs import RobotSpec
from vla.contracts.types import (
    ActionChunk,
    Array,
    DenoiseTrace,
    EpisodeBatch,
    Observation,
    PolicyState,
    Prefix,
)
from vla.nn.bank_ops import Slots
from vla.nn.context import Context, Settled
from vla.nn.steering import Steering, SteeringConfig
from vla.nn.text import TextEncoder
from vla.normalize import Normalizer, Statistics
from vla.policies import _settings


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of the policy."""

    chunk: int = 16
    """Actions predicted per decision."""
    execute: int = 8
    """Actions executed before the next decision: the period of memory writes."""
    cameras: tuple[str, ...] = ("front", "wrist")
    """Cameras it looks through, in view order; a subset of the robot's."""
    backbone: PluginConfig = plugin("vla.backbones", "tiny")
    """Images, text and proprioception to tokens."""
    memory: PluginConfig = plugin("vla.memory", "bank")
    """What is carried from decision to decision."""
    head: PluginConfig = plugin("vla.heads", "diffusion")
    """Tokens to actions."""
    steering: SteeringConfig = field(default_factory=SteeringConfig)
    """Who chooses the noise that the head starts from."""

    @property
    def image_px(self) -> int:
        """Side of the pictures that data sets are read with."""
        return self.backbone.image_px

    @property
    def source(self) -> dict[str, Any]:
        """Name and hash of pretrained weights; empty for none."""
        return self.backbone.source

    def tokenizer(self, instructions: Iterable[str]) -> Tokenizer:
        """Return what turns instructions into numbers."""
        return self.backbone.tokenizer(instructions)

    def check(self) -> None:
        """See `PluginConfig.check`: that of its parts."""
        for part in (self.backbone, self.memory, self.head):
            part.check()

    def build(self, robot: RobotSpec, statistics: Statistics, tokenizer: Tokenizer) -> "VLAPolicy":
        """Return a policy with fresh weights.

        Raises:
            ValueError: a camera the robot does not have, or more actions executed than predicted.
        """
        _settings.views(self, robot)
        return VLAPolicy(self, robot, statistics, tokenizer)


class VLAPolicy(nn.Module):
    """Satisfies `TrainablePolicy`; arrays may be numpy or torch, results are torch tensors."""

    def __init__(
        self, config: Config, robot: RobotSpec, statistics: Statistics, tokenizer: Tokenizer
    ) -> None:
        super().__init__()
        self.robot, self.statistics = robot, statistics
        self.text = TextEncoder(tokenizer)
        self.normalizer = Normalizer(statistics)
        channels = len(robot.channels)
        shape = config.backbone  # tokens and widths are the backbone's to say
        given = (len(config.cameras), channels, self.text.vocabulary)
        tokens = getattr(shape, "token_shape", None)  # a pretrained one is not built for a probe
        self.memory = config.memory.build(*(tokens or shape.build(*given, 0).token_shape))
        size = self.memory.vector_size
        self.backbone = shape.build(*given, size)
        self.config = replace(config, backbone=self.backbone.config)
        self.head = config.head.build(config.chunk, channels, self.backbone.sizes(size))
        self.views = _settings.views(config, robot)
        self.steering: Steering | None = None
        if config.steering.width:
            self.steer_(config.steering)

    def steer_(self, config: SteeringConfig) -> None:
        """Let a fresh network choose the noise from now on.

        Raises:
            ValueError: more candidates than there is noise for.
        """
        features = self.backbone.sizes(self.memory.vector_size)[0]
        self.config = replace(self.config, steering=config)
        self.steering = Steering(config, features, self.noise_shape, self.config.execute)
        self.steering.to(self.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.normalizer.state_mean.device

    @property
    def execute(self) -> int:
        """Actions executed before the next decision."""
        return self.config.execute

    @property
    def remembers(self) -> bool:
        """Whether a decision depends on what was seen before it."""
        return self.memory.remembers

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of one row of `noise`: (denoising steps + 1, chunk, channels)."""
        return self.head.noise_shape

    @property
    def prefix(self) -> int:
        """Most actions of a prefix that it was trained to go on from; 0 for none."""
        return self.head.config.prefix if self.steering is None else 0

    def with_steps(self, steps: int) -> "VLAPolicy":
        """Return a policy with these weights that denoises in another number of steps.

        Raises:
            ValueError: it is steered, or has steps with a network of their own.
        """
        if steps == self.head.config.steps:
            return self
        if self.steering is not None or self.head.config.tuned:
            raise ValueError(
                f"steps: got {steps}; a policy that is steered, or has a network of its own for "
                f"the last steps, denoises in {self.head.config.steps} and in no other number"
            )
        config = replace(self.config, head=replace(self.head.config, steps=steps))
        other = config.build(self.robot, self.statistics, self.text.tokenizer)
        other.load_state_dict(self.state_dict())
        return other.to(self.device).train(self.training)

    def initial_state(self, batch: int) -> PolicyState:
        """Return the empty memory of `batch` arms."""
        return _to_state(self.memory.initial(batch, self.device))

    @torch.no_grad()
    def act(
        self, obs: Observation, state: PolicyState, noise: Array, prefix: Prefix | None = None
    ) -> tuple[ActionChunk, PolicyState]:
        """See `Policy.act`; deterministic given the noise.

        Raises:
            ValueError: a prefix that it cannot go on from.
        """
        settled = None if prefix is None else self.settled(prefix, len(obs.time_s))
        context, state = self._perceive(obs, state)
        latents, _ = self.denoise(context, self._tensor(noise), False, settled)
        return self._chunk(obs, latents[:, -1]), state

    @torch.no_grad()
    def sample(
        self, obs: Observation, state: PolicyState, noise: Array
    ) -> tuple[ActionChunk, DenoiseTrace, PolicyState]:
        """See `TrainablePolicy.sample`."""
        context, state = self._perceive(obs, state)
        latents, log_prob = self.denoise(context, self._tensor(noise), True)
        trace = DenoiseTrace(latents=latents, log_prob=log_prob)
        return self._chunk(obs, latents[:, -1]), trace, state

    def denoise(
        self, context: Context, noise: Tensor, stochastic: bool, settled: Settled | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return latents f32 [b, steps + 1, k, u] and log-probabilities f32 [b, steps] of a chain;
        noise as in `Policy.act`.
        """
        if self.steering is not None:
            return self.steering.sample(self.head, context, noise, stochastic)
        return self.head.sample(context, noise, stochastic, settled)

    def settled(self, prefix: Prefix, rows: int) -> Settled:
        """Return a prefix as the head takes it.

        Raises:
            ValueError: the policy cannot go on from it.
        """
        if self.steering is not None:
            raise ValueError("prefix: a steered policy goes on from none; use another mode")
        prefixes.check(prefix, self.prefix, (rows, *self.noise_shape[1:]))
        values = self.normalizer.action(self._tensor(prefix.values))
        return Settled(values, self._tensor(prefix.weight), prefix.guided)

    def log_prob(self, obs: Observation, state: PolicyState, trace: DenoiseTrace) -> Tensor:
        """See `TrainablePolicy.log_prob`; `state` is the one `sample` was given.

        Raises:
            ValueError: the policy is steered: no transition is drawn, none has a density.
        """
        if self.steering is not None:
            raise ValueError("log_prob: a steered policy denoises without noise of its own")
        context, _ = self._perceive(obs, state)
        return self.head.log_prob(context, self._tensor(trace.latents))

    def bc_loss(
        self, batch: EpisodeBatch, generator: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """See `TrainablePolicy.bc_loss`; one parallel pass over whole episodes. Losses of the
        shares of a batch add up to that of the batch.
        """
        context = self.contexts(batch)
        clean = self.normalizer.action(self._tensor(batch.actions))
        random, share, weight = generator, batch.share, self._tensor(batch.weight)
        if share is not None:  # all is drawn, or the noise of a row would depend on who draws it
            random = self.head.draw(share.queries, generator).rows(share.query, len(weight))
        loss = self.head.loss(clean, self._tensor(batch.pad), context, random)
        total = weight.sum().clamp(min=1e-6) if share is None else share.weight
        mean = (loss * weight).sum() / total
        return mean, {"loss": mean.detach()}

    def contexts(self, batch: EpisodeBatch) -> Context:
        """Return what the head is conditioned on at the batch's queries, through the memory."""
        row, decision = self._tensor(batch.row), self._tensor(batch.decision)
        query = self._tensor(batch.query)
        words = self.text(batch.task, self.device)[row]
        proprio = self.normalizer.state(self._tensor(batch.proprio))
        if batch.features is None:
            encoded = self.backbone.encode(self._tensor(batch.images), proprio, words)
        else:
            seen = {name: self._tensor(part) for name, part in batch.features.items()}
            encoded = self.backbone.encode_from(seen, proprio, words)
        # Of the batch as it was given: on a GPU the number would have to come back from there.
        rows, steps = len(batch.task), int(batch.decision.max()) + 1 if len(decision) else 1
        tokens = _padded(encoded.tokens, row, decision, rows, steps)
        now = _padded(self._tensor(batch.now), row, decision, rows, steps)
        mask = _padded(torch.ones_like(row, dtype=torch.float32), row, decision, rows, steps)
        retrieved = self.memory.read_episodes(tokens, now, mask, row[query], decision[query])
        return self.backbone.refine(tuple(part[query] for part in encoded.cache), retrieved)

    def _perceive(self, obs: Observation, state: PolicyState) -> tuple[Context, PolicyState]:
        """Encode, reset, read and write: everything of a decision but the action."""
        images = self._tensor(obs.images)[:, self.views]
        proprio = self.normalizer.state(self._tensor(obs.proprio))
        time_s = self._tensor(obs.time_s)
        encoded = self.backbone.encode(images, proprio, self.text(obs.task, self.device))
        now = (time_s * self.robot.control_hz).float()
        parts = (state.tokens, state.slot_time, state.slot_count)
        slots = Slots(*(forget(self._tensor(part), time_s == 0) for part in parts))
        retrieved = self.memory.read(slots, encoded.tokens, now)
        context = self.backbone.refine(encoded.cache, retrieved)
        return context, _to_state(
            self.memory.write(slots, encoded.tokens, now, torch.ones_like(now))
        )

    def _chunk(self, obs: Observation, clean: Tensor) -> ActionChunk:
        low, high = (torch.tensor(x, device=self.device) for x in (self.robot.low, self.robot.high))
        values = torch.minimum(torch.maximum(self.normalizer.action_inverse(clean), low), high)
        return ActionChunk(values=values, start_s=self._tensor(obs.time_s))

    def _tensor(self, value: Any) -> Tensor:
        return torch.as_tensor(value, device=self.device)


def forget(part: Tensor, first: Tensor) -> Tensor:
    """Zero the rows that start an episode; a product would keep the NaN of a stale state."""
    return part.masked_fill(first.view(-1, *(1,) * (part.dim() - 1)), 0.0)


def _to_state(slots: Slots) -> PolicyState:
    return PolicyState(tokens=slots.tokens, slot_time=slots.time, slot_count=slots.count)


def _padded(flat: Tensor, row: Tensor, decision: Tensor, rows: int, steps: int) -> Tensor:
    """Return [rows, steps, ...] with flat frames at their episode and decision, zero elsewhere."""
    return flat.new_zeros(rows, steps, *flat.shape[1:]).index_put((row, decision), flat)
