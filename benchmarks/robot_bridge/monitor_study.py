"""How often a reward model would stop an arm without need.

`python -m benchmarks.robot_bridge.monitor_study --reward-model FOLDER --dataset DATASET ...`

An exported reward model scores recorded episodes with a known outcome frame by frame, and
`robot_bridge.sensing.progress_monitor` reads the scores. Thresholds are chosen on one half of the
episodes and reported on the other. What a slowed arm would have done is not simulated.
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

from deploy.loader import open_reward_model
from deploy.reward_model.deployed import DeployedRewardModel
from robot_bridge.sensing.progress_monitor import ProgressMonitor, ProgressMonitorConfig
from vla.contracts.config import validate_min
from vla.contracts.types import Frames
from vla.data.decode import FrameChoice, decode_views
from vla.data.reader import open_dataset, read_columns, table_files
from vla.utils import arguments
from vla.utils.statistics import wilson

OUTCOMES = ("good", "bad")
ALARMS = ("stalled", "intervention_requested", "regressed")
GRID: dict[str, tuple[float, ...]] = {
    "gain": (0.03, 0.05, 0.1), "stall_s": (1.0, 1.4, 2.0, 3.0), "drop": (0.2, 0.3, 0.4),
    "sustain_s": (0.2, 0.4, 0.8), "confident": (0.2, 0.4, 0.6), "done": (0.5, 0.8),
}  # fmt: skip
"""Candidate thresholds; an intervention is requested after `PATIENCE` times the stall."""
PATIENCE = 2.5
GAINED = 0.05
"""True progress that counts as progress, for the time at which trouble began."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Count the alarms of a progress monitor on recorded episodes."""

    reward_model: Path
    """Exported reward model."""
    dataset: tuple[Path, ...]
    """Data sets with columns success and progress, as `vla demos` records them."""
    max_false_alarm_rate: float = 0.05
    """Share of good episodes with an alarm that the chosen thresholds may reach."""
    linger_s: float = 5.0
    """How long the last image of every episode stays: recordings end soon after failure or
    success, while a real arm stands there."""
    seed: int = 0
    """Seed of the halves."""
    threads: int = 1
    """CPU threads of the reward model."""
    out: Path = Path("runs/monitor")
    """Folder of monitor.json."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range, and an empty list of data sets."""
        validate_min(self, max_false_alarm_rate=0, linger_s=0, seed=0, threads=1)
        if not self.dataset:
            raise ValueError("dataset: got none, expected one data set or more")


class Episode(NamedTuple):
    """A recorded episode as the reward model sees it, F frames."""

    behaviour: str
    """Behaviour of the recorded expert."""
    good: bool
    """Whether the task was complete at the end."""
    time_s: np.ndarray
    """f64 [f]."""
    truth: np.ndarray
    """f32 [f], progress by the simulator."""
    scores: np.ndarray
    """f32 [f, 3], what the reward model says: value, done_prob, confidence."""


class Watched(NamedTuple):
    """States of a monitor over an episode."""

    first_s: dict[str, float]
    """When each entered state was first entered."""
    spent_s: dict[str, float]
    """Time in each state."""


def look(
    reward_model: DeployedRewardModel, path: Path, linger_s: float, steps_s: list[float]
) -> list[Episode]:
    """Return a data set's episodes with the scores of a reward model.

    Args:
        reward_model: The exported reward model.
        path: The data set.
        linger_s: How long the last image of each episode stays.
        steps_s: Receives the seconds of each frame.

    Raises:
        ValueError: the set is damaged, or lacks a camera or the outcome.
    """
    info = open_dataset(path)
    columns = read_columns(info).scalars
    if not {"success", "progress"} <= set(columns):
        raise ValueError(f"{path}: lacks success and progress; record it with `vla demos`")
    behaviour = _behaviours(path)
    views = tuple(info.camera(name) for name in reward_model.cameras)
    stride, episodes = max(1, round(reward_model.config.stride_s * info.fps)), []
    for e in track(range(info.num_episodes), f"{path.name}", console=Console(stderr=True)):
        shown = np.arange(0, info.lengths[e] + linger_s * info.fps, stride)
        step = np.minimum(shown, info.lengths[e] - 1).astype(np.int64)
        frames = FrameChoice(episode=np.full(len(step), e), step=step)
        images = np.zeros((len(step), len(views), *reward_model.image_hw, 3), np.uint8)
        decode_views(info, views, frames, reward_model.image_hw, out=images)
        rows = info.offsets[e] + step
        episodes.append(
            Episode(
                behaviour=behaviour.get(e, "unknown"), time_s=shown / info.fps,
                good=bool(columns["success"][info.offsets[e + 1] - 1] > 0),
                truth=columns["progress"][rows],
                scores=_scores(reward_model, images, shown / info.fps, info.tasks[e], steps_s),
            )
        )  # fmt: skip
    return episodes


def watch(config: ProgressMonitorConfig, episode: Episode) -> Watched:
    """Return the states of a monitor over an episode."""
    monitor, state, before_s = ProgressMonitor(config), "nominal", 0.0
    first_s: dict[str, float] = {}
    spent_s: dict[str, float] = {}
    for now_s, scores in zip(episode.time_s.tolist(), episode.scores.tolist(), strict=True):
        spent_s[state] = spent_s.get(state, 0.0) + now_s - before_s
        state, before_s = monitor.update(now_s, *scores), now_s
        first_s.setdefault(state, now_s)
    return Watched(first_s, spent_s)


def choose(episodes: list[Episode], max_false_alarm_rate: float) -> ProgressMonitorConfig:
    """Return the thresholds with few enough false alarms that notice most bad episodes; of equals
    those with fewer false alarms.

    Raises:
        ValueError: there are no good or no bad episodes, or no thresholds are quiet enough.
    """
    good, bad = ([e for e in episodes if e.good == kind] for kind in (True, False))
    if not good or not bad:
        raise ValueError(f"dataset: got {len(good)} good and {len(bad)} bad episodes; need both")
    best: tuple[tuple[float, float, float], ProgressMonitorConfig] | None = None
    for values in itertools.product(*GRID.values()):
        thresholds = dict(zip(GRID, values, strict=True))
        config = replace(
            ProgressMonitorConfig(), **thresholds, help_s=PATIENCE * thresholds["stall_s"]
        )
        false = np.mean([_alarmed(watch(config, e)) for e in good])
        if false > max_false_alarm_rate:
            continue
        watched = [watch(config, e) for e in bad]
        score = (
            float(np.mean([_alarmed(w) for w in watched])),
            float(np.mean(["regressed" in w.first_s for w in watched])), -float(false),
        )  # fmt: skip
        if best is None or score > best[0]:
            best = score, config
    if best is None:
        raise ValueError(
            f"max_false_alarm_rate: no thresholds reach {max_false_alarm_rate}; allow more"
        )
    return best[1]


def summary(config: ProgressMonitorConfig, episodes: list[Episode]) -> dict[str, dict[str, Any]]:
    """Return metrics by outcome, and of bad episodes by behaviour."""
    groups = {"good": [e for e in episodes if e.good], "bad": [e for e in episodes if not e.good]}
    for name in sorted({e.behaviour for e in groups["bad"]}):
        groups[f"bad: {name}"] = [e for e in groups["bad"] if e.behaviour == name]
    return {name: _metrics(config, group) for name, group in groups.items()}


def sheet(metrics: dict[str, dict[str, Any]], title: str) -> Table:
    """Return the metrics as a table."""
    table = Table(title=title)
    heads = ("episodes", "number", "any alarm", "95 %", *ALARMS, "time in them", "delay")
    for head in heads:
        table.add_column(head, justify="left" if head == "episodes" else "right")
    for name, row in metrics.items():
        low, high = row["any 95 %"]
        delay = row["delay_s"]
        table.add_row(
            name, str(row["number"]), f"{row['any']:.0%}", f"{low:.0%} to {high:.0%}",
            *(f"{row[alarm]:.0%}" for alarm in ALARMS), f"{row['time']:.1%}",
            f"{np.median(delay):.1f} s" if delay else "",
        )  # fmt: skip
    return table


def main(argv: list[str] | None = None) -> int:
    """Run the study; return the exit code."""
    prog = "python -m benchmarks.robot_bridge.monitor_study"
    try:
        args = arguments.read(StudyArgs, sys.argv[1:] if argv is None else argv, prog)
        reward_model, steps_s = open_reward_model(args.reward_model, args.threads), list[float]()
        episodes = [
            e for path in args.dataset for e in look(reward_model, path, args.linger_s, steps_s)
        ]
        order = np.random.default_rng(args.seed).permutation(len(episodes))
        half = len(order) // 2
        first, second = ([episodes[i] for i in part] for part in (order[:half], order[half:]))
        config = choose(first, args.max_false_alarm_rate)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    result: dict[str, Any] = {
        "reward_model": str(args.reward_model), "dataset": [str(path) for path in args.dataset],
        "linger_s": args.linger_s, "seed": args.seed,
        "max_false_alarm_rate": args.max_false_alarm_rate,
        "thresholds": asdict(config), "chosen on": summary(config, first),
        "reported on": summary(config, second),
        "defaults, all": summary(ProgressMonitorConfig(), episodes),
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
    console.print(f"a frame takes {p50:.1f} ms (p50), {p99:.1f} ms (p99)")
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "monitor.json").write_text(json.dumps(result, indent=1))
    return 0


def _metrics(config: ProgressMonitorConfig, group: list[Episode]) -> dict[str, Any]:
    watched = [watch(config, episode) for episode in group]
    alarmed = sum(map(_alarmed, watched))
    whole_s = sum(sum(w.spent_s.values()) for w in watched)
    delays_s = [
        min(w.first_s[a] for a in ALARMS if a in w.first_s) - _trouble_s(episode)
        for w, episode in zip(watched, group, strict=True) if _alarmed(w) and not episode.good
    ]  # fmt: skip
    return {
        "number": len(group), "any": alarmed / max(1, len(group)),
        "any 95 %": wilson(alarmed, len(group)) if group else (0.0, 1.0),
        **{a: sum(a in w.first_s for w in watched) / max(1, len(group)) for a in ALARMS},
        "time": sum(w.spent_s.get(a, 0.0) for w in watched for a in ALARMS) / max(whole_s, 1e-9),
        "delay_s": delays_s,
    }  # fmt: skip


def _alarmed(watched: Watched) -> bool:
    return any(alarm in watched.first_s for alarm in ALARMS)


def _trouble_s(episode: Episode) -> float:
    """Return when a bad episode first came near its best true progress: trouble follows."""
    near = episode.truth >= episode.truth.max() - GAINED
    return float(episode.time_s[np.argmax(near)])


def _scores(
    reward_model: DeployedRewardModel,
    images: np.ndarray,
    time_s: np.ndarray,
    task: str,
    steps_s: list[float],
) -> np.ndarray:
    stream, scores = reward_model.start(1), []
    for image, now_s in zip(images, time_s, strict=True):
        frames = Frames(
            images=image[None], image_ok=np.ones((1, len(image)), np.bool_),
            time_s=np.array([now_s]), episode_index=np.zeros(1, np.int64),
        )  # fmt: skip
        begin_s = time.perf_counter()
        progress, stream = reward_model.step(stream, frames, (task,))
        steps_s.append(time.perf_counter() - begin_s)
        scores.append((progress.value[0], progress.done_prob[0], progress.confidence[0]))
    return np.array(scores, np.float32)


def _behaviours(path: Path) -> dict[int, str]:
    """Return the behaviour by episode, where it was recorded."""
    behaviours: dict[int, str] = {}
    for file in table_files(path, "data"):
        if "behaviour" in pq.read_schema(file).names:
            table = pq.read_table(file, columns=["episode_index", "behaviour"])
            names = table["behaviour"].to_pylist()
            behaviours.update(zip(table["episode_index"].to_pylist(), names, strict=True))
    return behaviours


if __name__ == "__main__":
    raise SystemExit(main())
