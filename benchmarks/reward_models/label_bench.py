"""`vla bench label`: labelling against a per-frame prefix scorer with the same reward model.

The other side works as LeRobot's labellers do: stock data set access frame by frame, and for every
frame a forward pass, batch 1, over frames spread over the preceding ones (4 of them, as Robometer,
or all of them, as TOPReward). The time does not depend on the weights.
"""

import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import av
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.reward_models import synthetic_dataset
from reward_models.core import checkpoint as reward_model_checkpoint
from reward_models.label import source
from reward_models.label.score import Job, groups, score_groups
from vla.contracts.config import validate_min
from vla.contracts.types import Frames
from vla.utils import arguments

PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Compare labelling with scoring the prefix of every frame again."""

    dataset: Path | None = None
    """Data set; a synthetic one of 40 episodes in OUT if not given."""
    reward_model: str = ""
    """Reward model; the default one with random weights in OUT if not given."""
    out: Path = Path("runs/bench-label")
    """Folder of the synthetic data set and reward model."""
    prefix: Literal["4", "all"] = "4"
    """Frames of the prefix that the other side encodes."""
    frames: int = 60
    """Frames per round that the other side scores."""
    rounds: int = 3
    """Interleaved rounds; medians are reported."""
    threads: int = 1
    """CPU threads of either reward model."""

    def __post_init__(self) -> None:
        validate_min(self, frames=1, rounds=1, threads=1)


@dataclass
class Peak:
    """Highest resident memory of this process while something runs."""

    mb: float = 0.0
    _over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> "Peak":
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(0.01):
            self.mb = max(self.mb, _resident_mb())


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES / 2**20


def prefix_scorer(job: Job, looks: int | None) -> Callable[[int, int], None]:
    """Return a function that scores one frame (episode, step) from its prefix.

    Args:
        job: The same reward model, data set and cameras.
        looks: Frames spread over the prefix; every frame that we would score if None.
    """
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    info, reward_model = job.source.info, job.scorer.reward_model
    stock: Any = LeRobotDataset("local/bench", root=info.path, video_backend="pyav")
    keys = [camera.key for camera in job.cameras if camera is not None]
    lit = np.array([camera is not None for camera in job.cameras])

    @torch.no_grad()
    def score(episode: int, step: int) -> None:
        segment = job.source.segments[episode][0]
        past = segment.steps[segment.steps <= step]
        steps = np.rint(np.linspace(0, step, looks)) if looks else past
        steps = np.unique(steps.astype(np.int64))
        images = np.zeros((len(steps), len(lit), *job.image_hw, 3), np.uint8)
        for row, at in enumerate(steps.tolist()):
            item = stock[int(info.offsets[episode]) + at]
            pixels = [(item[key].permute(1, 2, 0) * 255).byte().numpy() for key in keys]
            images[row, lit] = [_resized(p, *job.image_hw) for p in pixels]
        frames = Frames(
            images=images, image_ok=np.broadcast_to(lit, images.shape[:2]).copy(),
            time_s=steps / info.fps, episode_index=np.zeros(len(steps), np.int64),
        )  # fmt: skip
        embedded, _ = reward_model.embed(frames, (segment.task,), reward_model.initial_memory(1))
        reward_model.score(embedded[-1:], embedded[:1], None)
        reward_model.compare(embedded[:1], embedded[-1:], embedded[:1], None)

    return score


def _resized(pixels: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return u8 [h, w, 3], stretched as our decoder does it."""
    if pixels.shape[:2] == (height, width):
        return pixels
    frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
    return frame.to_ndarray(format="rgb24", width=width, height=height, interpolation="AREA")


def main(argv: list[str]) -> int:
    """Run the verb.

    Raises:
        ValueError: the reward model looks at nothing, so there is nothing to compare.
    """
    args = arguments.read(BenchArgs, argv, "vla bench label")
    torch.set_num_threads(args.threads)
    data = args.dataset or synthetic_dataset.make_data(args.out / "data", episodes=40, steps=80)
    place = args.reward_model or str(synthetic_dataset.make_reward_model(args.out / "reward_model"))
    scorer = reward_model_checkpoint.load(place)
    if not scorer.reward_model.cameras:
        raise ValueError(f"reward model: {place!r} looks through no camera; give one that does")
    read = source.read(data, stride_s=scorer.config.stride_s)
    cameras = source.match_cameras(read.info, scorer.reward_model.cameras, "")
    job = Job(scorer=scorer, source=read, cameras=cameras)
    theirs = prefix_scorer(job, 4 if args.prefix == "4" else None)
    rates: list[tuple[float, float]] = []
    memory = [0.0, 0.0]
    for round_ in range(args.rounds):
        their_rate, their_mb = _theirs(job, theirs, args.frames, round_)
        ours_rate, ours_mb = _ours(job)
        rates.append((ours_rate, their_rate))
        # Freed memory stays with the process: only the first round tells of them alone.
        memory = [max(memory[0], ours_mb), memory[1] or their_mb]
    _report(job, args, rates, memory)
    return 0


def _ours(job: Job) -> tuple[float, float]:
    """Return scored frames per second of labelling the whole data set, and peak memory in MB."""
    begin = time.perf_counter()
    with Peak() as peak:
        for _ in score_groups(job, groups(job)):
            pass
    return int(job.source.scored_frames.sum()) / (time.perf_counter() - begin), peak.mb


def _theirs(
    job: Job, score: Callable[[int, int], None], frames: int, seed: int
) -> tuple[float, float]:
    """Return frames per second of scoring some frames one by one, and peak memory in MB."""
    rng = np.random.default_rng(seed)
    segments = [parts[0] for parts in job.source.segments]
    chosen = [segments[i] for i in rng.integers(len(segments), size=frames)]
    places = [(s.episode, int(rng.choice(s.steps))) for s in chosen]
    score(*places[0])  # opens files and warms caches
    begin = time.perf_counter()
    with Peak() as peak:
        for episode, step in places:
            score(episode, step)
    return frames / (time.perf_counter() - begin), peak.mb


def _report(
    job: Job, args: BenchArgs, rates: list[tuple[float, float]], memory: list[float]
) -> None:
    info = job.source.info
    ours, theirs = (statistics.median(rate[side] for rate in rates) for side in (0, 1))
    table = Table(
        title=f"labelling {info.num_episodes} episodes, {len(job.cameras)} cameras, "
        f"{args.threads} thread(s), median of {args.rounds} interleaved rounds"
    )
    name = "4 frames" if args.prefix == "4" else "the prefix"
    for column in ("", "vla label", f"{name} anew per frame", "ratio"):
        table.add_column(column, justify="right" if column else "left")
    table.add_row("frames scored per second", f"{ours:,.1f}", f"{theirs:,.1f}",
                  f"{ours / theirs:.1f}")  # fmt: skip
    dense = info.num_frames / int(job.source.scored_frames.sum())
    table.add_row("frames labelled per second", f"{ours * dense:,.1f}", f"{theirs:,.1f}",
                  f"{ours * dense / theirs:.1f}")  # fmt: skip
    table.add_row("peak memory, MB", f"{memory[0]:,.0f}", f"{memory[1]:,.0f}", "")
    Console().print(table)
    Console().print(
        f"labelled: with one frame scored every {job.scorer.config.stride_s:g} s and those between "
        "interpolated; the other side scores every frame"
    )
