"""`vla critic train`: recordings if there are none yet, then the loop, from flags."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console

from training import flags, loop
from training.critic import sets
from training.critic.config import CriticConfig, Material
from training.critic.corrections import load_corrections
from vla import arguments
from vla.contracts.config import type_name


@dataclass(frozen=True, kw_only=True)
class Args:
    """What `vla critic train` was told."""

    out: Path
    """Folder of the run."""
    data: Path
    """Folder of the recordings."""
    train: CriticConfig
    """The run."""


def train(config: CriticConfig, out: Path, data: Path, console: Console) -> list[loop.Outcome]:
    """Record what is missing in `data`, then train.

    Raises:
        ValueError: settings make no sense, data or `out` are damaged or belong elsewhere.
    """
    loop.check(config, out)
    if config.device != "cpu":
        raise ValueError(f"device: got {config.device!r}; critics of this size learn on the cpu")
    if type_name(config.critic) != "pairwise":
        raise ValueError(
            f"critic: got {type_name(config.critic)!r}, expected 'pairwise'; a vision-language "
            "critic is tuned with `vla critic tune`, the others learn nothing"
        )
    if type_name(config.algo) != "critic":
        raise ValueError(f"algo: got {type_name(config.algo)!r}, expected 'critic'")
    return loop.run(config, material(config, data), out, console)


def material(config: CriticConfig, data: Path) -> Material:
    """Return the training and validation episodes, recorded if they are not there yet."""
    corrections = load_corrections(
        config.corrections, config.critic.cameras, config.scorer.horizon_s,
        config.critic.backbone.image_px,
    )  # fmt: skip
    found = sets.splits(config.tasks, config.sizes)
    clips = {name: load(config, found[name], data) for name in ("train", "validation")}
    return Material(
        train=clips["train"], validation=clips["validation"], corrections=corrections,
        names=tuple(f"{s.name}: {', '.join(s.tasks)}" for s in map(found.get, clips) if s),
    )  # fmt: skip


def load(config: CriticConfig, split: sets.Split, data: Path) -> sets.Clips:
    """Return a split's episodes at the critic's cadence and image size."""
    critic = config.critic
    return sets.load(
        split, data, config.tasks, critic.cameras, config.scorer.stride_s, critic.backbone.image_px
    )


def parse(argv: list[str]) -> Args:
    """Return the arguments of `vla critic train`.

    Raises:
        ValueError: an unknown plug-in or flag.
    """
    config, rest = flags.choose_plugins(CriticConfig(), argv)

    def told(
        out: Path, data: Path | None = None,
        train: Annotated[CriticConfig, tyro.conf.arg(name="")] = config,
    ) -> Args:  # fmt: skip
        """Train a process-reward critic on recorded progress, good and bad behaviour alike.

        Args:
            out: Folder of the run; the same command continues what is there.
            data: Folder of the recordings; beside the run if not given, recorded where missing.
            train: Every setting is a flag.
        """
        return Args(out=out, data=data or out.parent / "critic-data", train=train)

    return arguments.read(told, rest, "vla critic train")


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = parse(argv)
    train(args.train, args.out, args.data, Console())
    return 0
