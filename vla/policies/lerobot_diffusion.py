"""LeRobot's Diffusion Policy (Chi et al. 2023) as a baseline: a U-Net that denoises a chunk."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from tokenizers import Tokenizer
from torch import Tensor

from vla.contracts.config import validate_min
from vla.contracts.specs import RobotSpec
from vla.nn.normalize import NormalizationStatistics
from vla.policies._lerobot import IMAGES, STATE, LeRobotConfig, LeRobotPolicy, Norm

LEVELS = 100
"""Noise levels in training."""


@dataclass(frozen=True, kw_only=True)
class Config(LeRobotConfig):
    """Settings of the Diffusion Policy: a smaller U-Net and fewer steps than LeRobot's."""

    down_dims: tuple[int, ...] = (64, 128, 256)
    """Channels of the U-Net, one per halving of the chunk (LeRobot: 512, 1024, 2048)."""
    num_inference_steps: int = 10
    """Denoising steps of a decision; 100, with eta 1, are those of DDPM (LeRobot's default)."""
    eta: float = 0.0
    """Noise of every step: 0 is DDIM, 1 DDPM (Song et al. 2021)."""

    preset: ClassVar[Mapping[str, float]] = {
        "lr": 1e-4,
        "weight_decay": 1e-6,
        "grad_clip_norm": 10.0,
    }
    """LeRobot's."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_min(self, num_inference_steps=1, eta=0)
        if self.num_inference_steps > LEVELS or self.eta > 1:
            raise ValueError(
                f"policy: got num_inference_steps {self.num_inference_steps} and eta {self.eta}, "
                f"expected num_inference_steps up to {LEVELS} and eta up to 1"
            )
        if not self.down_dims or min(self.down_dims) < 8 or any(w % 8 for w in self.down_dims):
            raise ValueError(
                f"policy.down_dims: got {self.down_dims}, expected multiples of 8 (groups)"
            )
        if self.chunk_size % 2 ** len(self.down_dims):
            raise ValueError(
                f"policy.chunk_size: got {self.chunk_size}, expected a multiple of "
                f"{2 ** len(self.down_dims)}: {len(self.down_dims)} policy.down_dims"
            )

    def build(
        self, robot: RobotSpec, statistics: NormalizationStatistics, tokenizer: Tokenizer
    ) -> "Diffusion":
        """Return a policy with random weights; ValueError as `_settings.views`."""
        return Diffusion(self, robot, statistics, tokenizer)

    def network(self, robot: RobotSpec) -> Any:
        """Return LeRobot's `DiffusionPolicy` with random weights."""
        from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
        from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

        policy = DiffusionPolicy(DiffusionConfig(
            **self.shape(robot), horizon=self.chunk_size, n_action_steps=self.n_action_steps,
            down_dims=self.down_dims, noise_scheduler_type="DDIM", num_train_timesteps=LEVELS,
            num_inference_steps=self.num_inference_steps, pretrained_backbone_weights=None,
            use_group_norm=True, use_separate_rgb_encoder_per_camera=False,
        ))  # fmt: skip
        policy.diffusion.noise_scheduler.set_timesteps(self.num_inference_steps)
        return policy


class Diffusion(LeRobotPolicy):
    """LeRobot's Diffusion Policy; it reads no instructions."""

    state_norm: Norm = "range"
    action_norm: Norm = "range"

    def decide(self, inputs: dict[str, Any], noise: Tensor) -> Tensor:
        """See `LeRobotPolicy.decide`: LeRobot's chain with the given noise at every step."""
        model = self.net.diffusion
        images = torch.stack([inputs[f"{IMAGES}.{name}"] for name in self.config.cameras], 1)
        features = model.rgb_encoder(images.flatten(0, 1)).view(len(images), -1)
        condition = torch.cat([inputs[STATE], features], 1)
        sample = noise[:, 0]
        for i, level in enumerate(model.noise_scheduler.timesteps):
            levels = torch.full((len(sample),), int(level), device=sample.device)
            output = model.unet(sample, levels, global_cond=condition)
            eta = self.config.eta
            options = {"eta": eta, "variance_noise": noise[:, i + 1]} if eta else {}
            sample = model.noise_scheduler.step(output, level, sample, **options).prev_sample
        return sample

    def loss(self, inputs: dict[str, Any]) -> Tensor:
        """See `LeRobotPolicy.loss`; LeRobot's network takes a time axis."""
        return super().loss({**inputs, STATE: inputs[STATE][:, None]})
