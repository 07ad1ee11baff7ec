"""Configuration and data of a training run of a reward model."""

from dataclasses import dataclass, field

from reward_models.core.curves import ScorerConfig
from training.core.config import EvalConfig, RunConfig
from training.core.optimizer import OptimizerConfig
from training.reward_model.clips import Clips
from training.reward_model.corrections import Corrections
from training.reward_model.datasets import Sizes, Tasks
from vla.contracts.config import PluginConfig, plugin


@dataclass(frozen=True, kw_only=True)
class RewardModelConfig(RunConfig):
    """One training run of a reward model."""

    reward_model: PluginConfig = plugin("reward_models.models", "pairwise")
    """The reward model."""
    algo: PluginConfig = plugin("training.algos", "reward_model")
    """The algorithm."""
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    """How scores become curves."""
    tasks: Tasks = field(default_factory=Tasks)
    """Tasks of training and tests."""
    sizes: Sizes = field(default_factory=Sizes)
    """Numbers of episodes."""
    corrections: tuple[str, ...] = ()
    """Labelled data sets with corrections of `vla label --review`, as further training data."""
    eval: EvalConfig = field(
        default_factory=lambda: EvalConfig(
            every=300, episodes=60, final_episodes=60, keep_best=True
        )
    )
    """Validation; the best weights are kept in OUT/best."""
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(lr=2e-3, ema_decay=0.99)
    )
    """Optimizer."""
    steps: int = 2000
    """Updates."""
    save_every: int = 200
    """Updates between checkpoints."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """Data of a run, in memory."""

    train: Clips
    """Training episodes."""
    validation: Clips
    """Episodes that choose the weights and calibrate."""
    corrections: Corrections | None = None
    """Corrections by people; None without."""
    names: tuple[str, ...]
    """Names of splits and tasks, for the provenance."""
