"""`python -m robot_bridge.monitor_study`: how often a critic would stop an arm for nothing.

Recorded episodes whose outcome is known are shown to an exported critic moment by moment, and what
it says to `robot_bridge.watch`. Thresholds are chosen on one half of the episodes and reported on
the other. What the arm would have done once it was slowed is not played: that is left out.
"""

import itertools
import json
import sys
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.parquet as pq
from rich.console import Console
from rich.progress import track
from rich.table import Table

from deploy.critic.deployed import DeployedCritic
from deploy.opening import open_critic
from robot_bridge.watch import Watch, WatchConfig
from vla import arguments
from vla.contracts.config import check_least
from vla.contracts.types import Frames
from vla.data.decode import FrameChoice, decode_views
from vla.data.reader import open_dataset, read_columns, table_files
from vla.statistics import wilson

OUTCOMES = ("good", "bad")
ALARMS = ("slow", "help", "hold")
GRID: dict[str, tuple[float, ...]] = {
    "gain": (0.03, 0.05, 0.1), "stall_s": (1.0, 1.4, 2.0, 3.0), "drop": (0.2, 0.3, 0.4),
    "sustain_s": (0.2, 0.4, 0.8), "confident": (0.2, 0.4, 0.6), "done": (0.5, 0.8),
}  # fmt: skip
"""Thresholds that are tried; help comes after `PATIENCE` times as long as slowness."""
PATIENCE = 2.5
GAINED = 0.05
"""True progress that counts as going on, for when trouble began."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Watch recorded episodes."""

    critic: Path
    """Folder that `vla export` wrote of a critic."""
    data: tuple[Path, ...]
    """Data sets with columns success and progress, as `vla demos` records them."""
    tolerated: float = 0.05
    """Share of good episodes in which the half that chooses may be disturbed."""
    linger_s: float = 5.0
    """How long the last picture of every episode is shown on: recordings end soon after the arm has
    failed or is done, and a real one then stands there."""
    seed: int = 0
    """Of the halves."""
    threads: int = 1
    """CPU threads of the critic."""
    out: Path = Path("runs/monitor")
    """Folder of monitor.json."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and no data."""
        check_least(self, tolerated=0, linger_s=0, seed=0, threads=1)
        if not self.data:
            raise ValueError("data: got nothing, expected one data set or more")


class Episode(NamedTuple):
    """A recorded episode as the critic sees it, F moments."""

    behaviour: str
    """Who acted."""
    good: bool
    """Whether the task was complete at the end."""
    time_s: np.ndarray
    """f64 [f]."""
    truth: np.ndarray
    """f32 [f], progress by the simulator."""
    said: np.ndarray
    """f32 [f, 3], what the critic says: value, done_prob, confidence."""


class Found(NamedTuple):
    """What a watch made of an episode."""

    first_s: dict[str, float]
    """When each state was first entered, of those that were."""
    spent_s: dict[str, float]
    """Time in each state."""


def look(
    critic: DeployedCritic, path: Path, linger_s: float, steps_s: list[float]
) -> list[Episode]:
    """Return what a critic says of a data set's episodes.

    Args:
        critic: Who says it.
        path: The data set.
        linger_s: How long the last picture of each is shown on.
        steps_s: Takes how long it took for each moment.

    Raises:
        ValueError: the set is damaged, or lacks a camera or the outcome.
    """
    info = open_dataset(path)
    columns = read_columns(info).scalars
    if not {"success", "progress"} <= set(columns):
        raise ValueError(f"{path}: lacks success and progress; record it with `vla demos`")
    behaviour = _behaviours(path)
    views = tuple(info.camera(name) for name in critic.cameras)
    stride, found = max(1, round(critic.config.stride_s * info.fps)), []
    for e in track(range(info.num_episodes), f"{path.name}", console=Console(stderr=True)):
        shown = np.arange(0, info.lengths[e] + linger_s * info.fps, stride)
        step = np.minimum(shown, info.lengths[e] - 1).astype(np.int64)
        frames = FrameChoice(episode=np.full(len(step), e), step=step)
        images = np.zeros((len(step), len(views), *critic.image_hw, 3), np.uint8)
        decode_views(info, views, frames, critic.image_hw, out=images)
        rows = info.offsets[e] + step
        found.append(
            Episode(
                behaviour=behaviour.get(e, "unknown"), time_s=shown / info.fps,
                good=bool(columns["success"][info.offsets[e + 1] - 1] > 0),
                truth=columns["progress"][rows],
                said=_said(critic, images, shown / info.fps, info.tasks[e], steps_s),
            )
        )  # fmt: skip
    return found


def watch(config: WatchConfig, episode: Episode) -> Found:
    """Return what a watch makes of an episode."""
    watching, state, before_s = Watch(config), "fine", 0.0
    first_s: dict[str, float] = {}
    spent_s: dict[str, float] = {}
    for now_s, said in zip(episode.time_s.tolist(), episode.said.tolist(), strict=True):
        spent_s[state] = spent_s.get(state, 0.0) + now_s - before_s
        state, before_s = watching.take(now_s, *said), now_s
        first_s.setdefault(state, now_s)
    return Found(first_s, spent_s)


def choose(episodes: list[Episode], tolerated: float) -> WatchConfig:
    """Return the thresholds that notice most bad episodes of those that disturb few enough good
    ones; of equals those that disturb less.

    Raises:
        ValueError: there are no good or no bad episodes, or all thresholds disturb too many.
    """
    good, bad = ([e for e in episodes if e.good == kind] for kind in (True, False))
    if not good or not bad:
        raise ValueError(f"data: got {len(good)} good and {len(bad)} bad episodes; need both")
    best: tuple[tuple[float, float, float], WatchConfig] | None = None
    for values in itertools.product(*GRID.values()):
        given = dict(zip(GRID, values, strict=True))
        config = replace(WatchConfig(), **given, help_s=PATIENCE * given["stall_s"])
        false = np.mean([_alarmed(watch(config, e)) for e in good])
        if false > tolerated:
            continue
        seen = [watch(config, e) for e in bad]
        score = (
            float(np.mean([_alarmed(one) for one in seen])),
            float(np.mean(["hold" in one.first_s for one in seen])), -float(false),
        )  # fmt: skip
        if best is None or score > best[0]:
            best = score, config
    if best is None:
        raise ValueError(f"tolerated: {tolerated} is kept by no thresholds; allow more")
    return best[1]


def summary(config: WatchConfig, episodes: list[Episode]) -> dict[str, dict[str, Any]]:
    """Return figures by outcome, and of bad episodes by who acted."""
    groups = {"good": [e for e in episodes if e.good], "bad": [e for e in episodes if not e.good]}
    for name in sorted({e.behaviour for e in groups["bad"]}):
        groups[f"bad: {name}"] = [e for e in groups["bad"] if e.behaviour == name]
    return {name: _figures(config, group) for name, group in groups.items()}


def sheet(figures: dict[str, dict[str, Any]], title: str) -> Table:
    """Return the figures as a table."""
    table = Table(title=title)
    heads = ("episodes", "number", "any alarm", "95 %", *ALARMS, "time in them", "delay")
    for head in heads:
        table.add_column(head, justify="left" if head == "episodes" else "right")
    for name, one in figures.items():
        low, high = one["any 95 %"]
        delay = one["delay_s"]
        table.add_row(
            name, str(one["number"]), f"{one['any']:.0%}", f"{low:.0%} to {high:.0%}",
            *(f"{one[alarm]:.0%}" for alarm in ALARMS), f"{one['time']:.1%}",
            f"{np.median(delay):.1f} s" if delay else "",
        )  # fmt: skip
    return table


def main(argv: list[str] | None = None) -> int:
    """Run the study; return the exit code."""
    prog = "python -m robot_bridge.monitor_study"
    try:
        args = arguments.read(StudyArgs, sys.argv[1:] if argv is None else argv, prog)
        critic, steps_s = open_critic(args.critic, args.threads), list[float]()
        episodes = [one for path in args.data for one in look(critic, path, args.linger_s, steps_s)]
        order = np.random.default_rng(args.seed).permutation(len(episodes))
        half = len(order) // 2
        first, second = ([episodes[i] for i in part] for part in (order[:half], order[half:]))
        config = choose(first, args.tolerated)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    result: dict[str, Any] = {
        "critic": str(args.critic), "data": [str(path) for path in args.data],
        "linger_s": args.linger_s, "seed": args.seed, "tolerated": args.tolerated,
        "thresholds": asdict(config), "chosen on": summary(config, first),
        "reported on": summary(config, second),
        "defaults, all": summary(WatchConfig(), episodes),
        "step_ms": {f"p{q}": 1e3 * float(np.percentile(steps_s, q)) for q in (50, 99)},
    }  # fmt: skip
    console = Console(width=120)
    for part in ("chosen on", "reported on", "defaults, all"):
        console.print(
            sheet(
                result[part],
                f"{part}: {sum(result[part][name]['number'] for name in OUTCOMES)} episodes",
            )
        )
    console.print(f"thresholds: {asdict(config)}")
    p50, p99 = result["step_ms"].values()
    console.print(f"a moment takes {p50:.1f} ms (p50), {p99:.1f} ms (p99)")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "monitor.json").write_text(json.dumps(result, indent=1))
    return 0


def _figures(config: WatchConfig, group: list[Episode]) -> dict[str, Any]:
    found = [watch(config, episode) for episode in group]
    alarmed = sum(map(_alarmed, found))
    whole_s = sum(sum(one.spent_s.values()) for one in found)
    delays_s = [
        min(one.first_s[a] for a in ALARMS if a in one.first_s) - _trouble_s(episode)
        for one, episode in zip(found, group, strict=True) if _alarmed(one) and not episode.good
    ]  # fmt: skip
    return {
        "number": len(group), "any": alarmed / max(1, len(group)),
        "any 95 %": wilson(alarmed, len(group)) if group else (0.0, 1.0),
        **{a: sum(a in one.first_s for one in found) / max(1, len(group)) for a in ALARMS},
        "time": sum(one.spent_s.get(a, 0.0) for one in found for a in ALARMS) / max(whole_s, 1e-9),
        "delay_s": delays_s,
    }  # fmt: skip


def _alarmed(found: Found) -> bool:
    return any(alarm in found.first_s for alarm in ALARMS)


def _trouble_s(episode: Episode) -> float:
    """Return when a bad episode last came nearer to its best true progress: trouble follows."""
    near = episode.truth >= episode.truth.max() - GAINED
    return float(episode.time_s[np.argmax(near)])


def _said(
    critic: DeployedCritic, images: np.ndarray, time_s: np.ndarray, task: str, steps_s: list[float]
) -> np.ndarray:
    stream, said = critic.start(1), []
    for image, now_s in zip(images, time_s, strict=True):
        frames = Frames(
            images=image[None], image_ok=np.ones((1, len(image)), np.bool_),
            time_s=np.array([now_s]), row=np.zeros(1, np.int64),
        )  # fmt: skip
        begin_s = time.perf_counter()
        progress, stream = critic.step(stream, frames, (task,))
        steps_s.append(time.perf_counter() - begin_s)
        said.append((progress.value[0], progress.done_prob[0], progress.confidence[0]))
    return np.array(said, np.float32)


def _behaviours(path: Path) -> dict[int, str]:
    """Return who acted, by episode, where that was recorded."""
    found: dict[int, str] = {}
    for file in table_files(path, "data"):
        if "behaviour" in pq.read_schema(file).names:
            table = pq.read_table(file, columns=["episode_index", "behaviour"])
            names = table["behaviour"].to_pylist()
            found.update(zip(table["episode_index"].to_pylist(), names, strict=True))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
