"""The study of online RL: its gain over its controls, over tasks, arms and seeds.

`python -m benchmarks.rl.study --task pick_place --reward-model runs/reward_model --out runs/study`

For every seed a policy is cloned from few demonstrations, and each arm fine-tunes that same policy.
Every command is printed, resumes, and can be run by itself.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import harness
from training.core.metrics import read_metrics
from vla import cli
from vla.contracts.config import validate_min

BARS = (0.8, 0.9)
"""Success rates to which episodes and control steps are counted."""


@dataclass(frozen=True, kw_only=True)
class Clone:
    """How the start policy is trained: from few demonstrations, so that it often fails."""

    task: str
    """Task, and recipe."""
    demos: int
    """Demonstrations."""
    steps: int
    """Updates."""
    pretrained_vision: bool = False
    """Whether it starts from the vision encoder of the reward model that gives reward."""
    batch: tuple[str, ...] = ("--algo.batch-size", "64", "--algo.states-per-episode", "1")
    """Batches of `filtered_bc`: single decisions, or whole episodes where there is something to
    remember."""
    more: tuple[str, ...] = ()
    """Further flags of the command that trains it."""
    robot: str = ""
    """Robot; the task's own if empty."""

    @property
    def of_suite(self) -> bool:
        """Whether a suite brings the task: no reward model knows it, its own success is the
        reward.
        """
        return "/" in self.task


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to fine-tune online."""

    algo: str
    """Algorithm."""
    reward: str
    """Source of the reward."""
    iterations: int = 5
    """Iterations: rollouts, then updates."""
    episodes: int = 40
    """Rollouts in each."""
    steps: int = 200
    """Updates in each."""
    more: tuple[str, ...] = ()
    """Further flags of the command."""
    start: str = ""
    """Arm that runs before, whose policy it starts from and whose rollouts it learns from as well;
    the clone and none if empty."""


NO_MEMORY = ("--policy.memory.type", "none")
WHOLE = ("--algo.batch-size", "12")
FIVE_HZ = ("--policy.n-action-steps", "16")
"""Five decisions a second of a suite's 80 control steps, as our own tasks have 2.5."""
CLONES = {
    "pick_place": Clone(task="pick_place", demos=12, steps=400, pretrained_vision=True),
    "pick_place with random vision": Clone(task="pick_place", demos=20, steps=400),
    "drawer": Clone(task="drawer", demos=5, steps=400, pretrained_vision=True),
    "reach": Clone(task="reach", demos=100, steps=1200, pretrained_vision=True),
    "reach from 20 demonstrations": Clone(
        task="reach", demos=20, steps=400, pretrained_vision=True
    ),
    "push": Clone(task="push", demos=5, steps=400, pretrained_vision=True),
    "pick_place on a Panda": Clone(
        task="pick_place", demos=48, steps=400, pretrained_vision=True, robot="panda"
    ),
    **{
        f"metaworld/{task}": Clone(task=f"metaworld/{task}", demos=10, steps=400, more=FIVE_HZ)
        for task in ("reach-v3", "dial-turn-v3", "sweep-into-v3", "soccer-v3")
    },
    "cue_colour": Clone(task="cue_colour", demos=1500, steps=1000, batch=WHOLE),
    "cue_colour without memory": Clone(
        task="cue_colour", demos=1500, steps=1000, batch=WHOLE, more=NO_MEMORY
    ),
    "put_back": Clone(task="put_back", demos=1500, steps=1000, batch=WHOLE),
    "put_back without memory": Clone(
        task="put_back", demos=1500, steps=1000, batch=WHOLE, more=NO_MEMORY
    ),
}
REMEMBERED = ("cue_colour", "put_back")
"""Tasks that end with a choice which only memory makes better than chance."""
BC = ("--optimizer.lr", "1e-3", "--optimizer.ema-decay", "0.999")
PUBLISHED = ("--optimizer.lr", "1e-4", "--algo.bc-loss-coeff", "0")
"""As DPPO was published: ten passes over the rollouts (an update sees ten episodes), no BC loss."""
LIFT = Arm(
    algo="asymmetric_ac", reward="learned", iterations=20, episodes=100, steps=100, start="aux_bc",
    more=("--algo.initial-episodes", "100"),
)  # fmt: skip
ARMS = {
    "aux_bc": Arm(algo="aux_bc", reward="learned", iterations=1, episodes=800, steps=1000),
    "asymmetric_ac": LIFT,
    "residual_ac": replace(LIFT, algo="residual_ac", iterations=12),
    "asymmetric_ac, keyframes": replace(LIFT, more=(*LIFT.more, "--algo.value.state", "keyframes")),
    "asymmetric_ac, sparse": replace(LIFT, reward="sparse"),
    "asymmetric_ac, simulator's state": replace(
        LIFT, more=(*LIFT.more, "--algo.value.state", "simulator")
    ),
    "asymmetric_ac, features as state": replace(
        LIFT, more=(*LIFT.more, "--algo.value.state", "features")
    ),
    "asymmetric_ac, without aux_bc": replace(LIFT, start="", more=()),
    "bc, learned reward, interventions": Arm(
        algo="filtered_bc", steps=600, reward="learned", episodes=20,
        more=(*BC, "--intervention.fraction", "1", "--intervention.patience", "1"),
    ),
    "bc, no rollouts": Arm(algo="filtered_bc", steps=400, reward="sparse", episodes=1, more=BC),
    "bc, learned reward": Arm(algo="filtered_bc", steps=400, reward="learned", more=BC),
    "bc, sparse": Arm(algo="filtered_bc", steps=400, reward="sparse", more=BC),
    "ogpo, learned reward": Arm(algo="ogpo", reward="learned"),
    "ogpo, sparse": Arm(
        algo="ogpo", reward="sparse", iterations=20, episodes=100, start="aux_bc", steps=100,
        more=("--algo.freeze-vision", "--algo.states-per-episode", "4"),
    ),
    "dppo, sparse": Arm(
        algo="dppo", reward="sparse", iterations=30, episodes=200, steps=200, start="aux_bc",
        more=(*PUBLISHED, "--algo.freeze-vision"),
    ),
}  # fmt: skip
"""With interventions, the expert intervenes at the first decision without progress: at the third,
policies learned less from as many episodes. "bc, no rollouts" is the control of all: the same
updates on the demonstrations, and one episode per iteration, which may succeed and be cloned."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Compare ways to fine-tune the same cloned policies online."""

    task: tuple[str, ...] = ("pick_place", "push")
    """Start policies."""
    arm: tuple[str, ...] = tuple(ARMS)
    """Ways to fine-tune."""
    seed: tuple[int, ...] = (0, 1, 2)
    """Seeds of demonstrations and training."""
    rl_seed: tuple[int, ...] = ()
    """Seeds of online RL for each of them; the same seed if empty."""
    threads: int = 2
    """CPU threads of each run; 1 to run two studies side by side."""
    reward_model: Path
    """Reward model that gives the learned reward."""
    out: Path
    """Folder of the study."""

    def __post_init__(self) -> None:
        """Refuse unknown names and numbers out of range."""
        validate_min(self, threads=1)
        for field, choices in (("task", CLONES), ("arm", ARMS)):
            for name in getattr(self, field):
                if name not in choices:
                    raise ValueError(f"{field}: got {name!r}, expected one of {', '.join(choices)}")
        helped = [name for name in self.arm if "--intervention.fraction" in ARMS[name].more]
        if helped and any(CLONES[name].of_suite for name in self.task):
            raise ValueError(
                f"arm: got {helped[0]!r} for a suite's task, which has no reward model to ask for "
                "interventions; name the arms with --arm"
            )


@dataclass(frozen=True, kw_only=True)
class Tested:
    """The final test of one or several runs."""

    success: int
    """Episodes that succeeded."""
    decided: int
    """Episodes that ended by a choice, right or wrong, and not by the time limit."""
    trials: int
    """Episodes."""

    @classmethod
    def of(cls, tests: Sequence["Tested"]) -> "Tested":
        """Return several as one."""
        return cls(
            success=sum(test.success for test in tests),
            decided=sum(test.decided for test in tests),
            trials=sum(test.trials for test in tests),
        )


@dataclass(frozen=True, kw_only=True)
class Result:
    """One run of one arm."""

    before: Tested
    """The start policy."""
    after: Tested
    """The fine-tuned policy."""
    reached: dict[float, tuple[int, int] | None]
    """Bar: rollouts and their control steps before the first evaluation above it."""
    last: dict[str, float]
    """Metrics of the last iteration's rollouts."""


def start(name: str, seed: int, reward_model: Path, out: Path) -> list[list[str]]:
    """Return the commands, as words after `vla`, that make the start policy."""
    clone, place = CLONES[name], _place(name, seed, out)
    demos = str(place / "demos")
    vision = ["--pretrained-vision-encoder", str(reward_model)] if clone.pretrained_vision else []
    robot = ["--robot", clone.robot] if clone.robot else []
    return [
        ["demos", clone.task, "--episodes", str(clone.demos), "--seed", str(seed), "--out", demos,
         *robot],
        ["train", "--task" if clone.of_suite else "--recipe", clone.task, "--dataset", demos,
         "--out", str(place / "start"), "--seed", str(seed), "--steps", str(clone.steps),
         "--eval.every", "0", *robot, *vision, *clone.more],
    ]  # fmt: skip


def finetune(
    clone: str, seed: int, name: str, reward_model: Path, out: Path, rl_seed: int | None = None
) -> list[str]:
    """Return the command of one arm; an evaluation follows the updates of each iteration."""
    place, arm, task = _place(clone, seed, out), ARMS[name], CLONES[clone]
    reward = "sparse" if task.of_suite else arm.reward
    start = _run(clone, seed, arm.start, out) if arm.start else place / "start"
    prior = ["--prior-runs", str(start)] if arm.start and arm.algo != "dppo" else []
    return [
        "train", "rl", "--task", task.task, "--policy.path", str(start),
        "--dataset", str(place / "demos"), "--out", str(_run(clone, seed, name, out, rl_seed)),
        *(["--reward-model", str(reward_model)] if "learned" in reward else []),
        *prior, "--algo.type", arm.algo, "--reward", reward,
        "--seed", str(seed if rl_seed is None else rl_seed),
        "--n-iterations", str(arm.iterations), "--episodes-per-iteration", str(arm.episodes),
        "--steps", str(arm.steps * arm.iterations), "--eval.every", str(arm.steps),
        "--eval.keep-best", *(task.batch if arm.algo == "filtered_bc" else ()),
        *(("--num-envs", "20") if task.of_suite else ()), *arm.more,
    ]  # fmt: skip


def read(clone: str, seed: int, name: str, out: Path, rl_seed: int | None = None) -> Result:
    """Return the result of a finished run."""
    run = _run(clone, seed, name, out, rl_seed)
    rollouts: dict[str, float] = {}
    curve: list[tuple[float, float, float]] = []
    steps: dict[float, float] = {}  # episodes so far: control steps of the last iteration
    for row in read_metrics(run):
        if "rollout/episodes" in row:
            rollouts = {k: float(v) for k, v in row.items() if k.startswith("rollout/")}
            steps[rollouts["rollout/episodes"]] = rollouts["rollout/control_steps"]
        if "eval/success" in row:
            episodes, total = rollouts["rollout/episodes"], sum(steps.values())
            curve.append((float(row["eval/success"]), episodes, total))
    return Result(
        before=_tested(_place(clone, seed, out) / "start"), after=_tested(run),
        reached={bar: first(curve, bar) for bar in BARS}, last=rollouts,
    )  # fmt: skip


def _tested(run: Path) -> Tested:
    test = harness.evaluation(run)
    return Tested(
        success=sum(test["success"]), decided=sum(test["decided"]), trials=len(test["success"])
    )


def first(curve: list[tuple[float, float, float]], bar: float) -> tuple[int, int] | None:
    """Return episodes and control steps of the first point (success, ...) that reaches a bar."""
    for success, episodes, steps in curve:
        if success >= bar:
            return int(episodes), int(steps)
    return None


def table(task: str, results: dict[str, list[Result]]) -> Table:
    """Return one row per arm, pooled over seeds."""
    rows = []
    for name, runs in results.items():
        before, after = Tested.of([r.before for r in runs]), Tested.of([r.after for r in runs])
        spearman = [r.last["rollout/reward_spearman"] for r in runs]
        spearman = [value for value in spearman if not math.isnan(value)]  # if all ended alike
        rows.append((
            name, len(runs), harness.rate(before.success, before.trials),
            *_share(after.success, after.trials),
            *(_reached([r.reached[bar] for r in runs]) for bar in BARS),
            f"{np.mean(spearman):.2f}" if spearman else "all ended alike",
        ))  # fmt: skip
    columns = (
        "arm", "seeds", "before", "after", "95 %",
        *(f"episodes (steps) to {bar:.0%}" for bar in BARS), "reward Spearman",
    )  # fmt: skip
    title = f"{task}: online RL from the same cloned policies"
    return harness.table(title, columns, rows, left=len(columns))


def memory_table(clone: str, results: dict[str, list[Result]]) -> Table:
    """Return recall before and after, apart from how often the arm came to a choice."""
    rows = []
    for name, runs in results.items():
        parts = {"before": [r.before for r in runs], "after": [r.after for r in runs]}
        for when, tests in parts.items():
            test = Tested.of(tests)
            rows.append((
                name, when, *_share(test.decided, test.trials),
                *_share(test.success, test.decided),
            ))  # fmt: skip
    title = f"{clone}: recall is the share of choices that were right"
    columns = ("arm", "", "came to a choice", "95 %", "recall", "95 %")
    return harness.table(title, columns, rows, left=len(columns))


def _share(successes: int, trials: int) -> tuple[str, str]:
    return harness.rate(successes, trials), harness.interval(successes, trials)


def _reached(points: list[tuple[int, int] | None]) -> str:
    return ", ".join("never" if p is None else f"{p[0]} ({p[1]})" for p in points)


def _place(clone: str, seed: int, out: Path) -> Path:
    return out / _folder(clone) / f"seed-{seed}"


def _run(clone: str, seed: int, name: str, out: Path, rl_seed: int | None = None) -> Path:
    suffix = "" if rl_seed in (None, seed) else f"-rl-{rl_seed}"
    return _place(clone, seed, out) / f"{_folder(name)}{suffix}"


def _folder(name: str) -> str:
    return name.replace(",", "").replace("'", "").replace(" ", "-").replace("/", "-")


def main(argv: list[str]) -> int:
    """Run the missing parts and print a table per task."""
    study, console = harness.read(Study, argv, "rl.study"), Console()
    threads = ["--threads", str(study.threads)]
    for task in study.task:
        results: dict[str, list[Result]] = {name: [] for name in study.arm}
        for seed in study.seed:
            demos, train = start(task, seed, study.reward_model, study.out)
            harness.must(demos, console)
            harness.must([*train, *threads], console)
            for name in study.arm:
                first_arm = [(ARMS[name].start, seed)] if ARMS[name].start else []
                runs = [(name, rl_seed) for rl_seed in study.rl_seed or (seed,)]
                for arm, rl_seed in first_arm + runs:
                    words = finetune(task, seed, arm, study.reward_model, study.out, rl_seed)
                    harness.must([*words, *threads], console)
                results[name] += [read(task, seed, name, study.out, run) for _, run in runs]
        console.print(table(task, results))
        if CLONES[task].task in REMEMBERED:
            console.print(memory_table(task, results))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.rl.study:main", sys.argv[1:]))
