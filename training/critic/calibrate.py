"""`vla critic calibrate`: fits fusion and probabilities of a trained critic once more."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from reward_models import checkpoint
from reward_models.scorer import Scorer
from training import host
from training.algos.critic import best_fusion, calibrated, order_of
from training.critic import sets
from training.critic.evaluate import configuration
from training.critic.train import load
from vla import arguments
from vla.contracts.config import check_least


@dataclass(frozen=True, kw_only=True)
class Args:
    """Fit a trained critic's fusion and probabilities on its validation episodes again."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder that `vla critic train --out` wrote; its critic is replaced by one rename."""
    data: Path | None = None
    """Folder of the recordings; beside the run if not given, recorded where missing."""
    threads: int = 2
    """CPU threads."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, threads=1)


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = arguments.read(Args, argv, "vla critic calibrate")
    host.prepare(args.threads)
    order = recalibrate(args.run, args.data or args.run.parent / "critic-data")
    told = ", ".join(f"{task} {value:.3f}" for task, value in order.items())
    Console(highlight=False).print(f"{args.run}: calibrated; Spearman on validation {told}")
    return 0


def recalibrate(run: Path, data: Path) -> dict[str, float]:
    """Calibrate the critic of a run in place and return its order on validation, task by task.

    Raises:
        ValueError: there is no critic, or its run is of another configuration.
    """
    config = configuration((run,))
    folder = checkpoint.find(run)
    told, scorer = checkpoint.describe(folder), checkpoint.load(folder)
    critic: Any = scorer.critic  # a module with a tokenizer: nothing else is trained
    clips = load(config, sets.splits(config.tasks, config.sizes)["validation"], data)
    fusion, curves = best_fusion(scorer, clips)
    fitted = Scorer(scorer.critic, fusion, calibrated(fusion, curves, clips))
    checkpoint.save(
        fitted, told.critic, critic.text.tokenizer, folder,
        weights=critic.state_dict(), provenance=told.provenance,
        also=checkpoint.keep_others(folder),
    )  # fmt: skip
    return order_of(curves, clips)
