"""What a run of practice is: a training run that makes its own data, round by round."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from training.config import EvalConfig, RunConfig
from training.optimiser import OptimiserConfig
from training.rl.help import HelpConfig
from training.rl.rewards import Source
from vla.contracts.config import PluginConfig, check_least, plugin, type_name

PRACTICE_SEED = 20_000
"""Seeds of practised episodes lie from here on: far from those of demonstrations and tests."""
SEEDS_APART = 1_000
"""Seeds that one run may use."""


@dataclass(frozen=True, kw_only=True)
class RuntimeConfig:
    """In which processes practice runs."""

    processes: bool = False
    """Practise and judge in processes of their own, while this one learns; each has `threads`."""
    lag: int = 0
    """Rounds by which the weights that practise may be older than those that learn. With 0 no
    round is practised before its time, and the run is what it is in one process."""
    silent_s: float = 300.0
    """Seconds without a sign of life after which a process is ended and started anew."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, lag=0)
        if not self.silent_s > 0:
            raise ValueError(f"runtime.silent_s: got {self.silent_s}, expected more than 0")
        if self.lag and not self.processes:
            raise ValueError(
                f"runtime.lag: got {self.lag} in one process, where practice is never behind; add "
                "--runtime.processes"
            )


@dataclass(frozen=True, kw_only=True)
class PracticeConfig(RunConfig):
    """One run of practice in simulation."""

    algo: PluginConfig = plugin("training.algos", "filtered_bc")
    """How it learns."""
    task: PluginConfig = plugin("sim.tasks", "pick_place")
    """What to practise."""
    backend: PluginConfig = plugin("sim.backends", "mujoco_cpu")
    """Where: in MuJoCo, or on an arm behind ROS 2 and its safety node, --backend.type ros."""
    reward: Source = "critic"
    """Where reward comes from; "oracle" and "sparse" read the simulator."""
    rounds: int = 5
    """Rounds of practice."""
    episodes: int = 40
    """Episodes per round."""
    preserve: Literal["auto", "data", "policy"] = "auto"
    """What cloning holds on to: the demonstrations, or what the policy did by itself in the first
    round; by default whichever succeeds more for sure."""
    help: HelpConfig = field(default_factory=HelpConfig)
    """Who else acts."""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """In which processes."""
    shift_px: int = 3
    """Largest shift of the pictures that are cloned."""
    gain: float = 0.2
    """Largest change of their brightness, as a share."""
    earlier: int = 400
    """Most episodes taken from each earlier run: the newest."""
    gamma: float = 0.98
    """Discount per decision."""
    environments: int = 40
    """How many run side by side; one where a person helps."""
    optimiser: OptimiserConfig = field(
        default_factory=lambda: OptimiserConfig(lr=3e-4, warmup=20, ema=0.99)
    )
    """Optimiser."""
    eval: EvalConfig = field(
        default_factory=lambda: EvalConfig(every=0, episodes=100, final_episodes=200)
    )
    """Evaluation."""
    steps: int = 1000
    """Updates in all; each round is followed by an equal share of them."""
    save_every: int = 100
    """Updates between checkpoints."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        super().__post_init__()
        check_least(self, rounds=1, episodes=1, environments=1, gamma=0,
                    shift_px=0, gain=0, earlier=1)  # fmt: skip
        for name in ("attended", "retried", "stop"):
            given = getattr(self.help, name)
            if given and "critic" not in self.reward:
                raise ValueError(
                    f"help.{name}: got {given} with reward {self.reward!r}; a critic has to see "
                    'that there is no progress: use --reward critic, or "critic+sparse"'
                )
        if self.backend.live and self.runtime.processes:
            raise ValueError(
                f"runtime.processes: got True with backend {type_name(self.backend)!r}; an arm "
                "that was stopped must not be started anew by itself: leave the flag out"
            )
        if self.help.curriculum and self.runtime.lag:
            raise ValueError(
                f"help.curriculum: got runtime.lag {self.runtime.lag}; leads of a round follow "
                "from the rounds before it: use --runtime.lag 0"
            )
        # Somebody may be waited for at the start and, when that is over, for an answer.
        if self.help.by != "expert" and 2 * self.help.answer_s >= self.runtime.silent_s:
            raise ValueError(
                f"help.answer_s: got {self.help.answer_s}, expected less than half of "
                f"runtime.silent_s ({self.runtime.silent_s}), after which who waits is taken for "
                "dead"
            )
        if self.gamma > 1 or self.steps % self.rounds:
            raise ValueError(
                f"got gamma {self.gamma} and {self.steps} steps in {self.rounds} rounds, expected "
                "gamma of at most 1 and as many steps in every round"
            )

    @property
    def side_by_side(self) -> int:
        """How many environments run."""
        return 1 if self.help.by == "human" or self.backend.live else self.environments

    def seed_of(self, number: int) -> int:
        """Return the seed of the episodes of a round."""
        return PRACTICE_SEED + SEEDS_APART * self.seed + number

    def round_of(self, seed: int) -> int:
        """Return the round of an episode's seed."""
        return seed - self.seed_of(0)

    def left(self, number: int) -> float:
        """Return the share of the rounds that are still to come, in [0, 1]."""
        return 1 - number / max(1, self.rounds - 1)

    def begins(self, number: int) -> int:
        """Return the updates made before a round is learned from."""
        return number * self.steps // self.rounds

    def oldest(self, number: int) -> int:
        """Return the updates that weights must have seen to practise a round."""
        return self.begins(max(0, number - self.runtime.lag))


@dataclass(frozen=True, kw_only=True)
class Start:
    """Where practice starts from."""

    policy: Path
    """Checkpoint."""
    demos: Path
    """The data set it was cloned from: the cloning term keeps what it can do."""
    critic: Path | None
    """Folder of the critic, where reward comes from one."""
    experience: Path
    """Where practice is kept."""
    earlier: tuple[Path, ...] = ()
    """Where practice of earlier runs is kept, which is learned from as well."""
