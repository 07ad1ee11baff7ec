"""`vla curve`: success of a policy with memory against delay and distractors, beside the ceiling.

Delays and distractors that training never had tell what a memory keeps. A delay within a memory's
window says nothing of that: the table marks those beyond it.
"""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from rich.console import Console
from rich.table import Table

from sim import vec_env
from training.core import runtime
from training.evaluation.evaluate import evaluate
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig, validate_max, validate_min
from vla.contracts.protocols import ArmPolicy
from vla.policies.vla import VLAPolicy
from vla.runtime import policy_loader
from vla.runtime.policy_loader import LoadedPolicy
from vla.utils import arguments, charts, files, pages
from vla.utils.statistics import wilson

SHORTEST = 16
"""Control steps; a shorter delay lets an old action chunk carry the cue."""
FILE, PAGE = "curve.json", "curve.html"
WINDOW = "window_decisions"
"""What a memory's configuration may tell: decisions after which it holds nothing of one, None for
no such bound."""


@dataclass(frozen=True, kw_only=True)
class CurveArgs:
    """Measure success against delay and distractors."""

    policy: tyro.conf.Positional[Path]
    """Checkpoint, run or exported policy, trained on a memory task."""
    task: str = ""
    """Memory task, by name, with its default settings; the first one of training if empty."""
    robot: str = ""
    """Robot, one of those of training; the first of them if empty."""
    delays: tuple[int, ...] = (16, 64, 128, 256, 512, 1024)
    """Delays, control steps."""
    distractors: tuple[int, ...] = (0, 8)
    """Distractor events before go."""
    double_until: float = 0.0
    """Go on with twice the longest delay until success is below this share; 0: do not go on."""
    episodes: int = 200
    """Episodes of each delay and number of distractors."""
    seed: int = 7000
    """Seed of the episodes of the first test; every further test adds 1."""
    threads: int = 1
    """CPU threads of the policy."""
    out: Path | None = None
    """Folder of curve.json and curve.html; `curve` in the run's folder if not given."""

    def __post_init__(self) -> None:
        validate_min(self, double_until=0, episodes=1, seed=0, threads=1)
        validate_max(self, double_until=1)
        check_delays(self.delays, self.distractors)


def main(argv: list[str]) -> int:
    """Run `vla curve`; return the exit code."""
    args = arguments.read(CurveArgs, argv, "vla curve")
    args = dataclasses.replace(args, delays=tuple(sorted(set(args.delays))))
    loaded = policy_loader.open_policy(args.policy, args.threads, robot=args.robot)
    task: Any = configs.from_json(None, loaded.task, f"{loaded.folder}: task", vec_env.TASKS)
    task = vec_env.load_task(args.task) if args.task else task
    check_task(task)
    check_delays(args.delays, args.distractors, loaded.policy.n_action_steps)
    if 0 < args.double_until <= task.ceiling:
        raise ValueError(
            f"double_until: got {args.double_until:g}, expected more than {task.ceiling:.3f}, what "
            "a policy that remembers nothing reaches at any delay"
        )
    out = args.out or checkpoint.run_of(loaded.folder) / "curve"
    out.mkdir(parents=True, exist_ok=True)
    runtime.prepare(args.threads)
    console = Console(highlight=False, soft_wrap=True)
    results = _resume(out / FILE, args, loaded, task)
    delays = set(args.delays)
    for number, (delay, events) in enumerate(_tests(args, results)):
        delays.add(delay)
        key = _key(delay, events)
        if key not in results["cells"]:
            console.print(f"delay {delay}, {events} distractors", markup=False)
            # Other episodes in every cell: those of one seed have the same layouts.
            cell = measure(loaded.policy, task, delay, events, args.episodes, args.seed + number)
            results["cells"][key] = cell
            files.write_json(out / FILE, results)
    args = dataclasses.replace(args, delays=tuple(sorted(delays)))
    console.print(table(args, results))
    console.print(_costs(results))
    files.write_text(out / PAGE, page(args, results))
    console.print(f"results: {out}", markup=False)
    return 0


def cells(delays: Sequence[int], distractors: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield delay and distractors of every test, in order."""
    for events in distractors:
        for delay in delays:
            yield delay, events


def _tests(args: CurveArgs, results: Mapping[str, Any]) -> Iterator[tuple[int, int]]:
    """Yield delay and distractors of the tests that are asked for, then with twice the longest
    delay as long as the results of the last tests, which are there by then, are good enough.
    """
    delay = max(args.delays)
    yield from cells(args.delays, args.distractors)
    while args.double_until and all(
        cell["success"] >= args.double_until * cell["episodes"]
        for cell in (results["cells"][_key(delay, events)] for events in args.distractors)
    ):
        delay *= 2
        yield from cells((delay,), args.distractors)


def check_delays(
    delays: Sequence[int], distractors: Sequence[int], n_action_steps: int = 0
) -> None:
    """Raise ValueError unless the ceiling holds at all delays, for a policy that decides every
    `n_action_steps` control steps.
    """
    shortest = max(SHORTEST, 2 * n_action_steps)
    if min(delays, default=0) < shortest or min(distractors, default=-1) < 0:
        raise ValueError(
            f"delays, distractors: got {tuple(delays)}, {tuple(distractors)}, expected delays of "
            f"{shortest} or more (a shorter blank lets an old action chunk carry the cue) and "
            "distractors of 0 or more"
        )


def check_task(task: PluginConfig) -> None:
    """Raise ValueError unless a task has a delay and a ceiling without memory."""
    fields = {field.name for field in dataclasses.fields(task)}
    if not ({"delay_steps", "distractors"} <= fields and hasattr(task, "ceiling")):
        raise ValueError(
            f"{vec_env.title(task)}: has no delay and no proven ceiling; give a policy of a memory "
            "task, such as cue_colour (docs/memory.md lists them), or name one of its tasks with "
            "--task"
        )


def with_delay(task: PluginConfig, delay: int, distractors: int) -> Any:
    """Return a memory task with one delay, and so many distractors."""
    memory_task: Any = task
    return dataclasses.replace(
        memory_task, delay_steps=(delay, delay), distractors=distractors, random_distractors=False
    )


def measure(
    policy: ArmPolicy, task: PluginConfig, delay: int, distractors: int, episodes: int, seed: int
) -> dict[str, int]:
    """Return successes, choices and episodes of a policy at one delay, as JSON types.

    A choice is a success or a failure by the task's rules; an episode that ran out of time has
    none. So the share of choices tells of acting, and that of right ones among them of recall.
    """
    asked = with_delay(task, delay, distractors)
    found = evaluate(policy, asked, episodes=episodes, seed=seed, quiet=False)
    return counted(found.success, found.decided)


def counted(success: Sequence[bool], decided: Sequence[bool]) -> dict[str, int]:
    """Return successes, choices and episodes of a test, as JSON types."""
    return {"success": sum(success), "choices": sum(decided), "episodes": len(success)}


def window_steps(policy: ArmPolicy) -> int | Literal["unbounded", "unknown"]:
    """Return the control steps after which a memory holds nothing of a decision, if it tells."""
    if not policy.remembers:
        return 0
    if not isinstance(policy, VLAPolicy) or not hasattr(policy.config.memory, WINDOW):
        return "unknown"
    decisions: int | None = getattr(policy.config.memory, WINDOW)
    return "unbounded" if decisions is None else decisions * policy.n_action_steps


def weights_hash(folder: Path) -> str:
    """Return a hash of the weights in a policy's folder; of an exported one, of its manifest, which
    hashes them.
    """
    digest = hashlib.blake2b(digest_size=16)
    for name in ("manifest.json", "model.safetensors"):
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    return digest.hexdigest()


def state_bytes(policy: ArmPolicy) -> int:
    """Return the size of what a policy remembers, of one episode, at any delay."""
    tensors = policy.initial_state(1).tensors.values()
    return sum(int(tensor.nbytes) for tensor in tensors)


def _resume(path: Path, args: CurveArgs, loaded: LoadedPolicy, task: Any) -> dict[str, Any]:
    """Return the results so far, or none yet, with all that they depend on.

    Raises:
        ValueError: those in the folder are of another policy or of other settings.
    """
    about = {
        "task": configs.to_json(task), "robot": loaded.policy.robot.name,
        "weights": weights_hash(loaded.folder), "episodes": args.episodes, "seed": args.seed,
        "delays": list(args.delays), "distractors": list(args.distractors),
        "ceiling": task.ceiling, "window_steps": window_steps(loaded.policy),
        "state_bytes": state_bytes(loaded.policy),
    }  # fmt: skip
    if not path.exists():
        return {**about, "cells": {}}
    with files.parsing(path, "delete it to measure anew"):
        stored: dict[str, Any] = json.loads(path.read_text())
    other = [name for name, value in about.items() if stored.get(name) != value]
    if other:
        raise ValueError(
            f"{path}: holds a curve with other {', '.join(other)}; give the same settings to "
            "continue it, or another --out"
        )
    return stored


def table(args: CurveArgs, results: Mapping[str, Any]) -> Table:
    """Return success with its 95 % interval and recall, the share of right choices among all, by
    delay and number of distractors.
    """
    sheet = Table(title=f"{_title(results)}; ceiling without memory {results['ceiling']:.1%}")
    for name in ("delay", "beyond its window"):
        sheet.add_column(name, justify="right")
    for events in args.distractors:
        sheet.add_column(f"{events} distractors", justify="right")
        sheet.add_column("recall", justify="right")
    for delay in args.delays:
        sheet.add_row(str(delay), _beyond(results, delay), *_shares(args, results, delay))
    return sheet


def _costs(results: Mapping[str, Any]) -> str:
    window = results["window_steps"]
    if window == 0:
        return "no memory"
    holds = {
        "unbounded": "nothing leaves it at a fixed age",
        "unknown": "its window is not known: the policy is exported, or its memory does not tell",
    }.get(window, f"nothing in it is older than {window} control steps, its window")
    return f"memory: {results['state_bytes'] / 1e3:.1f} kB at any delay; {holds}"


def page(args: CurveArgs, results: Mapping[str, Any]) -> str:
    """Return the curves as one self-contained page."""
    names = [f"{events} distractors" for events in args.distractors]
    header = ["delay", *(part for name in names for part in (name, "recall"))]
    rows = [[delay, *_shares(args, results, delay)] for delay in args.delays]
    return pages.render(
        "training/report/curve.html.j2", title=_title(results), costs=_costs(results),
        names=[*names, f"ceiling without memory, {results['ceiling']:.1%}"],
        header=header, rows=rows, drawing=charts.svg(_drawing(args, results)),
    )  # fmt: skip


def _drawing(args: CurveArgs, results: Mapping[str, Any]) -> charts.Figure:
    """Return success against the logarithm of the delay, with 95 % bands, ceiling and window."""
    x = [math.log2(delay) for delay in args.delays]
    cells = [
        [results["cells"][_key(d, events)] for d in args.delays] for events in args.distractors
    ]
    shares = [[cell["success"] / cell["episodes"] for cell in line] for line in cells]
    ceiling = [(place, results["ceiling"]) for place in (min(x), max(x))]
    lines = [list(zip(x, line, strict=True)) for line in shares]
    drawing = charts.curves(
        [*lines, ceiling], x_label="delay, control steps", y_label="success", y_range=(0, 1)
    )
    axes = drawing.axes[0]
    for place, line in enumerate(cells):
        low, high = zip(*(wilson(c["success"], c["episodes"]) for c in line), strict=True)
        axes.fill_between(x, low, high, color=charts.colour(place), alpha=0.15, linewidth=0)
    axes.set_xlim(min(x) - 0.1, max(x) + 0.1)
    axes.set_xticks(x, [str(delay) for delay in args.delays])
    window = results["window_steps"]
    if isinstance(window, int) and min(args.delays) <= window <= max(args.delays):
        axes.axvline(math.log2(window), color=charts.TEXT, linewidth=1, linestyle=":")
    return drawing


def _title(results: Mapping[str, Any]) -> str:
    return f"{configs.title(results['task'])}, {results['episodes']} episodes a test"


def _beyond(results: Mapping[str, Any], delay: int) -> str:
    """Return whether a delay is surely longer than a memory's window."""
    window = results["window_steps"]
    if isinstance(window, int):
        return "yes" if delay > window else "no"
    return {"unbounded": "no window"}.get(window, pages.NONE)


def _shares(args: CurveArgs, results: Mapping[str, Any], delay: int) -> Iterator[str]:
    """Yield success with its interval, and recall, at a delay with each number of distractors."""
    for events in args.distractors:
        cell = results["cells"][_key(delay, events)]
        low, high = wilson(cell["success"], cell["episodes"])
        yield f"{cell['success'] / cell['episodes']:.1%} ({low:.1%} to {high:.1%})"
        yield f"{cell['success'] / cell['choices']:.1%}" if cell["choices"] else pages.NONE


def _key(delay: int, distractors: int) -> str:
    return f"delay {delay} distractors {distractors}"
