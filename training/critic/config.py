"""What a training run of a critic is."""

from dataclasses import dataclass, field

from reward_models.curves import ScorerConfig
from training.config import EvalConfig, RunConfig
from training.critic.clips import Clips
from training.critic.corrections import Corrections
from training.critic.sets import Sizes, Tasks
from training.optimiser import OptimiserConfig
from vla.contracts.config import PluginConfig, plugin


@dataclass(frozen=True, kw_only=True)
class CriticConfig(RunConfig):
    """One training run of a critic."""

    critic: PluginConfig = plugin("reward_models.critics", "pairwise")
    """What learns."""
    algo: PluginConfig = plugin("training.algos", "critic")
    """How it learns."""
    scorer: ScorerConfig = field(default_factory=ScorerConfig)
    """How its judgements become curves."""
    tasks: Tasks = field(default_factory=Tasks)
    """What it learns and is tested on."""
    sizes: Sizes = field(default_factory=Sizes)
    """Episodes."""
    corrections: tuple[str, ...] = ()
    """Labelled data sets that people went over with `vla label --review`: learned from as well."""
    eval: EvalConfig = field(
        default_factory=lambda: EvalConfig(
            every=300, episodes=60, final_episodes=60, keep_best=True
        )
    )
    """Validation; the best weights are kept in OUT/best."""
    optimiser: OptimiserConfig = field(default_factory=lambda: OptimiserConfig(lr=2e-3, ema=0.99))
    """Optimiser."""
    steps: int = 2000
    """Updates."""
    save_every: int = 200
    """Updates between checkpoints."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Material:
    """The episodes of a run, in memory."""

    train: Clips
    """To learn from."""
    validation: Clips
    """To choose weights and calibrate with."""
    corrections: Corrections | None = None
    """What people corrected, if anything."""
    names: tuple[str, ...]
    """Where they come from, for the critic's provenance."""
