"""LeRobot's Diffusion Policy (Chi et al. 2023) as a baseline: a U-Net that denoises a chunk."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer
from torch import Tensor

from vla.contracts.config import check_least
from vla.contracts.specs import RobotSpec
from vla.normalize import Statistics
from vla.policies._lerobot import IMAGES, STATE, LeRobotConfig, LeRobotPolicy, Norm

LEVELS = 100
"""Noise levels in training."""


@dataclass(frozen=True, kw_only=True)
class Config(LeRobotConfig):
    """Settings of the Diffusion Policy: LeRobot's, with a smaller U-Net and fewer steps."""

    widths: tuple[int, ...] = (64, 128, 256)
    """Channels of the U-Net, one per halving of the chunk (LeRobot: 512, 1024, 2048)."""
    steps: int = 10
    """Denoising steps of a decision; 100, with eta 1, are those of DDPM (LeRobot's default)."""
    eta: float = 0.0
    """Noise of every step: 0 is DDIM, 1 DDPM (Song et al. 2021)."""

    preset: ClassVar[Mapping[str, float]] = {"lr": 1e-4, "weight_decay": 1e-6, "clip": 10.0}
    """LeRobot's."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        super().__post_init__()
        check_least(self, steps=1, eta=0)
        if self.steps > LEVELS or self.eta > 1:
            raise ValueError(
                f"policy: got steps {self.steps} and eta {self.eta}, expected steps up to {LEVELS} "
                "and eta up to 1"
            )
        if not self.widths or min(self.widths) < 8 or any(w % 8 for w in self.widths):
            raise ValueError(f"policy.widths: got {self.widths}, expected multiples of 8 (groups)")
        if self.chunk % 2 ** len(self.widths):
            raise ValueError(
                f"policy.chunk: got {self.chunk}, expected a multiple of {2 ** len(self.widths)}: "
                f"{len(self.widths)} policy.widths halve it as often"
            )

    def build(self, robot: RobotSpec, statistics: Statistics, tokenizer: Tokenizer) -> "Diffusion":
        """Return a policy with fresh weights.

        Raises:
            ValueError: a camera the robot does not have, or more actions executed than predicted.
        """
        return Diffusion(self, robot, statistics, tokenizer)


class Diffusion(LeRobotPolicy):
    """See the module's sentence; it reads no instructions."""

    state_norm: Norm = "range"
    action_norm: Norm = "range"

    def __init__(
        self, config: Config, robot: RobotSpec, statistics: Statistics, tokenizer: Tokenizer
    ) -> None:
        super().__init__(config, robot, statistics, tokenizer)
        from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
        from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

        self.net = DiffusionPolicy(DiffusionConfig(
            **config.shape(robot), horizon=config.chunk, n_action_steps=config.execute,
            down_dims=config.widths, noise_scheduler_type="DDIM", num_train_timesteps=LEVELS,
            num_inference_steps=config.steps,
        ))  # fmt: skip
        self.net.diffusion.noise_scheduler.set_timesteps(config.steps)

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of one row of `noise`: (denoising steps + 1, chunk, channels)."""
        return self.config.steps + 1, self.config.chunk, len(self.robot.channels)

    def decide(self, seen: dict[str, Any], noise: Tensor) -> Tensor:
        """See `LeRobotPolicy.decide`: LeRobot's chain, with the noise of every step given."""
        model = self.net.diffusion
        images = torch.stack([seen[f"{IMAGES}.{name}"] for name in self.config.cameras], 1)
        looks = model.rgb_encoder(images.flatten(0, 1)).view(len(images), -1)
        condition = torch.cat([seen[STATE], looks], 1)
        sample = noise[:, 0]
        for i, level in enumerate(model.noise_scheduler.timesteps):
            levels = torch.full((len(sample),), int(level), device=sample.device)
            found = model.unet(sample, levels, global_cond=condition)
            drawn = {"eta": self.config.eta, "variance_noise": noise[:, i + 1]}
            if not self.config.eta:
                drawn = {}
            sample = model.noise_scheduler.step(found, level, sample, **drawn).prev_sample
        return sample

    def loss(self, seen: dict[str, Any]) -> Tensor:
        """See `LeRobotPolicy.loss`; LeRobot's network wants a time axis."""
        return super().loss({**seen, STATE: seen[STATE][:, None]})
