"""The page of `vla report`: runs as one self-contained HTML text; it computes no figures."""

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from training.rl import health
from vla import pages, statistics, svg
from vla.pages import NONE, dot, escape, figure, table

MAX_VIDEO_BYTES, MAX_VIDEOS_BYTES = 6_000_000, 12_000_000
"""A video above the first, or that lifts all above the second, is named instead of shown."""


SHARES = ("success", "claimed", "right", "foreign", "helped", "attended", "retried")
"""Figures of a round of practice that are shares."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is known of one run; parts that do not exist yet are None or empty."""

    name: str
    """Short name, unlike that of any other run on the page."""
    folder: Path
    """Where it is."""
    config: dict[str, Any]
    """Configuration of the training."""
    metrics: list[dict[str, int | float]]
    """Rows of figures, oldest first."""
    checkpoint: dict[str, Any]
    """Content of the checkpoint's policy.json."""
    evaluation: dict[str, Any] | None
    """Outcome of the test on the task it was trained on."""
    others: list[dict[str, Any]]
    """Outcomes of tests on other tasks or settings."""
    memory: dict[str, Any] | None
    """What the picture of the memory shows."""

    @property
    def policy(self) -> dict[str, Any]:
        """Configuration of the policy; a run of practice has that of the one it started from."""
        return self.config.get("policy") or self.checkpoint.get("policy") or {}

    @property
    def step(self) -> int:
        """Updates so far."""
        return max((int(row["step"]) for row in self.metrics), default=0)

    @property
    def train_s(self) -> float:
        """Time spent on updates over all sittings, in seconds."""
        return sum((row.get("seconds", 0.0) for row in self.metrics), 0.0)


def page(runs: Sequence[Run], deployed: Sequence[str] = ()) -> str:
    """Return the page about one run or several, with parts about what was deployed of them."""
    tasks = ", ".join(dict.fromkeys(_task(run) for run in runs))
    title = f"{tasks}: {', '.join(run.name for run in runs)}"
    body = [
        f"<h1>{escape(tasks)}</h1>",
        f'<p class="soft">{len(runs)} {"run" if len(runs) == 1 else "runs"}: '
        f"{escape(', '.join(run.name for run in runs))}</p>",
        *(f"<p>{escape(sentence)}</p>" for sentence in findings(runs)),
        _overview(runs),
        *_differences(runs),
        *_charts(runs),
        *deployed,
    ]
    room = MAX_VIDEOS_BYTES
    for i, run in enumerate(runs):
        video, room = _video(run, room)
        body += [f"<h2>{dot(i)}{escape(run.name)}</h2>", video, *_practice(run), *_memory(run)]
        body += [*_others(run), *_details(run)]
    return pages.document(title, body)


def chance(task: Mapping[str, Any]) -> float | None:
    """Return the success of a policy without memory on a memory task, 1/K; None for other tasks."""
    if "choices" not in task or task.get("delay_steps") == [0, 0]:
        return None
    return 1 / task["choices"]


def findings(runs: Sequence[Run]) -> Iterator[str]:
    """Yield plain sentences that say what the figures mean."""
    for run in runs:
        if run.evaluation is None:
            yield f"{run.name} has not been tested yet: `vla eval {run.folder}` does it."
            continue
        low, high = run.evaluation["interval"]
        count = len(run.evaluation["success"])
        sentence = (
            f"{run.name} ({_memory_type(run)}) solved {sum(run.evaluation['success'])} of {count} "
            f"episodes: {run.evaluation['rate']:.1%}, 95 % interval {low:.1%} to {high:.1%}"
        )
        guess = chance(run.evaluation["task"])
        if guess is None:
            yield f"{sentence}."
        elif low > guess:
            yield f"{sentence}; chance, {guess:.1%}, lies below it: it remembers."
        elif high < guess:
            yield f"{sentence}; that is less than chance, {guess:.1%}."
        else:
            yield f"{sentence}; chance, {guess:.1%}, lies within it."
    guesses = {chance(run.config["task"]) for run in runs} - {None}
    if guesses:
        levels = " or ".join(f"{guess:.1%}" for guess in sorted(g for g in guesses if g))
        yield (
            f"Chance is the ceiling of any policy without memory, {levels}: when the arm is let "
            "go, everything it can observe is independent of the cue."
        )


def _overview(runs: Sequence[Run]) -> str:
    head = ["run", "task", "memory", "parameters", "updates", "success", "95 % interval"]
    head += ["episodes", "seed", "training time"]
    rows = []
    for i, run in enumerate(runs):
        size = run.checkpoint.get("parameters")
        steps = f"{run.step:,}"
        if run.step < run.config["steps"]:
            steps += f" of {run.config['steps']:,}, unfinished"
        cells = [_task(run), _memory_type(run), f"{size:,}" if size else NONE, steps]
        cells += [*_result(run.evaluation), _duration(run.train_s)]
        rows.append([f"{dot(i)}{escape(run.name)}", *map(escape, cells)])
    return table(head, rows, numbers=range(3, 10), strong=5)


def _result(evaluation: Mapping[str, Any] | None) -> list[str]:
    """Return success, interval, episodes and seed of a test."""
    if not evaluation:
        return [NONE] * 4
    wins, count = sum(evaluation["success"]), len(evaluation["success"])
    low, high = statistics.wilson(wins, count)
    return [f"{wins / count:.1%}", f"{low:.1%} to {high:.1%}", str(count), str(evaluation["seed"])]


def _differences(runs: Sequence[Run]) -> Iterator[str]:
    """Yield a table of the settings in which the runs differ; of cloning and practice, of those
    that both have.
    """
    flat = [dict(_flatten({**run.config, "policy": run.policy})) for run in runs]
    keys = list(dict.fromkeys(k for one in flat for k in one))
    alike = len({frozenset(run.config) for run in runs}) == 1
    if not alike:
        keys = [key for key in keys if all(key in one for one in flat)]
    keys = [key for key in keys if len({json.dumps(one.get(key, NONE)) for one in flat}) > 1]
    if keys:
        yield "<h3>What differs</h3>"
        rows = [
            [escape(key), *(escape(_plain(one.get(key, NONE))) for one in flat)] for key in keys
        ]
        yield table(["setting", *(run.name for run in runs)], rows)
        others = "All other settings agree." if alike else "All others that both have agree."
        yield f'<p class="soft">{others}</p>'


def _charts(runs: Sequence[Run]) -> Iterator[str]:
    """Yield the charts for which there are figures."""
    names = [run.name for run in runs]
    figures = []
    if any(run.evaluation for run in runs):
        guesses = {chance(run.config["task"]) for run in runs}
        rows = [_interval(run) for run in runs]
        drawing = svg.intervals(rows, guesses.pop() if len(guesses) == 1 else None)
        figures.append(figure(drawing, "Success with Wilson 95 % intervals."))
    if _has(runs, "loss"):
        series = [_series(run, "loss") for run in runs]
        drawing = svg.curves(series, x_label="updates", y_label="loss", log=True)
        figures.append(figure(drawing, "Training loss, on a logarithmic axis."))
    if _has(runs, "eval/success"):
        series = [_series(run, "eval/success") for run in runs]
        drawing = svg.curves(series, x_label="updates", y_label="success", y_range=(0.0, 1.0))
        figures.append(figure(drawing, "Success in the tests during training."))
    if figures:
        yield "<h2>Curves</h2>"
        yield svg.legend(names)
        yield f'<div class="pair">{"".join(figures)}</div>'


def _has(runs: Sequence[Run], key: str) -> bool:
    return any(key in row for run in runs for row in run.metrics)


def _series(run: Run, key: str) -> svg.Points:
    return [(row["step"], row[key]) for row in run.metrics if key in row]


def _interval(run: Run) -> svg.Interval | None:
    if run.evaluation is None:
        return None
    low, high = run.evaluation["interval"]
    return svg.Interval(run.name, run.evaluation["rate"], low, high)


def _video(run: Run, room_bytes: int) -> tuple[str, int]:
    """Return the run's video, or why there is none, and the room left for those of other runs."""
    path = run.folder / "episodes.mp4"
    if not path.is_file():
        return (
            f'<p class="soft">No video yet: <code>vla eval {escape(str(run.folder))}</code></p>',
            (room_bytes),
        )
    size = path.stat().st_size
    if size > min(MAX_VIDEO_BYTES, room_bytes):
        text = f"The video ({size / 1e6:.1f} MB) is too large for this page: {path}"
        return f'<p class="soft">{escape(text)}</p>', room_bytes
    data = base64.b64encode(path.read_bytes()).decode()
    caption = (
        "The first episodes of the test, front and wrist camera, at the robot's own pace. "
        "A green frame is a success, a red one a failure."
    )
    film = f'<video controls loop muted playsinline src="data:video/mp4;base64,{data}"></video>'
    return f"<h3>Episodes</h3>{figure(film, caption)}", room_bytes - size


def _practice(run: Run) -> Iterator[str]:
    """Yield a table of the rounds of practice: what the reward claimed and what was true."""
    rounds = {row["practice/episodes"]: row for row in run.metrics if "practice/episodes" in row}
    if not rounds:
        return
    rows = [
        [
            f"{episodes:.0f}", *(_share(row.get(f"practice/{key}")) for key in SHARES),
            _correlation(row.get("practice/agreement")),
            "yes" if row.get("practice/alarm") else "no",
        ]
        for episodes, row in rounds.items()
    ]  # fmt: skip
    head = ["episodes so far", "success", "claimed by the reward", "claims that are right"]
    head += [
        "claimed under another task's instruction",
        "decisions by a helper",
        "episodes with a helper",
        "episodes with a new attempt",
        "rank correlation of return and true return",
        "alarm",
    ]
    yield "<h3>Rounds of practice</h3>"
    yield table(head, rows, numbers=range(10), strong=1)
    yield (
        '<p class="soft">The policy acts with noise in practice, and helpers act in it: its '
        "success is not that of the tests.</p>"
    )
    yield from _health(rounds)


def _health(rounds: Mapping[int | float, Mapping[str, int | float]]) -> Iterator[str]:
    """Yield a table of the health of every round, and what its alarms said."""
    names = [name for name in health.BOUNDS if any(name in row for row in rounds.values())]
    if not names:
        return
    rows, said = [], []
    for episodes, row in rounds.items():
        loud = [name for name in names if f"{name}_alarm" in row]
        cells = [_figure(row.get(name), name in loud) for name in names]
        rows.append([f"{episodes:.0f}", *cells])
        said += [f"After {episodes:.0f} episodes: {health.advice(name)}." for name in loud]
    yield "<h3>Health of practice</h3>"
    yield table(
        ["episodes so far", *(health.BOUNDS[name].words for name in names)], rows,
        numbers=range(len(names) + 1),
    )  # fmt: skip
    if said:
        yield f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in said)}</ul>"
    else:
        yield '<p class="soft">No alarm sounded.</p>'


def _figure(value: float | None, loud: bool) -> str:
    """Return a figure, in bold where its alarm sounded."""
    text = NONE if value is None else f"{value:.3g}"
    return f"<b>{text}</b>" if loud else text


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"


def _correlation(value: float | None) -> str:
    """Return it with two digits; there is none where all episodes ended alike."""
    return NONE if value is None or math.isnan(value) else f"{value:.2f}"


def _memory(run: Run) -> Iterator[str]:
    """Yield the picture of what the slots hold."""
    path = run.folder / "memory.svg"
    if run.memory is None or not path.is_file():
        return
    found = run.memory
    caption = (
        f"Episode {found['episode']} ({'success' if found['success'] else 'failure'}), "
        f"“{found['instruction']}”. Each row is a decision and shows what the {found['slots']} "
        "slots hold just then, laid out along the past: a dark bar is a slot that holds one "
        "decision, a pale bar one in which many are merged."
    )
    share = found["cue_share_at_go"]
    if share is not None:
        caption += (
            f" When the arm is let go, the slot that holds the cue most purely consists of it to "
            f"{share:.0%}."
        )
    data = base64.b64encode(path.read_bytes()).decode()
    image = f'<img alt="memory slots over time" src="data:image/svg+xml;base64,{data}">'
    yield f"<h3>What the memory holds</h3>{figure(image, caption)}"


def _others(run: Run) -> Iterator[str]:
    """Yield a table of tests on other tasks or settings."""
    if run.others:
        rows = []
        for found in run.others:
            task = found["task"]
            own = run.config["task"] if run.config["task"]["type"] == task["type"] else {}
            changed = [f"{k} {_plain(v)}" for k, v in task.items() if own and v != own.get(k)]
            guess = chance(task)
            cells = [task["type"], ", ".join(changed) or NONE, *_result(found)]
            rows.append([*map(escape, cells), f"{guess:.1%}" if guess else NONE])
        head = ["task", "settings", "success", "95 % interval", "episodes", "seed", "chance"]
        yield "<h3>Tests of the same weights on other tasks or settings</h3>"
        yield table(head, rows, numbers=range(2, 7), strong=2)


def _details(run: Run) -> Iterator[str]:
    """Yield configuration and origin, folded."""
    text = json.dumps(run.config, indent=1)
    yield f"<details><summary>Configuration</summary><pre>{escape(text)}</pre></details>"
    origin = run.checkpoint.get("provenance")
    if origin:
        lines = [f"revision {origin['revision']}", f"weights after update {origin['step']}"]
        lines += [f"{name} {version}" for name, version in origin["versions"].items()]
        lines += [f"robot {run.checkpoint['robot']['name']}", f"folder {run.folder}"]
        lines += ["", "instructions", *(f"  {text}" for text in origin["instructions"])]
        text = "\n".join(lines)
        yield f"<details><summary>Origin</summary><pre>{escape(text)}</pre></details>"


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
    numbers = all(isinstance(one, int | float) for one in value)
    return (" to " if numbers else ", ").join(map(str, value))


def _task(run: Run) -> str:
    return str(run.config["task"]["type"])


def _memory_type(run: Run) -> str:
    if "memory" not in run.policy:
        return str(run.policy.get("type", "no memory"))
    kind = run.policy["memory"].get("type", "none")
    return "no memory" if kind == "none" else f"memory {kind}"


def _duration(seconds: float) -> str:
    if seconds <= 0:
        return NONE
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
