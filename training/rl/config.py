"""Configuration of online RL: collect rollouts, update, repeat."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from sim import vec_env
from training.core.config import EvalConfig, RunConfig
from training.core.optimizer import OptimizerConfig
from training.rl.experience.rewards import Source
from training.rl.intervention.intervention import EpisodeControlConfig
from vla.contracts import registry
from vla.contracts.config import PluginConfig, plugin, type_name, validate_min

ALGOS = "training.algos"
ROLLOUT_SEED = 20_000
"""First seed of rollouts: far from those of demonstrations and tests."""
SEEDS_PER_RUN = 1_000
"""Seeds that one run may use."""


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
    """The processes that collect and score rollouts."""

    distributed: bool = False
    """Collect and score rollouts in processes of their own while this one learns; each has
    `threads`."""
    max_policy_lag: int = 0
    """Iterations by which the weights that act may be older than those that learn. With 0 the run
    is what it is in one process."""
    heartbeat_timeout_s: float = 300.0
    """Seconds without a heartbeat after which a process is killed and restarted."""

    def __post_init__(self) -> None:
        validate_min(self, max_policy_lag=0)
        if not self.heartbeat_timeout_s > 0:
            raise ValueError(
                f"runtime.heartbeat_timeout_s: got {self.heartbeat_timeout_s}, expected more than 0"
            )
        if self.max_policy_lag and not self.distributed:
            raise ValueError(
                f"runtime.max_policy_lag: got {self.max_policy_lag} in one process, where rollouts "
                "never lag; add --runtime.distributed"
            )


@dataclass(frozen=True, kw_only=True)
class OnlineRLConfig(RunConfig, EpisodeControlConfig):
    """One run of online RL."""

    algo: PluginConfig = plugin(ALGOS, "asymmetric_ac")
    """Algorithm."""
    task: PluginConfig = plugin(vec_env.TASKS, "pick_place")
    """Task."""
    backend: PluginConfig = plugin("sim.backends", "mujoco_cpu")
    """Where rollouts are collected: a simulator, or an arm behind ROS 2 and its safety node,
    --backend.type ros."""
    reward: Source = "learned"
    """Source of the reward; "dense_oracle" and "sparse" read the simulator."""
    n_iterations: int = 5
    """Iterations: each collects rollouts and then updates."""
    episodes_per_iteration: int = 40
    """Rollouts per iteration."""
    bc_anchor: Literal["auto", "data", "policy"] = "auto"
    """What the BC loss holds on to: the demonstrations, or the start policy's own rollouts of the
    first iteration; "auto" takes whichever succeeds more often with confidence."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """Processes."""
    random_shift_px: int = 3
    """Largest random shift of images in the BC loss, in pixels."""
    brightness_jitter: float = 0.2
    """Largest relative change of their brightness."""
    max_prior_episodes: int = 400
    """Most episodes taken from each prior run: the newest."""
    gamma: float = 0.98
    """Discount per decision."""
    num_envs: int = 40
    """Environments that run side by side; one where a person intervenes."""
    optimizer: OptimizerConfig = field(
        default_factory=lambda: OptimizerConfig(lr=3e-4, warmup_steps=20, ema_decay=0.99)
    )
    """Optimizer."""
    eval: EvalConfig = field(
        default_factory=lambda: EvalConfig(every=0, episodes=100, final_episodes=200)
    )
    """Evaluation."""
    steps: int = 1000
    """Updates in all; each iteration makes an equal share of them."""
    save_every: int = 100
    """Updates between checkpoints."""

    def __post_init__(self) -> None:
        super().__post_init__()
        EpisodeControlConfig.__post_init__(self)
        validate_min(
            self, n_iterations=1, episodes_per_iteration=1, num_envs=1, gamma=0,
            random_shift_px=0, brightness_jitter=0, max_prior_episodes=1,
        )  # fmt: skip
        watching = {
            "intervention.fraction": self.intervention.fraction,
            "retry.fraction": self.retry.fraction,
            "early_termination.patience": self.early_termination.patience,
        }
        for name, value in watching.items():
            if value and "learned" not in self.reward:
                raise ValueError(
                    f"{name}: got {value} with reward {self.reward!r}; a reward model has to see "
                    'that there is no progress: use --reward learned, or "learned+sparse"'
                )
        if self.backend.is_realtime and self.runtime.distributed:
            raise ValueError(
                f"runtime.distributed: got True with backend {type_name(self.backend)!r}; an arm "
                "that was stopped must not be restarted by itself: leave the flag out"
            )
        if self.jump_start.curriculum and self.runtime.max_policy_lag:
            raise ValueError(
                f"jump_start.curriculum: got runtime.max_policy_lag {self.runtime.max_policy_lag}; "
                "the jump starts of an iteration follow from the iterations before it: use "
                "--runtime.max-policy-lag 0"
            )
        # A person may be waited for at the start and, right after it, for a response.
        wait_s = self.intervention.response_timeout_s
        if self.intervention.source != "expert" and 2 * wait_s >= self.runtime.heartbeat_timeout_s:
            raise ValueError(
                f"intervention.response_timeout_s: got {wait_s}, expected less than half of "
                f"runtime.heartbeat_timeout_s ({self.runtime.heartbeat_timeout_s}), after which a "
                "waiting process is taken for dead"
            )
        if self.gamma > 1 or self.steps % self.n_iterations:
            raise ValueError(
                f"got gamma {self.gamma} and {self.steps} steps in {self.n_iterations} iterations, "
                "expected gamma of at most 1 and as many steps in every iteration"
            )

    @property
    def parallel_envs(self) -> int:
        """Environments that run side by side here."""
        return (
            1 if self.intervention.source == "human" or self.backend.is_realtime else self.num_envs
        )

    def rollout_seed(self, iteration: int) -> int:
        """Return the seed of the rollouts of an iteration."""
        return ROLLOUT_SEED + SEEDS_PER_RUN * self.seed + iteration

    def iteration_of(self, seed: int) -> int:
        """Return the iteration of a rollout's seed."""
        return seed - self.rollout_seed(0)

    def episodes_of(self, iteration: int) -> int:
        """Return the rollouts of an iteration; an algorithm may want others in the first one."""
        first = getattr(self.algo, "initial_episodes", 0) if iteration == 0 else 0
        return first or self.episodes_per_iteration

    def remaining(self, iteration: int) -> float:
        """Return the share of the iterations that are still to come, in [0, 1]."""
        return 1 - iteration / max(1, self.n_iterations - 1)

    def first_update(self, iteration: int) -> int:
        """Return the updates made before an iteration is learned from."""
        return iteration * self.steps // self.n_iterations

    def oldest_version(self, iteration: int) -> int:
        """Return the updates that weights must have seen to act in an iteration."""
        return self.first_update(max(0, iteration - self.runtime.max_policy_lag))


def run_config(algo: str) -> OnlineRLConfig:
    """Return the default run of an algorithm: the plug-in's `run_config()`, if it has one."""
    known = algo in registry.names(ALGOS)
    make = getattr(registry.load(ALGOS, algo), "run_config", None) if known else None
    return make() if make else OnlineRLConfig()


@dataclass(frozen=True, kw_only=True)
class Start:
    """What a run of online RL starts from."""

    policy: Path
    """Checkpoint."""
    dataset: Path
    """The demonstrations it was trained on; a BC loss, where there is one, keeps what it can do."""
    reward_model: Path | None
    """Folder of the reward model, where reward comes from one."""
    experience: Path
    """Where rollouts are stored."""
    prior_runs: tuple[Path, ...] = ()
    """Where rollouts of prior runs are stored, which are learned from as well."""
