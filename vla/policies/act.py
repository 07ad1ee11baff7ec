"""LeRobot's ACT (Zhao et al. 2023) as a baseline: a transformer that regresses a chunk at once."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from tokenizers import Tokenizer
from torch import Tensor

from vla.contracts.config import validate_min
from vla.contracts.specs import RobotSpec
from vla.nn.normalize import NormalizationStatistics
from vla.policies._lerobot import LeRobotConfig, LeRobotPolicy


@dataclass(frozen=True, kw_only=True)
class Config(LeRobotConfig):
    """Settings of ACT: smaller than LeRobot's, with a ResNet-18 of random initial weights."""

    width: int = 256
    """Width of the transformer (LeRobot: 512); its inner layers are four times as wide."""
    layers: int = 4
    """Layers of the encoder, and of the VAE encoder of actions in training."""
    decoder_layers: int = 1
    """Layers of the decoder."""
    dropout: float = 0.1
    """Dropout probability in training."""
    kl_weight: float = 10.0
    """Weight of the KL divergence of the latent from standard normal."""

    preset: ClassVar[Mapping[str, float]] = {
        "lr": 1e-4, "weight_decay": 1e-4, "grad_clip_norm": 10.0,
    }  # fmt: skip
    """LeRobot's, except that its learning rate of 1e-5 is for a pretrained ResNet."""

    def __post_init__(self) -> None:
        super().__post_init__()
        validate_min(self, width=8, layers=1, decoder_layers=1, dropout=0, kl_weight=0)
        if self.width % 8:
            raise ValueError(f"policy.width: got {self.width}, expected a multiple of 8 (heads)")

    def build(
        self, robot: RobotSpec, statistics: NormalizationStatistics, tokenizer: Tokenizer
    ) -> "Act":
        """Return a policy with random weights; ValueError as `_settings.views`."""
        return Act(self, robot, statistics, tokenizer)

    def network(self, robot: RobotSpec) -> Any:
        """Return LeRobot's `ACTPolicy` with random weights."""
        from lerobot.policies.act.configuration_act import ACTConfig
        from lerobot.policies.act.modeling_act import ACTPolicy

        return ACTPolicy(ACTConfig(
            **self.shape(robot), chunk_size=self.chunk_size, n_action_steps=self.n_action_steps,
            pretrained_backbone_weights=None, dim_model=self.width, dim_feedforward=4 * self.width,
            n_encoder_layers=self.layers, n_decoder_layers=self.decoder_layers,
            n_vae_encoder_layers=self.layers, dropout=self.dropout, kl_weight=self.kl_weight,
        ))  # fmt: skip


class Act(LeRobotPolicy):
    """LeRobot's ACT; it uses neither instructions nor noise."""

    def decide(self, seen: dict[str, Any], noise: Tensor) -> Tensor:
        """See `LeRobotPolicy.decide`: the latent is 0, as in LeRobot."""
        return self.net.predict_action_chunk(seen)
