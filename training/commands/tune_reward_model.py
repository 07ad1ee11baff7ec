"""`vla reward-model tune`: trains the adapter of a vision-language reward model on a data set.

The target is the progress recorded in it, or pseudo progress from its motion.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
import tyro

from reward_models.core import checkpoint, segments
from reward_models.core.scorer import Scorer
from reward_models.losses import vlm as vlm_tune
from reward_models.losses.vlm import Pairs
from reward_models.models import vlm as vlm_reward
from reward_models.models.vlm import VlmRewardModel
from vla.contracts import registry
from vla.contracts.config import validate_min
from vla.contracts.types import Frames
from vla.data.decode import FrameChoice, decode_views
from vla.data.info import Columns, DatasetInfo
from vla.data.reader import open_dataset, read_columns
from vla.nn import vlm
from vla.nn.devices import check_device
from vla.utils import arguments, files

NOT_DONE, DONE = 0.8, 0.95
"""Progress below which a task counts as not complete, and from which as complete, where success is
not recorded; frames between them have no label (as in VLAC)."""
LINES = 10
"""Lines printed in a run."""


@dataclass(frozen=True, kw_only=True)
class TuneConfig:
    """Settings of tuning."""

    reward_model: vlm_reward.Config = field(default_factory=lambda: vlm_reward.Config(lora_rank=16))
    """The model, its inputs, and the rank of its adapter."""
    labels: Literal["recorded", "motion"] = "recorded"
    """Column `progress` of the data set, or sub-tasks found in its motion."""
    steps: int = 1000
    """Updates."""
    pairs: int = 8
    """Pairs of frames per update."""
    frames: int = 16
    """Frames taken of each episode, spread evenly; the first and the last are among them."""
    mismatched_instruction_prob: float = 0.15
    """Share of pairs with the instruction of other episodes."""
    lr: float = 1e-4
    """Learning rate."""
    seed: int = 0
    """Seed of the pairs."""
    device: str = "cpu"
    """Device of the model: cpu, cuda or cuda:N."""

    def __post_init__(self) -> None:
        validate_min(self, steps=1, pairs=1, frames=2, seed=0)


@dataclass(frozen=True, kw_only=True)
class TuneArgs:
    """Tune a vision-language reward model's adapter on a data set."""

    dataset: Path
    """Folder of a LeRobotDataset v3."""
    out: Path
    """Folder of the reward model; it must not exist."""
    tune: Annotated[TuneConfig, tyro.conf.arg(name="")] = field(default_factory=TuneConfig)
    """Every setting is a flag."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LabelledFrames:
    """F frames of N episodes with their labels, in order of episode and time."""

    embeddings: torch.Tensor
    """u8 [f, d], of `VlmRewardModel.embed`."""
    progress: np.ndarray
    """f32 [f]; NaN where unknown."""
    done: np.ndarray
    """f32 [f], 0 or 1; NaN where unknown."""
    offsets: np.ndarray
    """i64 [n + 1]: frames of episode e are offsets[e] to offsets[e + 1]."""
    instruction: tuple[str, ...]
    """Of each episode."""


def tune(config: TuneConfig, data: Path, out: Path) -> list[dict[str, float]]:
    """Tune on a data set, write the reward model, and return the losses of every update.

    Raises:
        ValueError: model, data or `out` are invalid.
    """
    if out.exists():
        raise ValueError(f"{out}: exists; choose another --out")
    check_device(config.device)
    info = open_dataset(data)
    reward_model = config.reward_model.build().to(config.device)
    frames = read(info, reward_model, config)
    rng = np.random.default_rng(config.seed)
    batches = (sample_pairs(frames, config, rng) for _ in range(config.steps))
    losses = []
    for step, metrics in enumerate(vlm_tune.tune(reward_model, batches, config.lr), 1):
        losses.append(metrics)
        if step % max(config.steps // LINES, 1) == 0 or step == config.steps:
            text = ", ".join(f"{name} {value:.3f}" for name, value in metrics.items())
            print(f"update {step} of {config.steps}: {text}", flush=True)
    provenance = {"data": str(data), "labels": config.labels, "updates": config.steps}
    checkpoint.save(
        Scorer(reward_model.eval()), config.reward_model, None, out,
        weights=reward_model.state_dict(), provenance=provenance,
        also=lambda folder: vlm.save_adapter(reward_model.vlm, folder / "adapter"),
    )  # fmt: skip
    return losses


def read(info: DatasetInfo, reward_model: VlmRewardModel, config: TuneConfig) -> LabelledFrames:
    """Read and encode some frames of every episode, with their labels."""
    columns = read_columns(info)
    progress = recorded(info, columns) if config.labels == "recorded" else motion(info, columns)
    done = completed(columns, progress)
    px = config.reward_model.image_px
    cameras = tuple(info.camera(name) for name in reward_model.cameras)
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
        episode_index=episode,
    )
    rows = info.offsets[episode] + choice.step
    memory = reward_model.initial_memory(info.num_episodes)
    return LabelledFrames(
        embeddings=reward_model.embed(frames, info.tasks, memory)[0],
        progress=progress[rows],
        done=done[rows],
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
    """Return pseudo progress from motion, f32 [frames]; NaN in failed episodes.

    Raises:
        ValueError: the arm is not one under `vla/robots`.
    """
    if info.robot not in registry.names("vla.robots"):
        raise ValueError(
            f"{info.path}: robot {info.robot!r} is not under vla/robots; add it there with its "
            "gripper"
        )
    robot = registry.load("vla.robots", info.robot).SPEC
    hand = robot.names.index(robot.gripper.channel)
    opening = (robot.gripper.closed, robot.gripper.open)
    progress = np.full(info.num_frames, np.nan, np.float32)
    success = columns.scalars.get("success", np.ones(info.num_frames))
    for begin, end in zip(info.offsets[:-1], info.offsets[1:], strict=True):
        if success[end - 1] > 0 and end - begin > 1:
            state, action = columns.state[begin:end], columns.action[begin:end]
            signal = {"fps": info.fps, "gripper_index": hand}
            cuts = segments.segments(state, action, opening=opening, **signal)
            progress[begin:end] = segments.pseudo_progress(state, cuts, **signal)
    return progress


def completed(columns: Columns, progress: np.ndarray) -> np.ndarray:
    """Return whether the task is complete, f32 [frames]: recorded, or from progress."""
    if "success" in columns.scalars:
        return columns.scalars["success"]
    done = np.where(progress >= DONE, 1.0, np.where(progress < NOT_DONE, 0.0, np.nan))
    return np.where(np.isnan(progress), np.nan, done).astype(np.float32)


def sample_pairs(frames: LabelledFrames, config: TuneConfig, rng: np.random.Generator) -> Pairs:
    """Sample pairs of frames of the same episode in any order, some with another instruction."""
    episode = rng.integers(len(frames.instruction), size=config.pairs)
    first = frames.offsets[episode]
    a, b = rng.integers(first, frames.offsets[episode + 1], size=(2, config.pairs))
    chosen = [frames.embeddings[at] for at in (a, b, first)]
    progress, done = frames.progress[np.stack([a, b], 1)], frames.done[b]
    match = np.ones(config.pairs, np.float32)
    for i, other in _mismatches(
        frames.instruction, episode, config.mismatched_instruction_prob, rng
    ):
        chosen = [_replaced(x, i, vlm_reward.with_instruction(x[i], other)) for x in chosen]
        # A task that does not belong to the scene has no progress.
        progress[i], done[i], match[i] = 0.0, 0.0, 0.0
    return Pairs(
        a=chosen[0], b=chosen[1], first=chosen[2], progress=torch.from_numpy(progress),
        done=torch.from_numpy(done), match=torch.from_numpy(match),
    )  # fmt: skip


def _mismatches(
    instruction: tuple[str, ...], episode: np.ndarray, share: float, rng: np.random.Generator
) -> Iterator[tuple[int, str]]:
    """Yield the pairs that get another instruction, and the instruction."""
    texts = np.array(sorted(set(instruction)))
    for i, e in enumerate(episode):
        others = texts[texts != instruction[e]]
        if rng.random() < share and len(others):
            yield i, str(rng.choice(others))


def _replaced(rows: torch.Tensor, at: int, row: torch.Tensor) -> torch.Tensor:
    return torch.cat([rows[:at], row[None], rows[at + 1 :]])


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = arguments.read(TuneArgs, argv, "vla reward-model tune")
    with files.claim(args.out):
        tune(args.tune, args.dataset, args.out)
    print(f"reward model: {args.out}")
    return 0
