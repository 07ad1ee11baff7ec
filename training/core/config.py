"""Configuration of a training run: a frozen dataclass, made by a recipe and changed by flags."""

from dataclasses import dataclass, field
from pathlib import Path

from sim import vec_env
from training.core.optimizer import OptimizerConfig
from vla.contracts.config import PluginConfig, plugin, validate_max, validate_min
from vla.contracts.specs import RobotSpec


@dataclass(frozen=True, kw_only=True)
class Demonstrations:
    """Recording recipe of the demonstrations."""

    episodes: int = 500
    """Number of episodes; recorded before training unless a data set is given."""
    behaviour: str = "expert"
    """Acting behaviour: expert, mixed, or one of the bad behaviours."""
    seed: int = 0
    """Seed of the episodes."""
    recovery_fraction: float = 0.0
    """Fraction of episodes that begin where a clumsy expert came to, without its steps."""

    def __post_init__(self) -> None:
        validate_min(self, episodes=1, seed=0)
        validate_min(self, recovery_fraction=0)
        validate_max(self, recovery_fraction=1)


@dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """Periodic and final evaluation."""

    every: int = 1000
    """Updates between evaluations; 0 for only the final one."""
    episodes: int = 50
    """Episodes per periodic evaluation."""
    final_episodes: int = 200
    """Episodes of the final evaluation; 0 for none."""
    keep_best: bool = False
    """Keep the weights of the best evaluation in OUT/best."""
    seed: int = 500
    """Seed of the periodic evaluations; the final one uses seed + 1, which selects no weights."""

    def __post_init__(self) -> None:
        validate_min(self, every=0, episodes=1, final_episodes=0, seed=0)


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Settings of every training run."""

    algo: PluginConfig = plugin("training.algos", "bc")
    """Algorithm."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """Optimizer."""
    eval: EvalConfig = field(default_factory=EvalConfig)
    """Evaluation."""
    steps: int = 2000
    """Number of updates."""
    seed: int = 0
    """Seed of weights, batches and noise."""
    device: str = "cpu"
    """Device to train on: cpu, cuda or cuda:N. On cuda, cloning is in bfloat16."""
    threads: int = 2
    """CPU threads."""
    log_every: int = 20
    """Updates between rows of metrics."""
    save_every: int = 500
    """Updates between checkpoints; a checkpoint is also written on Ctrl-C and at the end."""
    wandb_project: str | None = None
    """Weights & Biases project to log to, in addition to the run folder."""

    def __post_init__(self) -> None:
        validate_min(self, steps=1, seed=0, threads=1, log_every=1, save_every=1)


@dataclass(frozen=True)
class Teacher:
    """Inputs of a distillation run."""

    policy: Path
    """Checkpoint of the teacher."""
    dataset: Path
    """Data set with the observations."""


@dataclass(frozen=True, kw_only=True)
class DistillConfig(RunConfig):
    """Settings of a distillation run."""

    algo: PluginConfig = plugin("training.algos", "distill")
    """Algorithm."""
    optimizer: OptimizerConfig = field(default_factory=lambda: OptimizerConfig(ema_decay=0.99))
    """Optimizer."""
    eval: EvalConfig = field(default_factory=lambda: EvalConfig(every=0))
    """Evaluation."""
    steps: int = 1000
    """Number of updates."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(RunConfig):
    """Settings of a run that trains a policy on demonstrations."""

    task: PluginConfig = plugin(vec_env.TASKS, "reach")
    """Task."""
    co_tasks: tuple[str, ...] = ()
    """Further tasks, by name, that the same policy learns; their settings are the defaults."""
    co_fraction: float = 0.5
    """Part of every batch that comes from the further tasks, the same from each."""
    robot: str | None = None
    """Robot; None for so101, or for the robot of the task's suite."""
    co_robots: tuple[str, ...] = ()
    """Further robots, by name, that the same policy drives in all tasks; each has the same part of
    every batch."""
    demos: Demonstrations = field(default_factory=Demonstrations)
    """Demonstrations."""
    policy: PluginConfig = plugin("vla.policies", "vla")
    """Policy network."""
    pretrained_path: str | None = None
    """Checkpoint, or run, whose policy is trained further, with the same --policy settings; random
    weights if None."""
    pretrained_vision_encoder: str | None = None
    """Trained reward model, or policy, that initializes the policy's vision encoder; random weights
    if None."""
    cache_frozen_features: bool = False
    """Encode the images with the frozen part of the backbone once per data set and keep the
    features next to the data set, instead of encoding them at every update."""
    frames_on_device: bool = False
    """Hold all decoded frames in the device's memory and augment them there: a GPU with room for
    them then waits less for the CPU."""
    compile: bool = False
    """Compile the policy's loss with torch.compile."""

    def load_robots(self) -> tuple[RobotSpec, ...]:
        """Return the arms, that of `robot` first; ValueError if one is unknown or named twice."""
        found = tuple(vec_env.load_arm(self.task, name) for name in (self.robot, *self.co_robots))
        names = [robot.name for robot in found]
        if len(set(names)) < len(names):
            raise ValueError(
                f"co_robots: got {', '.join(names[1:])} beside {names[0]}, expected each robot once"
            )
        return found

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and augmentation of images that are cached."""
        super().__post_init__()
        if not 0.0 < self.co_fraction < 1.0:
            raise ValueError(f"co_fraction: got {self.co_fraction}, expected more than 0, below 1")
        if self.pretrained_path is not None and self.pretrained_vision_encoder is not None:
            raise ValueError(
                "pretrained_path: not with pretrained_vision_encoder, since a policy has vision; "
                "leave one of them out"
            )
        if self.cache_frozen_features and self.frames_on_device:
            raise ValueError(
                "frames_on_device: not with cache_frozen_features, which needs no frames; leave "
                "one of them out"
            )
        names = ("random_shift_px", "brightness_jitter")
        augmentation = {name: getattr(self.algo, name, 0) for name in names}
        if self.cache_frozen_features and any(augmentation.values()):
            settings = " and ".join(f"algo.{name} {value}" for name, value in augmentation.items())
            raise ValueError(
                f"cache_frozen_features: got {settings}, but cached images cannot be augmented; "
                "give --algo.random-shift-px 0 --algo.brightness-jitter 0, or leave "
                "--cache-frozen-features out"
            )
