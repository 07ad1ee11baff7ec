"""Settings of policy `mneme` as LeRobot's configuration, and their conversion."""

from dataclasses import dataclass, field
from typing import Any

from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.optim.optimizers import AdamWConfig
from lerobot.optim.schedulers import DiffuserSchedulerConfig
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE

from vla.contracts import config as configs
from vla.contracts.config import validate_min
from vla.policies import vla

KINDS = ("VISUAL", "STATE", "ENV", "ACTION")
OWN_FIELDS = ("type", "chunk_size", "n_action_steps", "cameras")
"""Fields of `vla.Config` that are fields of `MnemeConfig`, too."""


@PreTrainedConfig.register_subclass("mneme")
@dataclass
class MnemeConfig(PreTrainedConfig):
    """Settings `--policy.NAME` of LeRobot's commands."""

    robot: str = ""
    """Arm: a file name under vla/robots; if empty, the one that the data set was recorded with."""
    cameras: list[str] = field(default_factory=list)
    """Cameras by name, in view order; all of the arm's if empty."""
    chunk_size: int = 16
    """Actions predicted per decision."""
    n_action_steps: int = 8
    """Actions executed before the next decision: the period of memory writes."""
    history: int = 8
    """Decisions of a training sample: the last one carries the loss, memory holds the others."""
    parts: dict[str, Any] = field(default_factory=dict)
    """Other fields of `vla.Config`, as in policy.json: {memory: {type: bank, slots: 32}}."""
    noise_seed: int = 0
    """Seed of the noise where the environment gives none, as on an arm."""
    normalization_mapping: dict[str, NormalizationMode] = field(
        default_factory=lambda: dict.fromkeys(KINDS, NormalizationMode.IDENTITY)
    )
    """Keep the default, none: the policy normalises by itself, with its own statistics."""
    optimizer_lr: float = 1e-3
    """Peak learning rate."""
    optimizer_weight_decay: float = 1e-4
    """Decoupled weight decay, of matrices only."""
    scheduler_warmup_steps: int = 100
    """Updates of linear warm-up; a cosine to 0 follows."""
    push_to_hub: bool = False
    """Whether to upload after training; LeRobot then needs a repo_id."""

    def __post_init__(self) -> None:
        """Raise ValueError if a number is out of range, or LeRobot would normalise."""
        super().__post_init__()
        validate_min(self, chunk_size=1, n_action_steps=1, history=1, noise_seed=0,
                    optimizer_lr=0, optimizer_weight_decay=0, scheduler_warmup_steps=0)  # fmt: skip
        modes = {kind: mode.value for kind, mode in self.normalization_mapping.items()}
        if set(modes.values()) - {"IDENTITY"}:
            raise ValueError(
                f"normalization_mapping: got {modes}, expected IDENTITY: this policy normalises by "
                "itself; leave the setting out"
            )

    @property
    def window(self) -> int:
        """Decisions of a training sample: `history`, or 1 without memory."""
        memory = self.parts.get("memory")
        without = isinstance(memory, dict) and memory.get("type") == "none"
        return 1 if without else self.history

    @property
    def observation_delta_indices(self) -> list[int]:
        """Control steps of the decisions up to the present one, spaced as on a robot."""
        return [-k * self.n_action_steps for k in reversed(range(self.window))]

    @property
    def action_delta_indices(self) -> list[int]:
        """Control steps of the chunk."""
        return list(range(self.chunk_size))

    @property
    def reward_delta_indices(self) -> None:
        """Rewards are not used."""
        return

    def get_optimizer_preset(self) -> AdamWConfig:
        """Return the optimizer of `vla train`."""
        return AdamWConfig(
            lr=self.optimizer_lr, weight_decay=self.optimizer_weight_decay, betas=(0.9, 0.95),
            grad_clip_norm=1.0,
        )  # fmt: skip

    def get_scheduler_preset(self) -> DiffuserSchedulerConfig:
        """Return linear warm-up and cosine decay."""
        return DiffuserSchedulerConfig(name="cosine", num_warmup_steps=self.scheduler_warmup_steps)

    def validate_features(self) -> None:
        """Raise ValueError if a data set or an environment lacks cameras, state or action."""
        present = {**(self.input_features or {}), **(self.output_features or {})}
        wanted = [OBS_STATE, ACTION, *(f"{OBS_IMAGES}.{name}" for name in self.cameras)]
        missing = [key for key in wanted if key not in present]
        if missing:
            raise ValueError(
                f"{missing[0]}: not among the features ({', '.join(present) or 'none'}); name "
                "other cameras with --policy.cameras, or rename the columns of the data set"
            )


def vla_config(config: MnemeConfig, cameras: tuple[str, ...]) -> vla.Config:
    """Return the policy's configuration, with the arm's `cameras` if `config` names none.

    Raises:
        ValueError: `parts` has an unknown field, or one that `MnemeConfig` has.
    """
    doubled = [name for name in OWN_FIELDS[1:] if name in config.parts]
    if doubled:
        raise ValueError(f"parts.{doubled[0]}: give --policy.{doubled[0]} instead")
    parts = {name: value for name, value in config.parts.items() if name != "type"}
    fields = {"chunk_size": config.chunk_size, "n_action_steps": config.n_action_steps,
           "cameras": list(config.cameras or cameras)}  # fmt: skip
    converted: vla.Config = configs.from_json(vla.Config, {**parts, **fields}, "policy.parts")
    return converted


def update_from_vla(config: MnemeConfig, policy: vla.Config) -> None:
    """Copy the policy's configuration into LeRobot's."""
    config.chunk_size, config.n_action_steps = policy.chunk_size, policy.n_action_steps
    config.cameras = list(policy.cameras)
    fields = configs.to_json(policy)
    config.parts = {name: value for name, value in fields.items() if name not in OWN_FIELDS}


def features(
    cameras: dict[str, tuple[int, int]], channels: int
) -> tuple[dict[str, PolicyFeature], dict[str, PolicyFeature]]:
    """Return LeRobot's input and output features for cameras of (height, width) in pixels by name,
    and a number of channels of state and action.
    """
    images = {
        f"{OBS_IMAGES}.{name}": PolicyFeature(type=FeatureType.VISUAL, shape=(3, *size))
        for name, size in cameras.items()
    }
    state = PolicyFeature(type=FeatureType.STATE, shape=(channels,))
    action = PolicyFeature(type=FeatureType.ACTION, shape=(channels,))
    return {**images, OBS_STATE: state}, {ACTION: action}
