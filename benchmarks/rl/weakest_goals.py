"""Online RL on the goals of `tabletop` that a policy does worst: what that gives and costs.

`python -m benchmarks.rl.weakest_goals runs/all --dataset runs/data-tabletop --out runs/weakest`

The worst goals are chosen in episodes of one seed and tested in those of another, before and after,
as are the other goals and the policy's other tasks.

`filtered_bc` clones the successes of rollouts next to the demonstrations. Its control is the same
run with as many updates and without rollouts: it shows what demonstrations alone still
teach. The control of `asymmetric_ac` is the start policy in one denoising step, as that algorithm
leaves it: that alone changes much; what is to be kept is kept by `--algo.retention`, on the data
sets. Every command is printed, and resumes.
"""

import functools
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console

from benchmarks import harness
from sim import vec_env
from sim.tasks import _language, tabletop
from training.core import runtime
from training.evaluation.evaluate import evaluate
from vla import cli
from vla.contracts.config import PluginConfig, validate_min
from vla.runtime import policy_loader

GOALS = _language.goals(len(tabletop.THINGS))
FAILURES = (
    "nothing", "touched the right thing alone", "moved it, to another place",
    "another act with it", "something with another thing",
)  # fmt: skip
"""What a failed episode has done."""
HELD = 0.35
"""Progress from which what has to be carried is held (`sim.tasks.tabletop.STAGES`), and what has to
be pushed has moved."""
WORST, OTHERS = "the worst goals", "the other goals"
NOISE = ("0.06", "0.03", "0.02", "0.02")
"""Half of the default: rollouts of a joint policy succeeded in 74 % with it, in 41 % with all."""
CLONING = [
    "--n-iterations", "4", "--episodes-per-iteration", "300", "--steps", "1200",
    "--algo.no-stochastic-denoising", "--algo.states-per-episode", "4",
    "--optimizer.lr", "2e-4", "--optimizer.ema-decay", "0.99",
]  # fmt: skip
"""Flags of `filtered_bc`. With noise in both denoising steps 28 % of the rollouts succeeded."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Improve a policy where it is worst, by online RL."""

    policies: tyro.conf.Positional[tuple[Path, ...]]
    """Runs of `vla train`; several seeds are pooled."""
    dataset: tuple[Path, ...]
    """Data sets of what is to be kept; the first is of `tabletop`."""
    algo: Literal["filtered_bc", "asymmetric_ac"] = "filtered_bc"
    """Algorithm."""
    reward_model: Path | None = None
    """Reward model that gives the reward; the simulator's success if left out."""
    tasks: tuple[str, ...] = ()
    """Other tasks that the policies have learned."""
    goals: int = 5
    """How many of the worst goals."""
    selection_episodes: int = 880
    """Episodes in which they are chosen, of all goals alike."""
    selection_seed: int = 600
    """Seed of these episodes."""
    episodes: int = 200
    """Test episodes of each row."""
    seed: int = 9001
    """Seed of the test episodes."""
    threads: int = 2
    """CPU threads."""
    out: Path = Path("runs/weakest_goals")
    """Folder of the runs and of results.json."""
    more: tuple[str, ...] = ()
    """Further flags of `vla train rl`, after --more."""

    def __post_init__(self) -> None:
        validate_min(self, goals=1, selection_episodes=1, selection_seed=0, episodes=1, threads=1)
        if not self.policies or not self.dataset:
            raise ValueError(
                "expected at least one policy and one data set: those that it was trained on"
            )
        if self.goals >= len(GOALS):
            raise ValueError(f"goals: got {self.goals}, expected fewer than all {len(GOALS)}")


def worst(cell: Mapping[str, Sequence[Any]], count: int) -> list[int]:
    """Return the goals of the lowest success in an evaluation, the worst first."""
    rates = {}
    for goal in set(cell["goals"]):
        right = [
            ok for ok, asked in zip(cell["success"], cell["goals"], strict=True) if asked == goal
        ]
        rates[goal] = sum(right) / len(right)
    return sorted(rates, key=lambda goal: (rates[goal], goal))[:count]


def tests(goals: Sequence[int], tasks: Iterable[str]) -> dict[str, PluginConfig]:
    """Return what is tested before and after, by name."""
    others = tuple(goal for goal in range(len(GOALS)) if goal not in goals)
    return {
        WORST: tabletop.Config(goals=tuple(goals)), OTHERS: tabletop.Config(goals=others),
        **{task: vec_env.load_task(task) for task in tasks},
    }  # fmt: skip


def train(args: Study, policy: Path, goals: Sequence[int], out: Path) -> list[str]:
    """Return the command, as words after `vla`."""
    of_algo = [
        "--algo.retention.datasets", *map(str, args.dataset),
        "--algo.exploration.noise-std", *NOISE,
    ] if args.algo == "asymmetric_ac" else CLONING  # fmt: skip
    reward = ["--reward-model", str(args.reward_model)] if args.reward_model else []
    return [
        "train", "rl", "--algo.type", args.algo,
        "--task", "tabletop", "--task.goals", *map(str, goals),
        "--policy.path", str(policy), "--dataset", str(args.dataset[0]), "--out", str(out),
        "--reward", "learned" if args.reward_model else "sparse", *reward,
        *of_algo, "--eval.final-episodes", "0", "--threads", str(args.threads), *args.more,
    ]  # fmt: skip


def control(args: Study, policy: Path, goals: Sequence[int], out: Path) -> list[str]:
    """Return the command of the control of `filtered_bc`: as many updates, and one rollout."""
    few = ["--n-iterations", "1", "--episodes-per-iteration", "1"]
    return [*train(args, policy, goals, out), *few]


def measure(
    path: Path, config: PluginConfig, episodes: int, args: Study, seed: int, steps: int = 0
) -> Any:
    """Return an evaluation of a policy, in its own number of denoising steps or another, as JSON
    types.
    """
    policy: Any = policy_loader.open_policy(path, args.threads).policy
    policy = policy.with_steps(steps) if steps else policy
    result = evaluate(policy, config, episodes=episodes, seed=seed, quiet=False)
    return {
        "success": result.success, "goals": result.goals, "achieved": result.achieved,
        "max_progress": result.max_progress,
    }  # fmt: skip


def failures(cells: Iterable[Mapping[str, Sequence[Any]]]) -> Counter[str]:
    """Return what was done in the failed episodes of some evaluations, of `FAILURES`."""
    found: Counter[str] = Counter()
    for cell in cells:
        parts = (cell[name] for name in ("success", "goals", "achieved", "max_progress"))
        for ok, asked, done, most in zip(*parts, strict=True):
            if not ok:
                found[_failure(GOALS[asked], GOALS[done] if done >= 0 else None, most)] += 1
    return found


def _failure(asked: _language.Goal, done: _language.Goal | None, max_progress: float) -> str:
    nothing, touched, left, other_act, other_thing = FAILURES
    if done is None:
        return nothing
    if done.thing != asked.thing:
        return other_thing
    if done.act != "touch":
        return other_act
    return touched if max_progress < HELD else left


def rows(cells: Mapping[str, list[tuple[Any, ...]]]) -> Iterable[tuple[str, ...]]:
    """Yield what was tested, success before, of the control, and after, by how many points the last
    differs from the first, and the episodes.
    """
    for name, parts in cells.items():
        shares = [harness.pooled(part) for part in zip(*parts, strict=True)]
        (right, total), (after, _) = shares[0], shares[-1]
        change = f"{100 * (after - right) / total:+.1f}"
        yield name, *(harness.share(*share) for share in shares), change, str(total)


def main(argv: list[str]) -> int:
    """Run what is missing and print the table."""
    args = harness.read(Study, argv, "rl.weakest_goals")
    runtime.prepare(args.threads)
    console = Console(highlight=False, soft_wrap=True)
    settings = {name: getattr(args, name) for name in (
        "algo", "goals", "selection_episodes", "selection_seed", "episodes", "seed",
    )}  # fmt: skip
    settings["format"] = 2
    results = harness.Results(args.out / "results.json", settings, "cells")
    is_cloning = args.algo == "filtered_bc"
    cells: dict[str, list[tuple[Any, ...]]] = {}
    for number, policy in enumerate(args.policies):

        def measured(what: str, path: Path, config: PluginConfig, steps: int = 0) -> Any:
            console.print(f"{path}: {what}")
            cell = functools.partial(measure, path, config, args.episodes, args, args.seed, steps)
            return results.measure(f"{path} {what}{f', {steps} step' if steps else ''}", cell)

        select = functools.partial(
            measure, policy, tabletop.Config(), args.selection_episodes, args, args.selection_seed
        )
        console.print(f"{policy}: all goals")
        chosen = worst(results.measure(f"{policy} all goals", select), args.goals)
        for goal in chosen:
            console.print(f"{policy}: goal {goal}, {GOALS[goal]}")
        run, other = args.out / f"rl-{number}", args.out / f"control-{number}"
        harness.must(train(args, policy, chosen, run), console)
        if is_cloning:
            harness.must(control(args, policy, chosen, other), console)
        for name, config in tests(chosen, args.tasks).items():
            alone = (
                measured(name, other, config) if is_cloning else measured(name, policy, config, 1)
            )
            tested = measured(name, policy, config), alone, measured(name, run, config)
            cells.setdefault(name, []).append(tested)
    of_control = "control, no rollouts" if is_cloning else "before, one step"
    columns = ("tested on", "before", of_control, "after", "points", "episodes")
    harness.show(harness.table(f"{len(args.policies)} policies", columns, rows(cells)))
    told = [failures(part) for part in zip(*cells[WORST], strict=True)]
    counts = [(name, *(str(found[name]) for found in told)) for name in FAILURES]
    title = f"what the failed episodes of {WORST} did"
    harness.show(harness.table(title, ("", *columns[1:4]), counts))
    return 0


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.rl.weakest_goals:main", sys.argv[1:]))
