"""`vla reward-model calibrate`: fits fusion and calibration of a trained reward model again."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from reward_models.core import checkpoint
from reward_models.core.scorer import Scorer
from training.algos.reward_model import best_fusion, fit_calibration, spearman_by_task
from training.commands.eval_reward_model import configuration
from training.commands.train_reward_model import load
from training.core import runtime
from training.reward_model import datasets
from vla.contracts.config import validate_min
from vla.utils import arguments


@dataclass(frozen=True, kw_only=True)
class Args:
    """Fit fusion and calibration of a trained reward model on its validation episodes again."""

    run: Annotated[Path, tyro.conf.Positional]
    """Folder that `vla reward-model train --out` wrote; its reward model is replaced."""
    dataset: Path | None = None
    """Folder of the recordings, a data set per split and task; reward_model-data next to the run
    by default; missing ones are recorded."""
    threads: int = 2
    """CPU threads."""

    def __post_init__(self) -> None:
        validate_min(self, threads=1)


def main(argv: list[str]) -> int:
    """Run the verb."""
    args = arguments.read(Args, argv, "vla reward-model calibrate")
    runtime.prepare(args.threads)
    spearman = recalibrate(args.run, args.dataset or args.run.parent / "reward_model-data")
    values = ", ".join(f"{task} {value:.3f}" for task, value in spearman.items())
    Console(highlight=False).print(f"{args.run}: calibrated; Spearman on validation {values}")
    return 0


def recalibrate(run: Path, data: Path) -> dict[str, float]:
    """Calibrate the reward model of a run in place; return Spearman on validation, by task.

    Raises:
        ValueError: there is no reward model in the run.
    """
    config = configuration((run,))
    folder = checkpoint.find(run)
    description, scorer = checkpoint.describe(folder), checkpoint.load(folder)
    reward_model: Any = scorer.reward_model  # trained ones are modules with a tokenizer
    clips = load(config, datasets.splits(config.tasks, config.sizes)["validation"], data)
    fusion, curves = best_fusion(scorer, clips)
    fitted = Scorer(scorer.reward_model, fusion, fit_calibration(fusion, curves, clips))
    checkpoint.save(
        fitted, description.reward_model, reward_model.text.tokenizer, folder,
        weights=reward_model.state_dict(), provenance=description.provenance,
        also=checkpoint.copy_others(folder),
    )  # fmt: skip
    return spearman_by_task(curves, clips)
