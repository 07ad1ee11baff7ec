"""Settings of reward model `mneme` as LeRobot's configuration. Needs LeRobot 0.6.

LeRobot finds `MnemeRewardModel` and its processors by the names of this module and class.
"""

from dataclasses import dataclass, field
from typing import Any

from lerobot.configs.rewards import RewardModelConfig
from lerobot.configs.types import FeatureType, PolicyFeature

OUTPUTS = ("progress", "success")


@RewardModelConfig.register_subclass("mneme")
@dataclass
class MnemeConfig(RewardModelConfig):
    """Settings `--reward_model.NAME` of LeRobot's commands."""

    reward_output: str = "progress"
    """progress: share of the task that is done, in [0, 1]; success: probability that all is."""
    fps: float = 10.0
    """Frames per second of the windows that are scored."""
    output_features: dict[str, PolicyFeature] = field(
        default_factory=lambda: {"progress": PolicyFeature(type=FeatureType.REWARD, shape=(1,))}
    )

    def __post_init__(self) -> None:
        """Refuse values out of range with a ValueError."""
        super().__post_init__()
        if not self.fps > 0:
            raise ValueError(f"fps: got {self.fps}, expected frames per second above 0")
        if self.reward_output not in OUTPUTS:
            raise ValueError(
                f"reward_output: got {self.reward_output!r}, expected {' or '.join(OUTPUTS)}"
            )

    @property
    def normalization_mapping(self) -> dict[str, Any]:
        """Nothing is normalised: images stay images."""
        return {}
