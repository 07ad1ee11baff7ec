"""A policy of LeRobot's as one of ours: its network and its loss, our data, noise and checkpoint.

It decides on one observation (`n_obs_steps = 1`) and `execute` of its actions are carried out
before the next decision, as with our own policy, while LeRobot's defaults differ from policy to
policy: that is the one difference. No weights are downloaded. The networks are LeRobot's own
classes; queues, processors and optimisers of LeRobot's are not used.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor, nn

from vla.contracts.config import PluginConfig, check_least
from vla.contracts.specs import RobotSpec
from vla.contracts.types import (
    ActionChunk,
    Array,
    EpisodeBatch,
    Observation,
    PolicyState,
    Prefix,
)
from vla.data.store import EpisodeStore
from vla.data.store import Statistics as Column
from vla.nn.looking import resized
from vla.nn.text import TextEncoder, train_tokenizer
from vla.normalize import LEAST_RANGE, Statistics
from vla.policies import _settings

STATE, ACTION, IMAGES = "observation.state", "action", "observation.images"
"""What LeRobot calls them."""
SAMPLED = 500
"""Frames of a data set from which mean and deviation of its pictures are taken."""
Norm = Literal["deviation", "range"]
"""How LeRobot scales a column: to mean 0 and deviation 1 (MEAN_STD), or to [-1, 1] (MIN_MAX)."""


@dataclass(frozen=True, kw_only=True)
class LeRobotConfig(PluginConfig):
    """What the settings of LeRobot's policies have in common."""

    chunk: int = 16
    """Actions predicted per decision."""
    execute: int = 8
    """Actions executed before the next decision."""
    cameras: tuple[str, ...] = ("front", "wrist")
    """Cameras it looks through; a subset of the robot's."""
    image_px: int = 96
    """Side of the pictures that it is shown."""

    preset: ClassVar[Mapping[str, float]] = {}
    """What its optimiser is set to unless flags say otherwise: see `OptimiserConfig`."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, chunk=1, image_px=16)

    @property
    def source(self) -> dict[str, Any]:
        """Name and hash of pretrained weights; empty for none."""
        return {}

    def tokenizer(self, instructions: Iterable[str]) -> Tokenizer:
        """Return what turns instructions into numbers."""
        return train_tokenizer(instructions)

    def shape(self, robot: RobotSpec) -> dict[str, Any]:
        """Return the part of LeRobot's configuration that says what goes in and comes out."""
        from lerobot.configs.types import FeatureType, PolicyFeature

        count, picture = len(robot.channels), (3, self.image_px, self.image_px)
        seen = {
            f"{IMAGES}.{name}": PolicyFeature(FeatureType.VISUAL, picture) for name in self.cameras
        }
        return {
            "input_features": {STATE: PolicyFeature(FeatureType.STATE, (count,)), **seen},
            "output_features": {ACTION: PolicyFeature(FeatureType.ACTION, (count,))},
            "n_obs_steps": 1, "device": "cpu", "push_to_hub": False,
        }  # fmt: skip


class Scale(nn.Module):
    """Maps a column of a data set as LeRobot's normaliser does; its figures are in the checkpoint.

    Columns that hardly vary are not stretched, as in our own `Normalizer`.
    """

    def __init__(self, norm: Norm, count: int) -> None:
        super().__init__()
        self.norm = norm
        self.register_buffer("center", torch.zeros(count))
        self.register_buffer("spread", torch.ones(count))

    def measure_(self, column: Column) -> None:
        """Take the figures of a data set."""
        low, high = column.min, column.max
        ranged = self.norm == "range"
        center, spread = (
            ((low + high) / 2, (high - low) / 2) if ranged else (column.mean, column.std)
        )
        least = LEAST_RANGE / 2 if ranged else LEAST_RANGE
        self.center.copy_(torch.from_numpy(np.float32(center)))
        self.spread.copy_(torch.from_numpy(np.maximum(np.float32(spread), least)))

    def forward(self, values: Tensor) -> Tensor:
        """Return what a network sees of physical values f32 [..., count]."""
        return (values - self.center) / self.spread

    def inverse(self, values: Tensor) -> Tensor:
        """Return physical values."""
        return values * self.spread + self.center


class LeRobotPolicy(nn.Module):
    """Base of the plug-ins: satisfies `ArmPolicy`, and `training.algos.bc` teaches it.

    A subclass sets `net`, LeRobot's policy, and says what `decide` and `loss` are.
    """

    net: nn.Module
    remembers = False
    """A decision stands alone."""
    state_norm: Norm = "deviation"
    action_norm: Norm = "deviation"
    pictures: bool = True
    """Whether pictures get mean 0 and deviation 1; else they stay in [0, 1]."""

    def __init__(
        self, config: LeRobotConfig, robot: RobotSpec, statistics: Statistics, tokenizer: Tokenizer
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

    def measure_(self, store: EpisodeStore) -> None:
        """Take the figures that LeRobot normalises with of a data set."""
        self.state.measure_(store.state_statistics())
        self.action.measure_(store.action_statistics())
        if self.pictures:
            mean, std = picture_statistics(store.frames)
            self.picture_mean.copy_(mean[..., None, None])
            self.picture_std.copy_(std[..., None, None])

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.low.device

    @property
    def execute(self) -> int:
        """Actions executed before the next decision."""
        return self.config.execute

    @property
    def prefix(self) -> int:
        """It goes on from no prefix."""
        return 0

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of one row of `noise`: (denoising steps + 1, chunk, channels)."""
        raise NotImplementedError

    def decide(self, seen: dict[str, Any], noise: Tensor) -> Tensor:
        """Return a normalised chunk f32 [b, k, u]; a function of its arguments alone."""
        raise NotImplementedError

    def loss(self, seen: dict[str, Any]) -> Tensor:
        """Return LeRobot's loss, a scalar; what is random in it is drawn from torch itself."""
        return self.net.forward(seen)[0]

    def initial_state(self, batch: int) -> PolicyState:
        """Return no memory of `batch` arms."""
        empty = torch.zeros(batch, 0, device=self.device)
        return PolicyState(tokens=empty[..., None, None], slot_time=empty, slot_count=empty)

    @torch.no_grad()
    def act(
        self, obs: Observation, state: PolicyState, noise: Array, prefix: Prefix | None = None
    ) -> tuple[ActionChunk, PolicyState]:
        """See `Policy.act`; deterministic given the noise.

        Raises:
            ValueError: a prefix is given.
        """
        if prefix is not None:
            raise ValueError("prefix: a policy of LeRobot's goes on from none; use another mode")
        images, proprio = self._tensor(obs.images)[:, self.views], self._tensor(obs.proprio)
        chunk = self.decide(self.seen(images, proprio, obs.task), self._tensor(noise))
        values = torch.minimum(torch.maximum(self.action.inverse(chunk), self.low), self.high)
        return ActionChunk(values=values, start_s=self._tensor(obs.time_s)), state

    def bc_loss(
        self, batch: EpisodeBatch, generator: torch.Generator
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return LeRobot's loss of the decisions of a batch that carry one, each on its own."""
        query = self._tensor(batch.query)
        row = batch.row[batch.query].tolist()
        images, proprio = (self._tensor(x)[query] for x in (batch.images, batch.proprio))
        seen = self.seen(images, proprio, tuple(batch.task[r] for r in row))
        seen[ACTION] = self.action(self._tensor(batch.actions))
        seen["action_is_pad"] = self._tensor(batch.pad)
        with _drawn_from(generator):
            loss = self.loss(seen)
        return loss, {"loss": loss.detach()}

    def seen(self, images: Tensor, proprio: Tensor, task: tuple[str, ...]) -> dict[str, Any]:
        """Return an observation as LeRobot's networks take it.

        Args:
            images: u8 [b, v, h, w, 3] of the policy's cameras.
            proprio: f32 [b, s].
            task: Instruction of each row.
        """
        flat = images.flatten(0, 1).permute(0, 3, 1, 2).float().div(255.0)
        shown = resized(flat, self.config.image_px).unflatten(0, images.shape[:2])
        shown = (shown - self.picture_mean) / self.picture_std
        found: dict[str, Any] = {STATE: self.state(proprio)}
        for i, name in enumerate(self.config.cameras):
            found[f"{IMAGES}.{name}"] = shown[:, i]
        return found

    def _tensor(self, value: Any) -> Tensor:
        return torch.as_tensor(value, device=self.device)


def picture_statistics(frames: np.ndarray) -> tuple[Tensor, Tensor]:
    """Return mean and deviation f32 [v, 3] of pictures u8 [f, v, h, w, 3] in [0, 1].

    Of frames at equal distances, `SAMPLED` at the most, as LeRobot takes a sample, too.
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
def _drawn_from(generator: torch.Generator) -> Iterator[None]:
    """Let LeRobot's losses, which know torch's global generator alone, draw from ours."""
    seed = int(torch.randint(2**62, (), generator=generator, device=generator.device))
    devices = [generator.device] if generator.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(seed)  # noqa: TID251  the one that LeRobot draws from
        yield
