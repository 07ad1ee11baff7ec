"""`vla parity` of a critic: does an exported one say what the trained one says, and how fast?

Both watch the same recorded episodes frame by frame, each with its own memory and past.
Stages are given what the exported critic's stages get, so that what is found belongs to the stage.
"""

import dataclasses
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from deploy import difference
from deploy.critic import artefact as critics
from deploy.critic import graph
from deploy.critic.artefact import STAGES, CriticArtefact
from deploy.critic.deployed import DeployedCritic
from deploy.difference import Difference, between, worst_of
from deploy.graph import Traced
from deploy.policy import Engine
from deploy.targets import onnxruntime
from reward_models import checkpoint
from reward_models.scorer import Scorer
from vla import arguments
from vla.contracts.config import check_least
from vla.contracts.types import Frames, Progress
from vla.data.reader import open_dataset
from vla.data.store import EpisodeStore, load_episodes

BUDGET = 1e-4
"""Largest difference of anything that is said: all of it lies in [-1, 1]."""
WARM = 20
"""Steps before the clock counts."""
SHARES = (50, 99)
"""Percentiles of a step's time."""
TORCH, EXPORTED = "PyTorch", "ONNX Runtime"


@dataclass(frozen=True, kw_only=True)
class CriticParityArgs:
    """Compare an exported critic with the one it was exported from."""

    against: Path
    """The critic it was exported from."""
    data: Path
    """Recorded episodes: a data set with its cameras."""
    episodes: int = 50
    """How many of them are watched, all of them if there are fewer."""
    stages: int = 100
    """Moments at which every stage is compared."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, episodes=1, stages=1)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What was found."""

    stages: dict[str, Difference]
    """By stage, in the stage's own units."""
    progress: dict[str, float]
    """Largest difference of each thing that is said; of progress, where both say something."""
    parted: int
    """Moments at which one abstained and the other did not."""
    silent: int
    """Moments at which the trained one abstained."""
    moments: int
    """How many were watched."""
    episodes: int
    """In how many episodes."""
    seconds: dict[str, tuple[float, ...]]
    """Percentiles `SHARES` of the time of one step, by side; they took turns."""


class Tap:
    """An engine that remembers what each graph was given last, and what it made of it."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.seen: dict[str, tuple[Mapping[str, np.ndarray], dict[str, np.ndarray]]] = {}

    def run(self, graph: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a graph by name."""
        found = self.engine.run(graph, inputs)
        self.seen[graph] = inputs, found
        return found


def compare(
    scorer: Scorer, artefact: CriticArtefact, engine: Engine, store: EpisodeStore,
    args: CriticParityArgs,
) -> Found:  # fmt: skip
    """Return how far an exported critic is from the trained one on recorded episodes."""
    tap, rows = Tap(engine), artefact.manifest.batch
    episodes = min(args.episodes, len(store.seq_lengths))
    critic: Any = scorer.critic
    traced = graph.trace(critic, artefact.manifest.pairs, rows)
    sides: dict[str, Any] = {TORCH: scorer, EXPORTED: DeployedCritic(artefact, tap)}
    state = {name: side.start(rows) for name, side in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    at, here = side_by_side(store, rows, episodes)
    staged = set(np.linspace(0, len(at) - 1, args.stages).astype(int).tolist())
    stages: dict[str, list[Difference]] = {name: [] for name in STAGES}
    said: dict[str, list[Progress]] = {name: [] for name in sides}
    for i, (frames, task) in enumerate(track(
        moments(store, at), "comparing", total=len(at), transient=True
    )):  # fmt: skip
        for name in (TORCH, EXPORTED)[:: 1 if i % 2 else -1]:
            begin = time.perf_counter()
            progress, state[name] = sides[name].step(state[name], frames, task)
            seconds[name].append(time.perf_counter() - begin)
            said[name].append(progress)
        if i in staged:
            for name, seen in tap.seen.items():
                stages[name].append(_stage(traced[name], *seen))
    ours, theirs = (_joined(said[name], here) for name in sides)
    silent, other = np.isnan(ours["value"]), np.isnan(theirs["value"])
    return Found(
        stages={name: worst_of(found) for name, found in stages.items()},
        progress={name: _apart(ours[name], theirs[name], silent | other) for name in ours},
        parted=int((silent != other).sum()), silent=int(silent.sum()), moments=int(here.sum()),
        episodes=episodes,
        seconds={
            name: tuple(float(s) for s in np.percentile(t[min(WARM, len(t) - 1) :], SHARES))
            for name, t in seconds.items()
        },
    )  # fmt: skip


def side_by_side(store: EpisodeStore, rows: int, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return frames i64 [t, rows] of episodes that follow one another in each row, bool [t, rows].

    A row that has watched all of its own begins again, or watches another's, while others go on:
    False there.
    """
    begin, end = store.seq_offsets[:-1], store.seq_offsets[1:]
    own = [
        np.concatenate([np.arange(begin[q], end[q]) for q in range(row, episodes, rows)])
        for row in range(min(rows, episodes))
    ]
    steps = max(map(len, own))
    at = np.stack([np.resize(own[row % len(own)], steps) for row in range(rows)], 1)
    lengths = np.array([len(own[row]) if row < len(own) else 0 for row in range(rows)])
    return at, np.arange(steps)[:, None] < lengths


def moments(store: EpisodeStore, at: np.ndarray) -> Iterator[tuple[Frames, tuple[str, ...]]]:
    """Yield the frames at i64 [t, rows], moment by moment, with the instruction of each row."""
    for now in at:
        images = store.frames[now]
        frames = Frames(
            images=images, image_ok=np.ones(images.shape[:2], np.bool_),
            time_s=store.frame_time[now] / store.info.fps, row=np.arange(len(now)),
        )  # fmt: skip
        yield frames, tuple(store.tasks[e] for e in store.frame_episode[now])


@torch.no_grad()
def _stage(
    traced: Traced, inputs: Mapping[str, np.ndarray], outputs: dict[str, np.ndarray]
) -> Difference:
    """Return how far a graph's outputs are from what torch makes of the same inputs."""
    given = [
        torch.from_numpy(np.asarray(inputs[name])) if name in inputs else example
        for name, example in traced.inputs.items()  # a graph does not ask for what it does not use
    ]
    ours = traced.function(*given)
    pairs = [(a.numpy(), outputs[name]) for a, name in zip(ours, traced.outputs, strict=True)]
    return between(pairs)


def _joined(said: list[Progress], here: np.ndarray) -> dict[str, np.ndarray]:
    """Return what was said of every moment that counts, by field."""
    names = (field.name for field in dataclasses.fields(Progress))
    return {name: np.stack([getattr(one, name) for one in said])[here] for name in names}


def _apart(ours: np.ndarray, theirs: np.ndarray, silent: np.ndarray) -> float:
    """Return the largest difference; where one is silent, NaN is no number to compare."""
    apart = np.abs(ours - theirs)
    unknown = silent & np.isnan(apart) if apart.ndim == 1 else np.zeros(apart.shape, np.bool_)
    return float(np.where(unknown, 0.0, apart).max())


def sheet(found: Found, rows: int) -> Table:
    """Return what was found as a table."""
    table = difference.sheet("fp32", found.stages)
    for name, worst in found.progress.items():
        table.add_row(name, f"{worst:.1e}", "")
    table.add_row(
        f"moments of {found.episodes} episodes / abstained",
        f"{found.moments:,} / {found.silent:,}", "",
    )  # fmt: skip
    table.add_row("only one of them abstained", f"{found.parted}", "")
    table.add_section()
    times = list(zip(*found.seconds.values(), strict=True))
    for share, pair in zip(SHARES, times, strict=True):
        table.add_row(
            f"step of {rows}, p{share}: {' / '.join(found.seconds)}",
            " / ".join(f"{1e3 * s:.2f}" for s in pair) + " ms", "",
        )  # fmt: skip
    return table


def faults(found: Found) -> list[str]:
    """Return what lies beyond its budget."""
    wrong = [
        f"{name} differs by {worst:.1e}, at most {BUDGET:.0e}"
        for name, worst in found.progress.items()
        if not worst <= BUDGET  # NaN is not
    ]
    if found.parted:
        wrong.append(f"only one of them abstained at {found.parted} of {found.moments} moments")
    return wrong


def load(data: Path, scorer: Scorer) -> EpisodeStore:
    """Return the moments of a data set as a critic's cameras see them, at the scorer's stride.

    Raises:
        ValueError: the data are damaged, or lack a camera.
    """
    critic: Any = scorer.critic
    stride = max(1, round(scorer.config.stride_s * open_dataset(data).fps))
    return load_episodes(
        data, cameras=critic.cameras, image_hw=critic.image_hw, stride=stride,
        cache_dir=data.parent / f"{data.name}-cache",
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Run `vla parity FOLDER --against CRITIC --data DATASET`; 1 beyond a budget.

    Raises:
        ValueError: something is damaged, or the two do not belong together.
    """
    args = arguments.read(CriticParityArgs, argv[1:], "vla parity FOLDER")
    folder = Path(argv[0])
    artefact = critics.read(folder)
    artefact.check_origin(checkpoint.identity(args.against), args.against)
    scorer = checkpoint.load(args.against)
    torch.set_num_threads(1)
    engine = onnxruntime.Config().open(artefact)
    found = compare(scorer, artefact, engine, load(args.data, scorer), args)
    Console(highlight=False).print(sheet(found, artefact.manifest.batch))
    wrong = faults(found)
    return difference.conclude(folder, artefact.manifest, found, wrong)
