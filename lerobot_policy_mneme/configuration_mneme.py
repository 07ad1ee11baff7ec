"""Settings of policy `mneme` in LeRobot's words, and how they become ours."""

from dataclasses import dataclass, field
from typing import Any

from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import FeatureType, NormalizationMode, PolicyFeature
from lerobot.optim.optimizers import AdamWConfig
from lerobot.optim.schedulers import DiffuserSchedulerConfig
from lerobot.utils.constants import ACTION, OBS_IMAGES, OBS_STATE

from vla.contracts import config as configs
from vla.contracts.config import check_least
from vla.policies import vla

KINDS = ("VISUAL", "STATE", "ENV", "ACTION")
OURS = ("type", "chunk", "execute", "cameras")
"""What of our configuration has a name of LeRobot's here, or is said by it."""


def untouched() -> dict[str, NormalizationMode]:
    """Return that LeRobot normalises nothing: our policy does, with statistics of its own."""
    return dict.fromkeys(KINDS, NormalizationMode.IDENTITY)


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
    """Decisions that a sample of training holds, the last of which carries the loss: what lies
    further back is not remembered in training."""
    parts: dict[str, Any] = field(default_factory=dict)
    """Everything else of our policy, as in policy.json: {memory: {type: bank, slots: 32}}."""
    noise_seed: int = 0
    """Seed of the noise where the environment names none, as on an arm."""
    normalization_mapping: dict[str, NormalizationMode] = field(default_factory=untouched)
    """Has to stay as it is: our policy normalises by itself."""
    optimizer_lr: float = 1e-3
    """Peak learning rate."""
    optimizer_weight_decay: float = 1e-4
    """Decoupled weight decay, of matrices alone."""
    scheduler_warmup_steps: int = 100
    """Updates over which the learning rate rises; then it falls as a cosine, to 0 at the end."""
    push_to_hub: bool = False
    """Whether training ends with an upload, for which LeRobot asks for a repo_id."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense.

        Raises:
            ValueError: a number is out of range, or LeRobot is to normalise.
        """
        super().__post_init__()
        check_least(self, chunk_size=1, n_action_steps=1, history=1, noise_seed=0,
                    optimizer_lr=0, optimizer_weight_decay=0, scheduler_warmup_steps=0)  # fmt: skip
        modes = {kind: mode.value for kind, mode in self.normalization_mapping.items()}
        if set(modes.values()) - {"IDENTITY"}:
            raise ValueError(
                f"normalization_mapping: got {modes}, expected IDENTITY: this policy normalises by "
                "itself; leave the setting out"
            )

    @property
    def window(self) -> int:
        """Decisions of a sample: one alone, where nothing is remembered."""
        memory = self.parts.get("memory")
        forgets = isinstance(memory, dict) and memory.get("type") == "none"
        return 1 if forgets else self.history

    @property
    def observation_delta_indices(self) -> list[int]:
        """Control steps of the decisions up to this one, as they are on a robot."""
        return [-k * self.n_action_steps for k in reversed(range(self.window))]

    @property
    def action_delta_indices(self) -> list[int]:
        """Control steps of the chunk."""
        return list(range(self.chunk_size))

    @property
    def reward_delta_indices(self) -> None:
        """Rewards are not read."""
        return

    def get_optimizer_preset(self) -> AdamWConfig:
        """Return the optimiser of `vla train`."""
        return AdamWConfig(
            lr=self.optimizer_lr, weight_decay=self.optimizer_weight_decay, betas=(0.9, 0.95),
            grad_clip_norm=1.0,
        )  # fmt: skip

    def get_scheduler_preset(self) -> DiffuserSchedulerConfig:
        """Return warm-up and cosine."""
        return DiffuserSchedulerConfig(name="cosine", num_warmup_steps=self.scheduler_warmup_steps)

    def validate_features(self) -> None:
        """Refuse a data set or an environment without cameras, state or action.

        Raises:
            ValueError: something is missing; says what there is.
        """
        given = {**(self.input_features or {}), **(self.output_features or {})}
        wanted = [OBS_STATE, ACTION, *(f"{OBS_IMAGES}.{name}" for name in self.cameras)]
        missing = [key for key in wanted if key not in given]
        if missing:
            raise ValueError(
                f"{missing[0]}: not among the features ({', '.join(given) or 'none'}); name "
                "other cameras with --policy.cameras, or rename the columns of the data set"
            )


def to_ours(config: MnemeConfig, cameras: tuple[str, ...]) -> vla.Config:
    """Return the configuration of our policy.

    Args:
        config: In LeRobot's words.
        cameras: Of the arm, for where none are named.

    Raises:
        ValueError: `parts` has a field that there is not, or one that has a name here.
    """
    doubled = [name for name in OURS[1:] if name in config.parts]
    if doubled:
        called = {"chunk": "chunk_size", "execute": "n_action_steps", "cameras": "cameras"}
        raise ValueError(f"parts.{doubled[0]}: say --policy.{called[doubled[0]]} instead")
    parts = {name: value for name, value in config.parts.items() if name != "type"}
    said = {"chunk": config.chunk_size, "execute": config.n_action_steps,
            "cameras": list(config.cameras or cameras)}  # fmt: skip
    made: vla.Config = configs.from_json(vla.Config, {**parts, **said}, "policy.parts")
    return made


def to_lerobot_(config: MnemeConfig, ours: vla.Config) -> None:
    """Write everything of our configuration into LeRobot's."""
    said = configs.to_json(ours)
    config.chunk_size, config.n_action_steps = ours.chunk, ours.execute
    config.cameras = list(ours.cameras)
    config.parts = {name: value for name, value in said.items() if name not in OURS}


def features(
    cameras: dict[str, tuple[int, int]], channels: int
) -> tuple[dict[str, PolicyFeature], dict[str, PolicyFeature]]:
    """Return inputs and outputs as LeRobot describes them.

    Args:
        cameras: (height, width) in pixels by name.
        channels: Numbers of state, and of action.
    """
    seen = {
        f"{OBS_IMAGES}.{name}": PolicyFeature(type=FeatureType.VISUAL, shape=(3, *size))
        for name, size in cameras.items()
    }
    state = PolicyFeature(type=FeatureType.STATE, shape=(channels,))
    action = PolicyFeature(type=FeatureType.ACTION, shape=(channels,))
    return {**seen, OBS_STATE: state}, {ACTION: action}
