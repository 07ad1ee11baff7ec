"""`vla critic eval`: the whole table of a critic on every test split, beside the controls.

Several runs (seeds) of one configuration are tested together: a figure is their mean, its interval
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

from reward_models import checkpoint, controls
from reward_models.metrics.episodes import Episodes
from reward_models.metrics.table import Figure, Judged, compare, table
from reward_models.scorer import Scorer
from training import host
from training.critic import judge, sets
from training.critic.clips import Clips
from training.critic.config import CriticConfig
from training.critic.train import load
from vla import arguments, files
from vla.checkpoint import read_json
from vla.contracts import config as configs
from vla.contracts.config import check_least
from vla.contracts.types import Example

SPLITS = ("layout", "camera", "surface", "composition", "task", "robot")

TIMED = 40
"""Episodes that speed is measured with."""
Figures = dict[str, Figure]


@dataclass(frozen=True, kw_only=True)
class Args:
    """Test critics of one configuration, beside the controls."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders that `vla critic train --out` wrote: one for each seed."""
    data: Path | None = None
    """Folder of the recordings; beside the first run if not given, recorded where missing."""
    out: Path | None = None
    """Folder of the results; the first run's own if not given."""
    splits: tuple[str, ...] = SPLITS
    """Which test splits."""
    rounds: int = 200
    """Rounds of the bootstrap."""
    threads: int = 2
    """CPU threads."""

    def __post_init__(self) -> None:
        """Refuse what makes no sense."""
        check_least(self, rounds=2, threads=1)
        unknown = [name for name in self.splits if name not in SPLITS]
        if unknown or not self.splits:
            raise ValueError(f"splits: got {self.splits}, expected some of {', '.join(SPLITS)}")
        if len(set(self.runs)) < len(self.runs):
            raise ValueError("runs: one is given twice; give one folder for each seed")
        if not self.runs:
            raise ValueError("no run: give the folders that `vla critic train --out` wrote")


@dataclass(frozen=True)
class _Bench:
    """What every split is tested with."""

    config: CriticConfig
    scorers: list[Scorer]
    fitted: "Fitted"
    words: tuple[tuple[str, str], ...]
    """Task and instruction of what is learned."""
    rounds: int


@dataclass(frozen=True)
class Fitted:
    """Controls, fitted on the training episodes."""

    constant: controls.Constant
    pixels: controls.PixelDistance
    proprio: controls.Proprio


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = arguments.read(Args, argv, "vla critic eval")
    evaluate(args, Console(highlight=False))
    return 0


def evaluate(args: Args, console: Console) -> dict[str, dict[str, Figures]]:
    """Test the runs, print the tables, write OUT/critic_eval.json; return split, critic, figure.

    Raises:
        ValueError: a run is no critic's, or runs are of different configurations.
    """
    host.prepare(args.threads)
    config = configuration(args.runs)
    scorers = [checkpoint.load(run) for run in args.runs]
    data = args.data or args.runs[0].parent / "critic-data"
    out = args.out or args.runs[0]
    out.mkdir(parents=True, exist_ok=True)
    found = sets.splits(config.tasks, config.sizes)
    if len(scorers) < 3:
        console.print(f"{len(scorers)} seeds: three or more say how much of a figure is luck")
    train = load(config, found["train"], data)
    words = tuple(sorted({*zip(train.task.tolist(), train.instruction.tolist(), strict=True)}))
    bench = _Bench(config, scorers, fit_controls(train), words, args.rounds)
    del train  # the largest thing in memory
    results = {}
    for name in args.splits:
        if name not in found:
            console.print(f"{name}: the run has no such split")
            continue
        clips = load(config, found[name], data)
        results[name] = _split(bench, name, clips)
        title = f"{name}: {clips.episodes} episodes of {', '.join(np.unique(clips.task))}"
        cost = f"{speed(scorers[0], clips):,.0f} frames/s"
        console.print(compare(results[name], f"{title}; {len(scorers)} seeds; {cost}"))
    written = {
        split: {who: {k: _plain(f) for k, f in figures.items()}
                for who, figures in found.items()}
        for split, found in results.items()
    }  # fmt: skip
    files.write_json(out / "critic_eval.json", written)
    console.print(f"results: {out / 'critic_eval.json'}")
    return results


def speed(scorer: Scorer, clips: Clips) -> float:
    """Return frames judged per second, from pictures in memory to progress."""
    some = clips.pick(np.arange(min(TIMED, clips.episodes)))
    begin = time.perf_counter()
    scorer.score(some.frames(), tuple(some.instruction))
    return len(some.time_s) / (time.perf_counter() - begin)


def _split(bench: _Bench, name: str, clips: Clips) -> dict[str, Figures]:
    """Return every critic's and control's figures on one split."""
    example, shown = None, None
    if name == "task":
        clips, example = without_reference(clips)
    pool = tuple(w for t, w in bench.words if t not in set(clips.task))
    own = [judge.judged(scorer, clips, pool=pool) for scorer in bench.scorers]
    if example is not None:
        shown = [judge.judged(scorer, clips, example, pool) for scorer in bench.scorers]
    found = {"critic": _mean([_table(bench, judged) for judged in own])}
    if shown is not None:
        found["with a reference"] = _mean([_table(bench, judged) for judged in shown])
    blind = [judge.said(scorer, clips, ("",) * clips.episodes, None)[0] for scorer in bench.scorers]
    found["language-blind"] = _mean([_table(bench, Judged(own=said)) for said in blind])
    only = [everywhere(controls.classifier_only, judged) for judged in own]
    found["done only"] = _mean([_table(bench, judged) for judged in only])
    for control, judged in apply_controls(bench.fitted, own[0], clips).items():
        found[control] = _table(bench, judged)
    return found


def everywhere(control: Callable[[Episodes], Episodes], judged: Judged) -> Judged:
    """Put a control that needs no pictures to every test that the critic was put to."""
    return Judged(
        own=control(judged.own), backward=judged.backward and control(judged.backward),
        foreign=judged.foreign and control(judged.foreign),
        recoloured=judged.recoloured and control(judged.recoloured),
        frozen=judged.frozen and control(judged.frozen),
    )  # fmt: skip


def without_reference(clips: Clips) -> tuple[Clips, Example]:
    """Take the first successful expert episode out of a split, as the reference for the others.

    Raises:
        ValueError: there is none.
    """
    good = np.flatnonzero((clips.level == 2) & (clips.behaviour == "expert"))
    if not len(good):
        raise ValueError("no expert episode that succeeded to take as a reference; record more")
    rest = np.setdiff1d(np.arange(clips.episodes), good[:1])
    return clips.pick(rest), clips.example(int(good[0]))


def fit_controls(clips: Clips) -> Fitted:
    """Fit the controls on the episodes that critics learn from."""
    train, words = judge.silent_of(clips), tuple(clips.instruction)
    return Fitted(
        constant=controls.fit_constant(train),
        pixels=controls.fit_pixels(train, controls.shrink(clips.images), words),
        proprio=controls.fit_proprio(train, clips.proprio, np.random.default_rng(0)),
    )


def apply_controls(fitted: Fitted, judged: Judged, clips: Clips) -> dict[str, Judged]:
    """Return what the controls say; those that know their tasks are left out on other tasks."""
    own, words = judged.own, tuple(clips.instruction)
    found = {
        "t/T": everywhere(controls.clock, judged),
        "constant": everywhere(partial(controls.constant, fitted.constant), judged),
    }
    if set(own.tasks) <= set(fitted.pixels.knots):
        small = controls.shrink(clips.images)
        said = controls.pixel_distance(fitted.pixels, own, small, words)
        found["pixel distance"] = Judged(own=said)
        if clips.proprio.shape[1] == len(fitted.proprio.mean):
            said = controls.proprio_only(fitted.proprio, own, clips.proprio)
            found["image-blind"] = Judged(own=said)
    return found


def _table(bench: _Bench, judged: Judged) -> Figures:
    return table(judged, np.random.default_rng(0), bench.rounds)


def _mean(tables: list[Figures]) -> Figures:
    """Return the mean of figures and of the ends of their intervals over seeds."""
    return {
        name: dataclasses.replace(
            first,
            value=_mean_of([t[name].value for t in tables]),
            low=_mean_of([t[name].low for t in tables]),
            high=_mean_of([t[name].high for t in tables]),
        )
        for name, first in tables[0].items()
    }


def _plain(figure: Figure) -> dict[str, Any]:
    """Return a figure as JSON types, which know no NaN."""
    told = dataclasses.asdict(figure)
    return {k: None if isinstance(v, float) and np.isnan(v) else v for k, v in told.items()}


def _mean_of(values: list[float]) -> float:
    """Return the mean of what seeds found; NaN where none found anything."""
    found = [value for value in values if not np.isnan(value)]
    return float(np.mean(found)) if found else float("nan")


def configuration(runs: tuple[Path, ...]) -> CriticConfig:
    """Return the configuration of the runs, which may differ by their seed alone."""
    found = [_read(run) for run in runs]
    if any(dataclasses.replace(c, seed=found[0].seed) != found[0] for c in found):
        raise ValueError(
            f"{', '.join(map(str, runs))}: runs of different configurations; test one at a time"
        )
    return found[0]


def _read(run: Path) -> CriticConfig:
    path = run / "config.json"
    if not path.is_file():
        raise ValueError(f"{run}: no config.json; give the folder `vla critic train --out` wrote")
    told: dict[str, Any] = read_json(path)
    return configs.from_json(CriticConfig, told, str(path))
