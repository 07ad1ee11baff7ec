"""The page of `vla report`: runs as one self-contained HTML text."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.rl.diagnostics import training_diagnostics
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig
from vla.utils import charts, pages, statistics
from vla.utils.pages import NONE

MAX_VIDEO_BYTES, MAX_VIDEOS_BYTES = 6_000_000, 12_000_000
"""Largest size of a video, and of all videos; larger ones are named but not embedded."""
SHARES = {
    "success": "success", "predicted_success": "predicted success",
    "success_accuracy": "accuracy of the prediction",
    "mismatched_success": "predicted with another task's instruction",
    "intervention_rate": "interventions, of decisions",
    "intervention_episodes": "episodes with an intervention",
    "retry_episodes": "episodes with a retry",
}  # fmt: skip
"""Metrics of an iteration of online RL that are shares, and their headings."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """Files of one run; parts that do not exist yet are None or empty."""

    name: str
    """Short name, unique on the page."""
    folder: Path
    config: dict[str, Any]
    metrics: list[dict[str, int | float]]
    """Rows of metrics, oldest first."""
    checkpoint: dict[str, Any]
    """Content of the checkpoint's policy.json."""
    evaluation: dict[str, Any] | None
    """Result of the evaluation on the training task."""
    others: list[dict[str, Any]]
    """Results of evaluations on other tasks or settings."""
    memory: dict[str, Any] | None
    """Description of the memory plot."""

    @property
    def policy(self) -> dict[str, Any]:
        """Configuration of the policy; for online RL, of the policy it started from."""
        return self.config.get("policy") or self.checkpoint.get("policy") or {}

    @property
    def task(self) -> str:
        """Name of the training task."""
        return str(self.config["task"]["type"])

    @property
    def memory_type(self) -> str:
        """Kind of memory; the policy's type for baselines."""
        if "memory" not in self.policy:
            return str(self.policy.get("type", "no memory"))
        kind = self.policy["memory"].get("type", "none")
        return "no memory" if kind == "none" else f"memory {kind}"

    @property
    def step(self) -> int:
        """Updates so far."""
        return max((int(row["step"]) for row in self.metrics), default=0)

    @property
    def train_s(self) -> float:
        """Time of all updates, in seconds."""
        return sum((row.get("seconds", 0.0) for row in self.metrics), 0.0)

    @property
    def iterations(self) -> dict[float, dict[str, int | float]]:
        """Metrics of the iterations of online RL, by the episodes so far."""
        rows = [row for row in self.metrics if "rollout/episodes" in row]
        return {row["rollout/episodes"]: row for row in rows}


def page(runs: Sequence[Run], deployed: str = "") -> str:
    """Return the page about runs, with a section about the deployed policy."""
    return pages.render(
        "training/report/page.html.j2", tasks=", ".join(dict.fromkeys(run.task for run in runs)),
        names=[run.name for run in runs], findings=findings(runs), runs=runs,
        results=[_result(run.evaluation) for run in runs], duration=_duration, **_differences(runs),
        drawings=list(_charts(runs)), deployed=deployed, videos=list(_videos(runs)), shares=SHARES,
        diagnostics=[_diagnostics(run) for run in runs], memories=[_memory(run) for run in runs],
        others=[list(_others(run)) for run in runs],
        configs=[json.dumps(run.config, indent=1) for run in runs],
    )  # fmt: skip


def chance(task: Mapping[str, Any]) -> float | None:
    """Return the ceiling of policies without memory on a memory task; None for other tasks."""
    if "choices" not in task or task.get("delay_steps") == [0, 0]:
        return None
    try:
        config: Any = configs.from_json(PluginConfig, task, package="sim.tasks")
    except ValueError:  # of another version: the page goes on without
        return None
    return float(config.ceiling)


def findings(runs: Sequence[Run]) -> Iterator[str]:
    """Yield sentences that interpret the results."""
    for run in runs:
        if run.evaluation is None:
            yield f"{run.name} has not been evaluated yet: run `vla eval {run.folder}`."
            continue
        low, high = run.evaluation["interval"]
        count = len(run.evaluation["success"])
        summary = (
            f"{run.name} ({run.memory_type}) solved {sum(run.evaluation['success'])} of {count} "
            f"episodes: {run.evaluation['rate']:.1%}, 95 % interval {low:.1%} to {high:.1%}"
        )
        guess = chance(run.evaluation["task"])
        if guess is None:
            yield f"{summary}."
        elif low > guess:
            yield f"{summary}; this is above chance ({guess:.1%}): the policy remembers."
        elif high < guess:
            yield f"{summary}; this is below chance ({guess:.1%})."
        else:
            yield f"{summary}; this is compatible with chance ({guess:.1%})."
    guesses = {chance(run.config["task"]) for run in runs} - {None}
    if guesses:
        levels = " or ".join(f"{guess:.1%}" for guess in sorted(g for g in guesses if g))
        yield (
            f"Chance ({levels}) is the upper bound of any policy without memory: nothing that is "
            "seen while the arm is free tells what had to be remembered."
        )


def _result(evaluation: Mapping[str, Any] | None) -> list[str]:
    """Return success rate, interval, episodes and seed of an evaluation."""
    if not evaluation:
        return [NONE] * 4
    wins, count = sum(evaluation["success"]), len(evaluation["success"])
    low, high = statistics.wilson(wins, count)
    return [f"{wins / count:.1%}", f"{low:.1%} to {high:.1%}", str(count), str(evaluation["seed"])]


def _differences(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the settings in which the runs differ, with their values, and whether all runs have
    the same fields; between imitation and online RL only common fields are compared.
    """
    flat = [dict(_flatten({**run.config, "policy": run.policy})) for run in runs]
    keys = list(dict.fromkeys(key for settings in flat for key in settings))
    alike = len({frozenset(run.config) for run in runs}) == 1
    if not alike:
        keys = [key for key in keys if all(key in settings for settings in flat)]
    rows = [[key, *(settings.get(key, NONE) for settings in flat)] for key in keys]
    differ = [row for row in rows if len({json.dumps(value) for value in row[1:]}) > 1]
    return {"differences": [[_plain(value) for value in row] for row in differ], "alike": alike}


def _charts(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Yield the charts for which there are data, and their captions."""
    if any(run.evaluation for run in runs):
        guesses = {chance(run.config["task"]) for run in runs}
        rows = [_interval(run) for run in runs]
        drawing = charts.intervals(rows, guesses.pop() if len(guesses) == 1 else None)
        yield charts.svg(drawing), "Success with Wilson 95 % intervals."
    loss, success = _series(runs, "loss"), _series(runs, "eval/success")
    if any(loss):
        drawing = charts.curves(loss, x_label="updates", y_label="loss", log=True)
        yield charts.svg(drawing), "Training loss, on a logarithmic axis."
    if any(success):
        drawing = charts.curves(success, x_label="updates", y_label="success", y_range=(0.0, 1.0))
        yield charts.svg(drawing), "Success rate of the evaluations during training."


def _series(runs: Sequence[Run], key: str) -> list[charts.Points]:
    return [[(row["step"], row[key]) for row in run.metrics if key in row] for run in runs]


def _interval(run: Run) -> charts.Interval | None:
    if run.evaluation is None:
        return None
    low, high = run.evaluation["interval"]
    return charts.Interval(run.name, run.evaluation["rate"], low, high)


def _videos(runs: Sequence[Run]) -> Iterator[tuple[str, str]]:
    """Yield each run's video as a data URI (empty if there is none), and why it is not shown."""
    left = MAX_VIDEOS_BYTES
    for run in runs:
        path = run.folder / "episodes.mp4"
        size = path.stat().st_size if path.is_file() else 0
        if not size:
            yield "", ""
        elif size > min(MAX_VIDEO_BYTES, left):
            yield "", f"The video ({size / 1e6:.1f} MB) is too large for this page: {path}"
        else:
            left -= size
            yield pages.data_uri(path.read_bytes(), "video/mp4"), ""


def _diagnostics(run: Run) -> dict[str, Any]:
    """Return the diagnostics of every iteration: names, values with alarms, and advice."""
    names = [
        name
        for name in training_diagnostics.BOUNDS
        if any(name in row for row in run.iterations.values())
    ]
    rows, advice = [], []
    for episodes, row in run.iterations.items():
        alarms = [name for name in names if f"{name}_alarm" in row]
        rows.append((episodes, [(row.get(name), name in alarms) for name in names]))
        advice += [
            f"After {episodes:.0f} episodes: {training_diagnostics.advice(name)}."
            for name in alarms
        ]
    head = [training_diagnostics.BOUNDS[name].description for name in names]
    return {"head": head, "rows": rows, "advice": advice}


def _memory(run: Run) -> str:
    """Return the memory plot as a data URI; empty if there is none."""
    path = run.folder / "memory.svg"
    if run.memory is None or not path.is_file():
        return ""
    return pages.data_uri(path.read_bytes(), "image/svg+xml")


def _others(run: Run) -> Iterator[list[str | None]]:
    """Yield a row for each evaluation on another task or with other settings."""
    for evaluation in run.others:
        task, trained = evaluation["task"], run.config["task"]
        same = trained["type"] == task["type"]
        changed = [f"{k} {_plain(v)}" for k, v in task.items() if same and v != trained.get(k)]
        guess = chance(task)
        yield [
            task["type"], ", ".join(changed) or NONE, *_result(evaluation),
            f"{guess:.1%}" if guess else NONE,
        ]  # fmt: skip


def _flatten(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of nested objects with dotted names."""
    if not isinstance(value, dict):
        yield name, value
        return
    for key, inner in value.items():
        yield from _flatten(inner, f"{name}.{key}" if name else key)


def _plain(value: Any) -> str:
    if not isinstance(value, list):
        return str(value)
    numbers = all(isinstance(element, int | float) for element in value)
    return (" to " if numbers else ", ").join(map(str, value))


def _duration(seconds: float) -> str:
    if seconds <= 0:
        return NONE
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
