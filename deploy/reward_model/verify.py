"""`vla verify-export` of a reward model: does it score as the trained one does, and how fast?

Both score the same recorded episodes frame by frame, each with its own memory. PyTorch's stages get
the inputs of the exported ones, so a difference belongs to the stage.
"""

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table

from deploy.reward_model import artefact as artefacts
from deploy.reward_model import graph
from deploy.reward_model.artefact import STAGES, RewardModelArtefact
from deploy.reward_model.deployed import DeployedRewardModel
from deploy.runtime.policy import GraphRunner
from deploy.runtime.recording import RecordingRunner
from deploy.targets import onnxruntime
from deploy.verify import difference
from deploy.verify.difference import Difference, between, worst_of
from reward_models.core import checkpoint
from reward_models.core.scorer import Scorer
from vla.contracts.config import validate_min
from vla.contracts.types import Frames, Progress
from vla.data.reader import open_dataset
from vla.data.store import EpisodeStore, load_episodes
from vla.utils import arguments

BUDGET = 1e-4
"""Largest difference of an output: all of them lie in [-1, 1]."""
WARM = 20
"""Steps before the clock counts."""
PERCENTILES = (50, 99)
"""Percentiles of a step's time."""
TORCH, EXPORTED = "PyTorch", "ONNX Runtime"


@dataclass(frozen=True, kw_only=True)
class RewardModelVerifyArgs:
    """Compare an exported reward model with the one it was exported from."""

    reference_checkpoint: Path
    """The reward model it was exported from."""
    dataset: Path
    """Recorded episodes: a data set with its cameras."""
    episodes: int = 50
    """Episodes that are scored; all if there are fewer."""
    stages: int = 100
    """Steps at which every stage is compared."""

    def __post_init__(self) -> None:
        validate_min(self, episodes=1, stages=1)


@dataclass(frozen=True, kw_only=True)
class RewardModelComparison:
    """Differences on recorded episodes."""

    stages: dict[str, Difference]
    """By stage, in the stage's own units."""
    outputs: dict[str, float]
    """Largest difference of each output, where neither abstained."""
    parted: int
    """Frames at which one abstained and the other did not."""
    abstained: int
    """Frames at which the trained one abstained."""
    frames: int
    """Scored frames."""
    episodes: int
    """Scored episodes."""
    seconds: dict[str, tuple[float, ...]]
    """`PERCENTILES` of the time of one step, by side; they took turns."""


def compare(
    scorer: Scorer, artefact: RewardModelArtefact, runner: GraphRunner, store: EpisodeStore,
    args: RewardModelVerifyArgs,
) -> RewardModelComparison:  # fmt: skip
    """Return the differences of an exported reward model and the trained one."""
    recorder, rows = RecordingRunner(runner), artefact.manifest.batch
    episodes = min(args.episodes, len(store.seq_lengths))
    reward_model: Any = scorer.reward_model
    traced = graph.trace(reward_model, artefact.manifest.pairs, rows)
    sides: dict[str, Any] = {TORCH: scorer, EXPORTED: DeployedRewardModel(artefact, recorder)}
    state = {name: side.start(rows) for name, side in sides.items()}
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    at, counted = parallel_rows(store, rows, episodes)
    compared = set(np.linspace(0, len(at) - 1, args.stages).astype(int).tolist())
    stages: dict[str, list[Difference]] = {name: [] for name in STAGES}
    scores: dict[str, list[Progress]] = {name: [] for name in sides}
    for i, (frames, task) in enumerate(track(
        frames_at(store, at), "comparing", total=len(at), transient=True
    )):  # fmt: skip
        for name in (TORCH, EXPORTED)[:: 1 if i % 2 else -1]:
            begin = time.perf_counter()
            progress, state[name] = sides[name].step(state[name], frames, task)
            seconds[name].append(time.perf_counter() - begin)
            scores[name].append(progress)
        if i in compared:
            for name, calls in recorder.calls.items():
                inputs, outputs = calls[-1]
                expected = traced[name].run(inputs)
                stages[name].append(between([(x, outputs[key]) for key, x in expected.items()]))
    expected, exported = (_joined(scores[name], counted) for name in sides)
    abstained, abstained_too = np.isnan(expected["value"]), np.isnan(exported["value"])
    either = abstained | abstained_too
    return RewardModelComparison(
        stages={name: worst_of(gap) for name, gap in stages.items()},
        outputs={name: _largest(expected[name], exported[name], either) for name in expected},
        parted=int((abstained != abstained_too).sum()), abstained=int(abstained.sum()),
        frames=int(counted.sum()),
        episodes=episodes,
        seconds={
            name: tuple(float(s) for s in np.percentile(t[min(WARM, len(t) - 1) :], PERCENTILES))
            for name, t in seconds.items()
        },
    )  # fmt: skip


def parallel_rows(store: EpisodeStore, rows: int, episodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return frames i64 [t, rows] of episodes one after another in each row, and bool [t, rows].

    A row that is through its episodes before the others repeats some: False there.
    """
    begin, end = store.seq_offsets[:-1], store.seq_offsets[1:]
    queues = [
        np.concatenate([np.arange(begin[q], end[q]) for q in range(row, episodes, rows)])
        for row in range(min(rows, episodes))
    ]
    steps = max(map(len, queues))
    at = np.stack([np.resize(queues[row % len(queues)], steps) for row in range(rows)], 1)
    lengths = np.array([len(queues[row]) if row < len(queues) else 0 for row in range(rows)])
    return at, np.arange(steps)[:, None] < lengths


def frames_at(store: EpisodeStore, at: np.ndarray) -> Iterator[tuple[Frames, tuple[str, ...]]]:
    """Yield the frames at i64 [t, rows], step by step, with the instruction of each row."""
    for now in at:
        images = store.frames[now]
        frames = Frames(
            images=images, image_ok=np.ones(images.shape[:2], np.bool_),
            time_s=store.frame_time[now] / store.info.fps, episode_index=np.arange(len(now)),
        )  # fmt: skip
        yield frames, tuple(store.tasks[e] for e in store.frame_episode[now])


def _joined(scores: list[Progress], counted: np.ndarray) -> dict[str, np.ndarray]:
    """Return the scores of every counted frame, by field."""
    names = (field.name for field in dataclasses.fields(Progress))
    return {name: np.stack([getattr(score, name) for score in scores])[counted] for name in names}


def _largest(expected: np.ndarray, exported: np.ndarray, abstained: np.ndarray) -> float:
    """Return the largest difference; the NaN of abstention is not compared."""
    gap = np.abs(expected - exported)
    unknown = abstained & np.isnan(gap) if gap.ndim == 1 else np.zeros(gap.shape, np.bool_)
    return float(np.where(unknown, 0.0, gap).max())


def sheet(result: RewardModelComparison, rows: int) -> Table:
    """Return the results as a table."""
    table = difference.sheet("fp32", result.stages)
    for name, worst in result.outputs.items():
        table.add_row(name, f"{worst:.1e}", "")
    table.add_row(
        f"frames of {result.episodes} episodes / abstained",
        f"{result.frames:,} / {result.abstained:,}", "",
    )  # fmt: skip
    table.add_row("only one of them abstained", f"{result.parted}", "")
    table.add_section()
    times = list(zip(*result.seconds.values(), strict=True))
    for share, pair in zip(PERCENTILES, times, strict=True):
        table.add_row(
            f"step of {rows}, p{share}: {' / '.join(result.seconds)}",
            " / ".join(f"{1e3 * s:.2f}" for s in pair) + " ms", "",
        )  # fmt: skip
    return table


def failures(result: RewardModelComparison) -> list[str]:
    """Return a sentence for each exceeded budget."""
    wrong = [
        f"{name} differs by {worst:.1e}, at most {BUDGET:.0e}"
        for name, worst in result.outputs.items()
        if not worst <= BUDGET  # NaN is not
    ]
    if result.parted:
        wrong.append(f"only one of them abstained at {result.parted} of {result.frames} frames")
    return wrong


def load(data: Path, scorer: Scorer) -> EpisodeStore:
    """Return the frames of a data set for a reward model's cameras, at the scorer's stride.

    Raises:
        ValueError: the data are damaged, or lack a camera.
    """
    reward_model: Any = scorer.reward_model
    stride = max(1, round(scorer.config.stride_s * open_dataset(data).fps))
    return load_episodes(
        data, cameras=reward_model.cameras, image_hw=reward_model.image_hw, stride=stride,
        cache_dir=data.parent / f"{data.name}-cache",
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Run `vla verify-export FOLDER`; return the exit code, 1 if a budget is exceeded.

    Raises:
        ValueError: something is damaged, or the two do not belong together.
    """
    args = arguments.read(RewardModelVerifyArgs, argv[1:], "vla verify-export FOLDER")
    folder, reference = Path(argv[0]), args.reference_checkpoint
    artefact = artefacts.read(folder)
    artefact.check_origin(checkpoint.identity(reference), reference)
    scorer = checkpoint.load(reference)
    torch.set_num_threads(1)
    runner = onnxruntime.Config().open(artefact)
    result = compare(scorer, artefact, runner, load(args.dataset, scorer), args)
    Console(highlight=False).print(sheet(result, artefact.manifest.batch))
    return difference.conclude(folder, artefact.manifest, result, failures(result))
