"""`vla reward-model eval`: all metrics of a reward model and the controls on every test split.

Several runs (seeds) of one configuration are tested together: a metric is their mean, its interval
the mean of their bootstrap intervals.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro
from rich.console import Console

from reward_models.core import checkpoint
from reward_models.core.scorer import Scorer
from reward_models.label_report.read import mean
from reward_models.metrics import controls
from reward_models.metrics.episodes import Episodes
from reward_models.metrics.table import Metric, Predictions, compare, table
from training.commands.train_reward_model import load
from training.core import runtime
from training.reward_model import datasets, predict
from training.reward_model.clips import Clips
from training.reward_model.config import RewardModelConfig
from vla.checkpoint import read_json
from vla.contracts import config as configs
from vla.contracts.config import validate_min
from vla.contracts.types import Example
from vla.utils import arguments, files

SPLITS = ("layout", "camera", "surface", "composition", "task", "robot")

TIMED = 40
"""Episodes that speed is measured with."""
Metrics = dict[str, Metric]


@dataclass(frozen=True, kw_only=True)
class Args:
    """Test reward models of one configuration next to the controls."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders that `vla reward-model train --out` wrote: one for each seed."""
    dataset: Path | None = None
    """Folder of the recordings, a data set per split and task; reward_model-data next to the first
    run by default; missing ones are recorded."""
    out: Path | None = None
    """Folder of the results; the first run by default."""
    splits: tuple[str, ...] = SPLITS
    """Test splits."""
    bootstrap_samples: int = 200
    """Bootstrap samples of the intervals."""
    threads: int = 2
    """CPU threads."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        validate_min(self, bootstrap_samples=2, threads=1)
        unknown = [name for name in self.splits if name not in SPLITS]
        if unknown or not self.splits:
            raise ValueError(f"splits: got {self.splits}, expected some of {', '.join(SPLITS)}")
        if len(set(self.runs)) < len(self.runs):
            raise ValueError("runs: one is given twice; give one folder for each seed")
        if not self.runs:
            raise ValueError("no run: give the folders that `vla reward-model train --out` wrote")


@dataclass(frozen=True)
class _Bench:
    """Inputs that all splits share."""

    config: RewardModelConfig
    scorers: list[Scorer]
    fitted: "Fitted"
    instructions: tuple[tuple[str, str], ...]
    """Task and instruction of the training episodes."""
    samples: int


@dataclass(frozen=True)
class Fitted:
    """Controls, fitted on the training episodes."""

    constant: controls.Constant
    pixels: controls.PixelDistance
    proprio: controls.Proprio


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = arguments.read(Args, argv, "vla reward-model eval")
    evaluate(args, Console(highlight=False))
    return 0


def evaluate(args: Args, console: Console) -> dict[str, dict[str, Metrics]]:
    """Test the runs, print the tables, write OUT/reward_model_eval.json.

    Returns:
        Metrics by split, reward model or control, and name.

    Raises:
        ValueError: a run is not of a reward model, or runs have different configurations.
    """
    runtime.prepare(args.threads)
    config = configuration(args.runs)
    scorers = [checkpoint.load(run) for run in args.runs]
    data = args.dataset or args.runs[0].parent / "reward_model-data"
    out = args.out or args.runs[0]
    out.mkdir(parents=True, exist_ok=True)
    splits = datasets.splits(config.tasks, config.sizes)
    if len(scorers) < 3:
        console.print(f"{len(scorers)} seeds; use three or more to see the variance between seeds")
    train = load(config, splits["train"], data)
    instructions = tuple(
        sorted({*zip(train.task.tolist(), train.instruction.tolist(), strict=True)})
    )
    bench = _Bench(config, scorers, fit_controls(train), instructions, args.bootstrap_samples)
    del train  # the largest thing in memory
    results = {}
    for name in args.splits:
        if name not in splits:
            console.print(f"{name}: the run has no such split")
            continue
        clips = load(config, splits[name], data)
        results[name] = _split(bench, name, clips)
        title = f"{name}: {clips.episodes} episodes of {', '.join(np.unique(clips.task))}"
        cost = f"{speed(scorers[0], clips):,.0f} frames/s"
        console.print(compare(results[name], f"{title}; {len(scorers)} seeds; {cost}"))
    written = {
        split: {model: {k: _plain(m) for k, m in metrics.items()}
                for model, metrics in tables.items()}
        for split, tables in results.items()
    }  # fmt: skip
    files.write_json(out / "reward_model_eval.json", written)
    console.print(f"results: {out / 'reward_model_eval.json'}")
    return results


def speed(scorer: Scorer, clips: Clips) -> float:
    """Return frames scored per second, from images in memory to progress."""
    some = clips.pick(np.arange(min(TIMED, clips.episodes)))
    begin = time.perf_counter()
    scorer.score(some.frames(), tuple(some.instruction))
    return len(some.time_s) / (time.perf_counter() - begin)


def _split(bench: _Bench, name: str, clips: Clips) -> dict[str, Metrics]:
    """Return the metrics of the reward models and of every control on one split."""
    example = None
    if name == "task":
        clips, example = without_reference(clips)
    pool = tuple(text for task, text in bench.instructions if task not in set(clips.task))
    predictions = [predict.predict_all(scorer, clips, pool=pool) for scorer in bench.scorers]
    tables = {"reward_model": _mean(bench, predictions)}
    if example is not None:
        tables["with a reference"] = _mean(
            bench, [predict.predict_all(scorer, clips, example, pool) for scorer in bench.scorers]
        )
    empty = ("",) * clips.episodes
    blind = [predict.predict(scorer, clips, empty, None)[0] for scorer in bench.scorers]
    tables["language-blind"] = _mean(bench, [Predictions(matched=episodes) for episodes in blind])
    done_only = [apply_to_all(controls.classifier_only, p) for p in predictions]
    tables["done only"] = _mean(bench, done_only)
    for control, controlled in apply_controls(bench.fitted, predictions[0], clips).items():
        tables[control] = _mean(bench, [controlled])
    return tables


def apply_to_all(control: Callable[[Episodes], Episodes], predictions: Predictions) -> Predictions:
    """Apply a control that needs no images to all parts of the predictions."""
    names = ("matched", "backward", "mismatched", "recolored", "frozen")
    parts = ((name, getattr(predictions, name)) for name in names)
    results: dict[str, Any] = {name: part and control(part) for name, part in parts}
    return Predictions(**results)


def without_reference(clips: Clips) -> tuple[Clips, Example]:
    """Split off the first successful expert episode as the reference for the others.

    Raises:
        ValueError: there is none.
    """
    good = np.flatnonzero((clips.level == 2) & (clips.behaviour == "expert"))
    if not len(good):
        raise ValueError("no expert episode that succeeded to take as a reference; record more")
    rest = np.setdiff1d(np.arange(clips.episodes), good[:1])
    return clips.pick(rest), clips.example(int(good[0]))


def fit_controls(clips: Clips) -> Fitted:
    """Fit the controls on the training episodes."""
    train, task = predict.unpredicted_clips(clips), tuple(clips.instruction)
    return Fitted(
        constant=controls.fit_constant(train),
        pixels=controls.fit_pixels(train, controls.shrink(clips.images), task),
        proprio=controls.fit_proprio(train, clips.proprio, np.random.default_rng(0)),
    )


def apply_controls(
    fitted: Fitted, predictions: Predictions, clips: Clips
) -> dict[str, Predictions]:
    """Return the predictions of the controls; those fitted by task are left out on other tasks."""
    episodes = predictions.matched
    results = {
        "t/T": apply_to_all(controls.clock, predictions),
        "constant": apply_to_all(partial(controls.constant, fitted.constant), predictions),
    }
    if set(episodes.tasks) <= set(fitted.pixels.knots):
        small, task = controls.shrink(clips.images), tuple(clips.instruction)
        pixels = controls.pixel_distance(fitted.pixels, episodes, small, task)
        results["pixel distance"] = Predictions(matched=pixels)
        if clips.proprio.shape[1] == len(fitted.proprio.mean):
            proprio = controls.proprio_only(fitted.proprio, episodes, clips.proprio)
            results["image-blind"] = Predictions(matched=proprio)
    return results


def _mean(bench: _Bench, predictions: list[Predictions]) -> Metrics:
    """Return the mean of metrics and of the ends of their intervals over seeds."""
    tables = [table(p, np.random.default_rng(0), bench.samples) for p in predictions]
    return {
        name: dataclasses.replace(
            first,
            value=mean([t[name].value for t in tables]),
            low=mean([t[name].low for t in tables]),
            high=mean([t[name].high for t in tables]),
        )
        for name, first in tables[0].items()
    }


def _plain(metric: Metric) -> dict[str, Any]:
    """Return a metric as JSON types, without NaN."""
    values = dataclasses.asdict(metric)
    return {k: None if isinstance(v, float) and np.isnan(v) else v for k, v in values.items()}


def configuration(runs: tuple[Path, ...]) -> RewardModelConfig:
    """Return the configuration of the runs, which may differ in their seed alone."""
    configurations = [_read(run) for run in runs]
    first = configurations[0]
    if any(dataclasses.replace(c, seed=first.seed) != first for c in configurations):
        raise ValueError(
            f"{', '.join(map(str, runs))}: runs of different configurations; test one at a time"
        )
    return first


def _read(run: Path) -> RewardModelConfig:
    path = run / "config.json"
    if not path.is_file():
        raise ValueError(
            f"{run}: no config.json; give the folder `vla reward-model train --out` wrote"
        )
    return configs.from_json(RewardModelConfig, read_json(path), str(path))
