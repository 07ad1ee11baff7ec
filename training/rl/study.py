"""The study of practice: what it is worth beside its controls, over tasks, arms and seeds.

`python -m training.rl.study --task pick_place --critic CRITIC --out runs/study`

For every seed a policy is cloned from few demonstrations, and each arm lifts that same policy.
Every line it runs is printed, continues what is there, and can be run by itself.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from training import lines
from training.metrics import read_metrics
from vla.statistics import wilson

BARS = (0.8, 0.9)
"""Success rates to which episodes and control steps are counted."""


@dataclass(frozen=True, kw_only=True)
class Clone:
    """How the policy to lift is made: of few demonstrations, so that it often fails."""

    task: str
    """Task, and recipe."""
    demos: int
    """Demonstrations."""
    steps: int
    """Updates."""
    sees: bool = False
    """Whether it begins with the vision of the critic that gives reward."""
    drawn: tuple[str, ...] = ("--algo.batch", "64", "--algo.queries", "1")
    """What filtered cloning learns from at an update: single decisions, or whole episodes where
    there is something to remember."""
    more: tuple[str, ...] = ()
    """Further words of the line that trains it."""


@dataclass(frozen=True, kw_only=True)
class Arm:
    """One way to practise."""

    algo: str
    """Algorithm."""
    reward: str
    """Where reward comes from."""
    rounds: int = 5
    """Rounds of practice, each followed by as many updates."""
    episodes: int = 40
    """Episodes in each."""
    steps: int = 200
    """Updates after each."""
    more: tuple[str, ...] = ()
    """Further words of the command."""


FORGETFUL = ("--policy.memory.type", "none")
WHOLE = ("--algo.batch", "12")
CLONES = {
    "pick_place": Clone(task="pick_place", demos=12, steps=400, sees=True),
    "pick_place without the critic's vision": Clone(task="pick_place", demos=20, steps=400),
    "push": Clone(task="push", demos=5, steps=400, sees=True),
    "cue_colour": Clone(task="cue_colour", demos=1500, steps=1000, drawn=WHOLE),
    "cue_colour without memory": Clone(
        task="cue_colour", demos=1500, steps=1000, drawn=WHOLE, more=FORGETFUL
    ),
    "put_back": Clone(task="put_back", demos=1500, steps=1000, drawn=WHOLE),
    "put_back without memory": Clone(
        task="put_back", demos=1500, steps=1000, drawn=WHOLE, more=FORGETFUL
    ),
}
REMEMBERED = ("cue_colour", "put_back")
"""Tasks that end with a choice which only memory makes better than chance."""
CLONING = ("--optimiser.lr", "1e-3", "--optimiser.ema", "0.999")
PUBLISHED = ("--optimiser.lr", "1e-4", "--algo.clone", "0")
"""DPPO's own: ten passes over what was practised (an update sees ten episodes), no cloning."""
ARMS = {
    "cloning, critic, helped": Arm(
        algo="filtered_bc",
        steps=600,
        reward="critic",
        episodes=20,
        more=(*CLONING, "--help.attended", "1", "--help.patience", "1"),
    ),
    "cloning, no practice": Arm(
        algo="filtered_bc", steps=400, reward="sparse", episodes=1, more=CLONING
    ),
    "cloning, critic": Arm(algo="filtered_bc", steps=400, reward="critic", more=CLONING),
    "cloning, sparse": Arm(algo="filtered_bc", steps=400, reward="sparse", more=CLONING),
    "ogpo, critic": Arm(algo="ogpo", reward="critic"),
    "steer, critic": Arm(algo="steer", reward="critic"),
    "ogpo, sparse": Arm(algo="ogpo", reward="sparse"),
    "dppo, sparse": Arm(algo="dppo", reward="sparse", rounds=15, steps=40, more=PUBLISHED),
}
"""In the first, help comes at the first decision without progress: at three, policies learned less
from as many episodes. The second is the control of all: the same updates on the demonstrations, and
one episode a round, which may succeed and be cloned."""


@dataclass(frozen=True, kw_only=True)
class Tested:
    """What the final test of one or several runs found."""

    success: int
    """Episodes that succeeded."""
    decided: int
    """Episodes that ended by a choice, right or wrong, and not by the time limit."""
    trials: int
    """Episodes."""

    @classmethod
    def of(cls, found: Sequence["Tested"]) -> "Tested":
        """Return several as one."""
        return cls(
            success=sum(one.success for one in found), decided=sum(one.decided for one in found),
            trials=sum(one.trials for one in found),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Found:
    """What one run of one arm came to."""

    before: Tested
    """The policy it started from."""
    after: Tested
    """The one that came out."""
    reached: dict[float, tuple[int, int] | None]
    """Bar: episodes and control steps of practice before the first evaluation above it."""
    last: dict[str, float]
    """Figures of the last round of practice."""


def begin(name: str, seed: int, critic: Path, out: Path) -> list[list[str]]:
    """Return the lines, as words after `vla`, that make the policy to lift."""
    clone, place = CLONES[name], _place(name, seed, out)
    demos = str(place / "demos")
    return [
        ["demos", clone.task, "--episodes", str(clone.demos), "--seed", str(seed), "--out", demos],
        ["train", "--recipe", clone.task, "--data", demos, "--out", str(place / "start"),
         "--seed", str(seed), "--steps", str(clone.steps), "--eval.every", "0",
         *(["--vision-from", str(critic)] if clone.sees else []), *clone.more],
    ]  # fmt: skip


def practice(clone: str, seed: int, name: str, critic: Path, out: Path) -> list[str]:
    """Return the line of one arm; an evaluation follows the updates after each round."""
    place, arm = _place(clone, seed, out), ARMS[name]
    return [
        "train", "rl", "--task", CLONES[clone].task, "--from", str(place / "start"),
        "--demos", str(place / "demos"), "--out", str(_run(clone, seed, name, out)),
        *(["--critic", str(critic)] if "critic" in arm.reward else []),
        "--algo.type", arm.algo, "--reward", arm.reward, "--seed", str(seed),
        "--rounds", str(arm.rounds), "--episodes", str(arm.episodes),
        "--steps", str(arm.steps * arm.rounds), "--eval.every", str(arm.steps),
        "--eval.keep-best", *(CLONES[clone].drawn if arm.algo == "filtered_bc" else ()), *arm.more,
    ]  # fmt: skip


def read(clone: str, seed: int, name: str, out: Path) -> Found:
    """Return what a finished run came to."""
    run = _run(clone, seed, name, out)
    practised: dict[str, float] = {}
    curve: list[tuple[float, float, float]] = []
    steps: dict[float, float] = {}  # episodes so far: control steps of the last round
    for row in read_metrics(run):
        if "practice/episodes" in row:
            practised = {k: float(v) for k, v in row.items() if k.startswith("practice/")}
            steps[practised["practice/episodes"]] = practised["practice/control_steps"]
        if "eval/success" in row:
            episodes, total = practised["practice/episodes"], sum(steps.values())
            curve.append((float(row["eval/success"]), episodes, total))
    return Found(
        before=_tested(_place(clone, seed, out) / "start"), after=_tested(run),
        reached={bar: first(curve, bar) for bar in BARS}, last=practised,
    )  # fmt: skip


def _tested(run: Path) -> Tested:
    found = json.loads((run / "evaluation.json").read_text())
    return Tested(
        success=sum(found["success"]), decided=sum(found["decided"]), trials=len(found["success"])
    )


def first(curve: list[tuple[float, float, float]], bar: float) -> tuple[int, int] | None:
    """Return episodes and control steps of the first point (success, ...) that reaches a bar."""
    for success, episodes, steps in curve:
        if success >= bar:
            return int(episodes), int(steps)
    return None


def table(task: str, found: dict[str, list[Found]]) -> Table:
    """Return one line per arm, pooled over seeds."""
    sheet = Table(title=f"{task}: practice from the same cloned policies")
    for column in ("arm", "seeds", "before", "after", "95 %"):
        sheet.add_column(column)
    for bar in BARS:
        sheet.add_column(f"episodes (steps) to {bar:.0%}")
    sheet.add_column("reward agrees")
    for name, runs in found.items():
        before, after = Tested.of([r.before for r in runs]), Tested.of([r.after for r in runs])
        agree = [r.last["practice/agreement"] for r in runs]
        agree = [one for one in agree if not math.isnan(one)]  # where all ended alike
        sheet.add_row(
            name, str(len(runs)), f"{before.success / before.trials:.1%}",
            *_share(after.success, after.trials),
            *(_reached([r.reached[b] for r in runs]) for b in BARS),
            f"{np.mean(agree):.2f}" if agree else "all ended alike",
        )  # fmt: skip
    return sheet


def memory_table(clone: str, found: dict[str, list[Found]]) -> Table:
    """Return what was remembered before and after, apart from whether the arm got to a choice."""
    sheet = Table(title=f"{clone}: recall is the share of choices that were right")
    for column in ("arm", "", "came to a choice", "95 %", "recall", "95 %"):
        sheet.add_column(column)
    for name, runs in found.items():
        parts = {"before": [r.before for r in runs], "after": [r.after for r in runs]}
        for when, each in parts.items():
            one = Tested.of(each)
            sheet.add_row(
                name, when, *_share(one.decided, one.trials), *_share(one.success, one.decided)
            )
    return sheet


def _share(good: int, trials: int) -> tuple[str, str]:
    """Return a share and its interval (Wilson) for people."""
    low, high = wilson(good, trials)
    return (f"{good / trials:.1%}" if trials else "none"), f"{low:.1%} to {high:.1%}"


def _reached(points: list[tuple[int, int] | None]) -> str:
    return ", ".join("never" if p is None else f"{p[0]} ({p[1]})" for p in points)


def _place(clone: str, seed: int, out: Path) -> Path:
    return out / _folder(clone) / f"seed-{seed}"


def _run(clone: str, seed: int, name: str, out: Path) -> Path:
    return _place(clone, seed, out) / _folder(name)


def _folder(name: str) -> str:
    return name.replace(",", "").replace(" ", "-")


def main(argv: list[str] | None = None) -> int:
    """Run what is missing and print a table per task."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", nargs="+", choices=list(CLONES), default=["pick_place", "push"])
    parser.add_argument("--arm", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--threads", default="2", help="of each run; 1 to run two studies at once")
    parser.add_argument("--critic", type=Path, required=True, help="the critic that gives reward")
    parser.add_argument("--out", type=Path, required=True, help="folder of the study")
    args, console = parser.parse_args(argv), Console()
    for task in args.task:
        found: dict[str, list[Found]] = {name: [] for name in args.arm}
        for seed in args.seed:
            demos, train = begin(task, seed, args.critic, args.out)
            lines.must(demos, console)
            lines.must([*train, "--threads", args.threads], console)
            for name in args.arm:
                line = practice(task, seed, name, args.critic, args.out)
                lines.must([*line, "--threads", args.threads], console)
                found[name].append(read(task, seed, name, args.out))
        console.print(table(task, found))
        if CLONES[task].task in REMEMBERED:
            console.print(memory_table(task, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
