"""LeRobot policies as plug-ins: LeRobot's network and loss with our data, noise and checkpoints.

A decision uses one observation (`n_obs_steps = 1`), and `n_action_steps` actions are executed
before the next one, as with `vla.policies.vla`; LeRobot's defaults differ between policies. No
weights are downloaded. LeRobot's queues, processors and optimizers are not used.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from vla.contracts.config import PluginConfig, validate_min
from vla.contracts.specs import RobotSpec
from vla.contracts.types import (
    ActionChunk,
    Array,
    EpisodeBatch,
    Observation,
    PolicyState,
    Prefix,
)
from vla.data.store import EpisodeStore, JoinedFrames, statistics
from vla.data.store import Statistics as Column
from vla.nn.normalize import MIN_RANGE, NormalizationStatistics
from vla.nn.text import TextEncoder, train_tokenizer
from vla.nn.token_pooling import resized
from vla.policies import _settings

STATE, ACTION, IMAGES = "observation.state", "action", "observation.images"
"""LeRobot's keys of a batch."""
SAMPLED = 500
"""Frames of a data set that mean and deviation of its images are computed from."""
Norm = Literal["deviation", "range"]
"""How LeRobot scales a column: to mean 0 and deviation 1 (MEAN_STD), or to [-1, 1] (MIN_MAX)."""


@dataclass(frozen=True, kw_only=True)
class LeRobotConfig(PluginConfig):
    """Settings shared by LeRobot's policies; they add `network(robot)`, which returns LeRobot's
    policy.
    """

    chunk_size: int = 16
    """Actions predicted per decision."""
    n_action_steps: int = 8
    """Actions executed before the next decision."""
    cameras: tuple[str, ...] = ("front", "wrist")
    """Cameras the policy uses; a subset of the robot's."""
    image_px: int = 96
    """Side of the images that it receives."""

    preset: ClassVar[Mapping[str, float]] = {}
    """Defaults of its optimizer: see `OptimizerConfig`."""

    def __post_init__(self) -> None:
        validate_min(self, chunk_size=1, image_px=16)

    @property
    def source(self) -> dict[str, Any]:
        """Name and hash of pretrained weights; empty for none."""
        return {}

    def tokenizer(self, instructions: Iterable[str]) -> Tokenizer:
        """Return the tokenizer of instructions."""
        return train_tokenizer(instructions)

    def shape(self, robot: RobotSpec) -> dict[str, Any]:
        """Return the input and output features of LeRobot's configuration."""
        from lerobot.configs.types import FeatureType, PolicyFeature

        count, image = len(robot.channels), (3, self.image_px, self.image_px)
        cameras = {
            f"{IMAGES}.{name}": PolicyFeature(FeatureType.VISUAL, image) for name in self.cameras
        }
        return {
            "input_features": {STATE: PolicyFeature(FeatureType.STATE, (count,)), **cameras},
            "output_features": {ACTION: PolicyFeature(FeatureType.ACTION, (count,))},
            "n_obs_steps": 1, "device": "cpu", "push_to_hub": False,
        }  # fmt: skip


class Scale(nn.Module):
    """Normalises a column of a data set as LeRobot does; its statistics are in the checkpoint.

    Columns that hardly vary are not stretched, as in `vla.nn.normalize.Normalizer`.
    """

    def __init__(self, norm: Norm, count: int) -> None:
        super().__init__()
        self.norm = norm
        self.register_buffer("center", torch.zeros(count))
        self.register_buffer("spread", torch.ones(count))

    def fit_statistics(self, column: Column) -> None:
        """Set the statistics from a column of a data set."""
        center, spread, least = column.mean, column.std, MIN_RANGE
        if self.norm == "range":
            low, high, least = column.min, column.max, MIN_RANGE / 2
            center, spread = (low + high) / 2, (high - low) / 2
        self.center.copy_(torch.from_numpy(np.float32(center)))
        self.spread.copy_(torch.from_numpy(np.maximum(np.float32(spread), least)))

    def forward(self, values: Tensor) -> Tensor:
        """Return normalised values of physical ones f32 [..., count]."""
        return (values - self.center) / self.spread

    def inverse(self, values: Tensor) -> Tensor:
        """Return physical values."""
        return values * self.spread + self.center


class LeRobotPolicy(nn.Module):
    """Base of the plug-ins: satisfies `ArmPolicy`; `training.algos.bc` trains it.

    A subclass implements `decide` and, where LeRobot's inputs differ, `loss`.
    """

    remembers = False
    """Decisions are independent."""
    state_norm: Norm = "deviation"
    action_norm: Norm = "deviation"
    normalize_images: bool = True
    """Whether images are normalised to mean 0 and deviation 1; else they stay in [0, 1]."""

    def __init__(
        self,
        config: LeRobotConfig,
        robot: RobotSpec,
        statistics: NormalizationStatistics,
        tokenizer: Tokenizer,
    ) -> None:
        super().__init__()
        self.config, self.robot, self.statistics = config, robot, statistics
        self.views = _settings.views(config, robot)
        self.text = TextEncoder(tokenizer)
        count = len(robot.channels)
        self.state, self.action = Scale(self.state_norm, count), Scale(self.action_norm, count)
        self.register_buffer("picture_mean", torch.zeros(len(self.views), 3, 1, 1))
        self.register_buffer("picture_std", torch.ones(len(self.views), 3, 1, 1))
        low, high = torch.tensor(robot.low), torch.tensor(robot.high)
        self.register_buffer("low", low, persistent=False)
        self.register_buffer("high", high, persistent=False)
        self.net = config.network(robot)

    def fit_statistics(self, store: EpisodeStore) -> None:
        """Set the statistics that LeRobot normalises with from a data set."""
        self.state.fit_statistics(statistics(store.states))
        self.action.fit_statistics(statistics(store.actions))
        if self.normalize_images:
            mean, std = image_statistics(store.frames)
            self.picture_mean.copy_(mean[..., None, None])
            self.picture_std.copy_(std[..., None, None])

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.low.device

    @property
    def n_action_steps(self) -> int:
        """Actions executed before the next decision."""
        return self.config.n_action_steps

    @property
    def max_prefix_len(self) -> int:
        """No prefix is supported."""
        return 0

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of one row of `noise`: (denoising steps + 1, chunk, channels)."""
        steps = getattr(self.config, "num_inference_steps", 0)
        return steps + 1, self.config.chunk_size, len(self.robot.channels)

    def decide(self, inputs: dict[str, Any], noise: Tensor) -> Tensor:
        """Return a normalised chunk f32 [b, k, u]; a function of its arguments alone."""
        raise NotImplementedError

    def loss(self, inputs: dict[str, Any]) -> Tensor:
        """Return LeRobot's loss, a scalar; its random numbers are torch's global ones."""
        return self.net.forward(inputs)[0]

    def initial_state(self, batch: int) -> PolicyState:
        """Return the empty state."""
        return PolicyState(tensors={})

    @torch.no_grad()
    def act(
        self, obs: Observation, state: PolicyState, noise: Array, prefix: Prefix | None = None
    ) -> tuple[ActionChunk, PolicyState]:
        """See `Policy.act`; deterministic given the noise; ValueError if a prefix is given."""
        if prefix is not None:
            raise ValueError("prefix: LeRobot policies take none; use another real-time mode")
        images, proprio = self._tensor(obs.images)[:, self.views], self._tensor(obs.proprio)
        chunk = self.decide(self.inputs(images, proprio, obs.task), self._tensor(noise))
        values = torch.minimum(torch.maximum(self.action.inverse(chunk), self.low), self.high)
        return ActionChunk(values=values, start_s=self._tensor(obs.time_s)), state

    def bc_loss(
        self, batch: EpisodeBatch, generator: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return LeRobot's loss of the loss frames of a batch, each an independent decision."""
        query = self._tensor(batch.loss_index)
        told = batch.frame_task or [batch.task[e] for e in batch.episode_index.tolist()]
        images, proprio = (self._tensor(x)[query] for x in (batch.images, batch.proprio))
        inputs = self.inputs(images, proprio, tuple(told[f] for f in batch.loss_index.tolist()))
        inputs[ACTION] = self.action(self._tensor(batch.actions))
        inputs["action_is_pad"] = self._tensor(batch.action_is_pad)
        with _global_rng_from(generator):
            loss = self.loss(inputs)
        return loss, {"loss": loss.detach()}

    def inputs(self, images: Tensor, proprio: Tensor, task: tuple[str, ...]) -> dict[str, Any]:
        """Return an observation in the format of LeRobot's networks: images u8 [b, v, h, w, 3] of
        the policy's cameras, proprio f32 [b, s] and the instruction of each row.
        """
        flat = images.flatten(0, 1).permute(0, 3, 1, 2).float().div(255.0)
        pixels = resized(flat, self.config.image_px).unflatten(0, images.shape[:2])
        pixels = (pixels - self.picture_mean) / self.picture_std
        views = {f"{IMAGES}.{name}": pixels[:, i] for i, name in enumerate(self.config.cameras)}
        return {STATE: self.state(proprio), **views}

    def _tensor(self, value: Any) -> Tensor:
        return torch.as_tensor(value, device=self.device)


def image_statistics(frames: np.ndarray | JoinedFrames) -> tuple[Tensor, Tensor]:
    """Return mean and deviation f32 [v, 3] of images u8 [f, v, h, w, 3] scaled to [0, 1].

    Like LeRobot, it uses a sample: at most `SAMPLED` evenly spaced frames.
    """
    count = min(SAMPLED, len(frames))
    chosen = frames[np.linspace(0, len(frames) - 1, count).astype(np.int64)]
    mean, std = (
        np.stack(
            [of(chosen[:, v] / np.float32(255), axis=(0, 1, 2)) for v in range(chosen.shape[1])]
        )
        for of in (np.mean, np.std)
    )
    return torch.from_numpy(mean), torch.from_numpy(np.maximum(std, np.float32(1e-3)))


@contextmanager
def _global_rng_from(generator: torch.Generator) -> Iterator[None]:
    """Seed torch's global generator, which LeRobot's losses use, from ours for a while."""
    seed = int(torch.randint(2**62, (), generator=generator))
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)  # noqa: TID251  LeRobot uses it
        yield
