"""`vla reward-model train`: records missing data sets, then trains."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from training.core import loop, plugin_flags
from training.reward_model import datasets
from training.reward_model.config import Material, RewardModelConfig
from training.reward_model.corrections import load_corrections
from vla.contracts.config import type_name


@dataclass(frozen=True, kw_only=True)
class Args:
    """Train a reward model on recorded progress of good and bad behaviour."""

    out: Path
    """Folder of the run; the same command resumes an unfinished run."""
    dataset: Path | None = None
    """Folder of the recordings, a data set per split and task; reward_model-data next to the run by
    default; missing ones are recorded."""
    train: Annotated[RewardModelConfig, tyro.conf.arg(name="")]
    """Every setting is a flag."""


def train(config: RewardModelConfig, out: Path, data: Path, console: Console) -> list[loop.Outcome]:
    """Record the data sets missing in `data`, then train.

    Raises:
        ValueError: settings are invalid, or `data` or `out` are damaged or of another run.
    """
    loop.check(config, out)
    if type_name(config.reward_model) != "pairwise":
        raise ValueError(
            f"reward_model: got {type_name(config.reward_model)!r}, expected 'pairwise'; a "
            "vision-language one is tuned with `vla reward-model tune`, the others have no weights"
        )
    if type_name(config.algo) != "reward_model":
        raise ValueError(f"algo: got {type_name(config.algo)!r}, expected 'reward_model'")
    return loop.run(config, material(config, data), out, console)


def material(config: RewardModelConfig, data: Path) -> Material:
    """Return the training and validation episodes; missing ones are recorded."""
    corrections = load_corrections(
        config.corrections, config.reward_model.cameras, config.scorer.horizon_s,
        config.reward_model.backbone.image_px,
    )  # fmt: skip
    splits = datasets.splits(config.tasks, config.sizes)
    clips = {name: load(config, splits[name], data) for name in ("train", "validation")}
    return Material(
        train=clips["train"], validation=clips["validation"], corrections=corrections,
        names=tuple(f"{s.name}: {', '.join(s.tasks)}" for s in map(splits.get, clips) if s),
    )  # fmt: skip


def load(config: RewardModelConfig, split: datasets.Split, data: Path) -> datasets.Clips:
    """Return a split's episodes at the reward model's stride and image size."""
    reward_model = config.reward_model
    return datasets.load(
        split, data, config.tasks, reward_model.cameras, config.scorer.stride_s,
        reward_model.backbone.image_px,
    )  # fmt: skip


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = plugin_flags.read_args(Args, RewardModelConfig(), argv, "vla reward-model train")
    train(args.train, args.out, args.dataset or args.out.parent / "reward_model-data", Console())
    return 0
