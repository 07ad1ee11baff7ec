"""What a training run is: one frozen dataclass, made by a recipe and changed by flags."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sim import vec_env
from training.optimiser import OptimiserConfig
from vla.contracts.config import PluginConfig, check_least, plugin


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """Demonstrations to learn from."""

    episodes: int = 500
    """How many; recorded before training where the data set does not exist yet."""
    behaviour: str = "expert"
    """Who acts: expert, mixed, or one of the bad behaviours."""
    seed: int = 0
    """Seed of the episodes."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, episodes=1, seed=0)


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Periodic and final evaluation."""

    every: int = 1000
    """Updates between evaluations; 0 for only the last."""
    episodes: int = 50
    """Episodes of a periodic evaluation."""
    final_episodes: int = 200
    """Episodes of the last evaluation; 0 for none."""
    keep_best: bool = False
    """Keep the weights of the best evaluation in OUT/best."""
    seed: int = 500
    """Seed of the periodic episodes; the last evaluation uses seed + 1, which chooses nothing."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, every=0, episodes=1, final_episodes=0, seed=0)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What the loop needs to know of any run."""

    algo: PluginConfig = plugin("training.algos", "bc")
    """How it learns."""
    optimiser: OptimiserConfig = field(default_factory=OptimiserConfig)
    """Optimiser."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """Evaluation."""
    steps: int = 2000
    """Updates."""
    seed: int = 0
    """Seed of weights, batches and noise."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where to train; on cuda in bfloat16."""
    threads: int = 2
    """CPU threads."""
    log_every: int = 20
    """Updates between rows of metrics."""
    save_every: int = 500
    """Updates between checkpoints; one is also written on Ctrl-C and at the end."""
    wandb_project: str | None = None
    """Weights & Biases project to log to as well."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, steps=1, seed=0, threads=1, log_every=1, save_every=1)


@dataclass(frozen=True)
class Teacher:
    """What a student learns from."""

    policy: Path
    """Checkpoint of the teacher."""
    data: Path
    """Data set whose observations it decides on."""


@dataclass(frozen=True, kw_only=True)
class DistillConfig(RunConfig):
    """One run of distillation."""

    algo: PluginConfig = plugin("training.algos", "distill")
    """How it learns."""
    optimiser: OptimiserConfig = field(default_factory=lambda: OptimiserConfig(ema=0.99))
    """Optimiser."""
    eval: EvalConfig = field(default_factory=lambda: EvalConfig(every=0))
    """Evaluation."""
    steps: int = 1000
    """Updates."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig):
    """One training run of a policy."""

    task: PluginConfig = plugin(vec_env.TASKS, "reach")
    """What to learn."""
    robot: str | None = None
    """Arm; None for so101, or for the arm of the suite that the task is of."""
    demos: Demonstrations = field(default_factory=Demonstrations)
    """Demonstrations."""
    policy: PluginConfig = plugin("vla.policies", "vla")
    """What learns."""
    vision_from: str | None = None
    """Trained critic with whose vision the policy begins; it begins with random weights if None."""
    features: Literal["encode", "cache"] = "encode"
    """Whether the frozen part of the backbone looks at pictures anew every time, or once per data
    set: what it makes of them is kept beside the data."""
    compile: bool = False
    """Compile the policy's loss with torch.compile."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and pictures that are to be shaken and kept as they are."""
        super().__post_init__()
        shaken = {name: getattr(self.algo, name, 0) for name in ("shift_px", "gain")}
        if self.features == "cache" and any(shaken.values()):
            told = " and ".join(f"algo.{name} {value}" for name, value in shaken.items())
            raise ValueError(
                f"features: got cache with {told}, but what is kept are pictures as they are; give "
                "--algo.shift-px 0 --algo.gain 0, or take --features encode"
            )
