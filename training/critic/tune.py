"""`vla critic tune`: a vision-language critic's adapter learns from a data set.

What is learned is the progress recorded in it, or that of its motion.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import tyro

from reward_models import checkpoint, segments, vlm_tune
from reward_models.critics import vlm as critics
from reward_models.critics.vlm import VlmCritic
from reward_models.scorer import Scorer
from reward_models.vlm_tune import Pairs
from training import flags
from vla import arguments
from vla.contracts import registry
from vla.contracts.config import check_least
from vla.contracts.types import Frames
from vla.data.decode import FrameChoice, decode_views
from vla.data.info import Columns, DatasetInfo
from vla.data.reader import open_dataset, read_columns
from vla.nn import vlm

NOT_DONE, DONE = 0.8, 0.95
"""Progress below which a task is surely not complete and from which it is, where no data say so;
between them nothing is learned (as in VLAC)."""
LINES = 10
"""Lines printed in a run."""


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """How an adapter is tuned."""

    critic: critics.Config = field(default_factory=lambda: critics.Config(lora_rank=16))
    """The model, what it is shown, and the rank of its adapter."""
    labels: Literal["recorded", "motion"] = "recorded"
    """Column `progress` of the data set, or sub-tasks found in its motion."""
    steps: int = 1000
    """Updates."""
    pairs: int = 8
    """Pairs of frames per update."""
    frames: int = 16
    """Frames taken of each episode, spread evenly; the first and the last are among them."""
    foreign: float = 0.15
    """Share of pairs under an instruction that is not theirs."""
    rate: float = 1e-4
    """Learning rate."""
    seed: int = 0
    """Seed of the pairs."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where the model learns."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, steps=1, pairs=1, frames=2, seed=0)


@dataclass(frozen=True, kw_only=True)
class TuneArgs:
    """Tune a vision-language critic's adapter on a data set."""

    data: Path
    """Folder of a LeRobotDataset v3."""
    out: Path
    """Folder of the critic; it must not exist."""
    tune: Annotated[TuneConfig, tyro.conf.arg(name="")] = field(default_factory=TuneConfig)
    """Every setting is a flag."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Moments:
    """F frames of N episodes with their labels, in order of episode and time."""

    embeddings: torch.Tensor
    """u8 [f, d], of `VlmCritic.embed`."""
    progress: np.ndarray
    """f32 [f]; NaN where it is not known."""
    done: np.ndarray
    """f32 [f], 0 or 1; NaN where it is not known."""
    offsets: np.ndarray
    """i64 [n + 1]: frames of episode e are offsets[e] to offsets[e + 1]."""
    instruction: tuple[str, ...]
    """Of each episode."""


def tune(config: TuneConfig, data: Path, out: Path) -> list[dict[str, float]]:
    """Tune on a data set, write the critic, and return the losses of every update.

    Raises:
        ValueError: model, data or `out` make no sense.
    """
    if out.exists():
        raise ValueError(f"{out}: exists; choose another --out")
    flags.check_device(config.device)
    info = open_dataset(data)
    critic = config.critic.build().to(config.device)
    moments = read(info, critic, config)
    rng = np.random.default_rng(config.seed)
    batches = (draw(moments, config, rng) for _ in range(config.steps))
    losses = []
    for step, seen in enumerate(vlm_tune.tune_(critic, batches, config.rate), 1):
        losses.append(seen)
        if step % max(config.steps // LINES, 1) == 0 or step == config.steps:
            said = ", ".join(f"{name} {value:.3f}" for name, value in seen.items())
            print(f"update {step} of {config.steps}: {said}", flush=True)
    provenance = {"data": str(data), "labels": config.labels, "updates": config.steps}
    checkpoint.save(
        Scorer(critic.eval()), config.critic, None, out, weights=critic.state_dict(),
        provenance=provenance, also=lambda folder: vlm.save_adapter(critic.vlm, folder / "adapter"),
    )  # fmt: skip
    return losses


def read(info: DatasetInfo, critic: VlmCritic, config: TuneConfig) -> Moments:
    """Read some frames of every episode, encode them, and say what is known of each."""
    columns = read_columns(info)
    progress = recorded(info, columns) if config.labels == "recorded" else motion(info, columns)
    done = completed(columns, progress)
    px = config.critic.image_px
    cameras = tuple(info.camera(name) for name in critic.cameras)
    steps = [
        np.unique(np.linspace(0, length - 1, config.frames).round().astype(np.int64))
        for length in info.lengths.tolist()
    ]
    counts = [len(part) for part in steps]
    episode = np.repeat(np.arange(info.num_episodes), counts)
    choice = FrameChoice(episode=episode, step=np.concatenate(steps))
    frames = Frames(
        images=decode_views(info, cameras, choice, (px, px)),
        image_ok=np.ones((len(episode), len(cameras)), np.bool_),
        time_s=choice.step / info.fps,
        row=episode,
    )
    taken = info.offsets[episode] + choice.step
    return Moments(
        embeddings=critic.embed(frames, info.tasks, critic.remember(info.num_episodes))[0],
        progress=progress[taken],
        done=done[taken],
        offsets=np.cumsum([0, *counts]),
        instruction=info.tasks,
    )


def recorded(info: DatasetInfo, columns: Columns) -> np.ndarray:
    """Return the data set's own progress, f32 [frames].

    Raises:
        ValueError: it has none.
    """
    if "progress" not in columns.scalars:
        raise ValueError(f"{info.path}: has no column 'progress'; take --labels motion")
    return columns.scalars["progress"]


def motion(info: DatasetInfo, columns: Columns) -> np.ndarray:
    """Return progress told from motion, f32 [frames]; NaN in episodes known to have failed.

    Raises:
        ValueError: the arm is not one under `vla/robots`.
    """
    if info.robot not in registry.names("vla.robots"):
        raise ValueError(
            f"{info.path}: robot {info.robot!r} is not under vla/robots, so nobody knows its hand; "
            "add it there"
        )
    robot = registry.load("vla.robots", info.robot).SPEC
    hand = robot.names.index(robot.gripper.channel)
    opening = (robot.gripper.closed, robot.gripper.open)
    progress = np.full(info.num_frames, np.nan, np.float32)
    success = columns.scalars.get("success", np.ones(info.num_frames))
    for begin, end in zip(info.offsets[:-1], info.offsets[1:], strict=True):
        if success[end - 1] > 0 and end - begin > 1:
            state, action = columns.state[begin:end], columns.action[begin:end]
            given = {"fps": info.fps, "gripper_index": hand}
            cuts = segments.segments(state, action, opening=opening, **given)
            progress[begin:end] = segments.pseudo_progress(state, cuts, **given)
    return progress


def completed(columns: Columns, progress: np.ndarray) -> np.ndarray:
    """Return whether the task is complete, f32 [frames]: as recorded, else from progress."""
    if "success" in columns.scalars:
        return columns.scalars["success"]
    known = np.where(progress >= DONE, 1.0, np.where(progress < NOT_DONE, 0.0, np.nan))
    return np.where(np.isnan(progress), np.nan, known).astype(np.float32)


def draw(moments: Moments, config: TuneConfig, rng: np.random.Generator) -> Pairs:
    """Draw pairs of frames of the same episodes in any order, some under a foreign instruction."""
    episode = rng.integers(len(moments.instruction), size=config.pairs)
    first = moments.offsets[episode]
    a, b = rng.integers(first, moments.offsets[episode + 1], size=(2, config.pairs))
    chosen = [moments.embeddings[at] for at in (a, b, first)]
    progress, done = moments.progress[np.stack([a, b], 1)], moments.done[b]
    match = np.ones(config.pairs, np.float32)
    for i, other in _foreign(moments.instruction, episode, config.foreign, rng):
        chosen = [_replaced(x, i, critics.retold(x[i], other)) for x in chosen]
        # A task that is not this scene's has not begun here.
        progress[i], done[i], match[i] = 0.0, 0.0, 0.0
    return Pairs(
        a=chosen[0], b=chosen[1], first=chosen[2], progress=torch.from_numpy(progress),
        done=torch.from_numpy(done), match=torch.from_numpy(match),
    )  # fmt: skip


def _foreign(
    instruction: tuple[str, ...], episode: np.ndarray, share: float, rng: np.random.Generator
) -> Iterator[tuple[int, str]]:
    """Draw which pairs are told something else, and what."""
    known = np.array(sorted(set(instruction)))
    for i, e in enumerate(episode):
        others = known[known != instruction[e]]
        if rng.random() < share and len(others):
            yield i, str(rng.choice(others))


def _replaced(rows: torch.Tensor, at: int, row: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows[:at], row[None], rows[at + 1 :]])


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = arguments.read(TuneArgs, argv, "vla critic tune")
    tune(args.tune, args.data, args.out)
    print(f"critic: {args.out}")
    return 0
