"""Trains a pairwise reward model on recorded progress; validation tasks choose the weights."""

import copy
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reward_models.core import calibration, checkpoint
from reward_models.core.curves import Curves, ScorerConfig, trend_evidence
from reward_models.core.scorer import Scorer
from reward_models.core.truth import frame_at_lag, trend_of
from reward_models.losses import pairwise
from reward_models.losses.pairwise import CorrectionBatch, Losses, RewardModelBatch
from reward_models.metrics import ranks
from training.core.config import RunConfig
from training.core.loop import Weights
from training.core.optimizer import Optimizer
from training.reward_model.batches import SamplerConfig, all_instructions, sample_batch
from training.reward_model.clips import Clips
from training.reward_model.config import Material, RewardModelConfig
from training.reward_model.corrections import sample_corrections
from vla import checkpoint as policies
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig, validate_min
from vla.nn.text import train_tokenizer

ABSOLUTE_SHARES = (0.5, 0.65, 0.8, 0.9, 1.0)
"""Candidates for `ScorerConfig.absolute_share`."""
CORRECTIONS = 4
"""Corrections per batch, if there are any."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of reward model training."""

    sampler: SamplerConfig = field(default_factory=SamplerConfig)
    """How batches are sampled."""
    losses: Losses = field(default_factory=Losses)
    """Weights of the losses; 0 is the ablation of one."""
    goal_pretrain_fraction: float = 0.15
    """Share of the updates, the first ones, that use the goal loss alone, on many episodes with few
    frames of each; 0 is the ablation."""
    goal_pretrain_batch: int = 96
    """Episodes per batch of these updates."""

    def __post_init__(self) -> None:
        validate_min(self, goal_pretrain_fraction=0, goal_pretrain_batch=2)

    def start(self, train: RunConfig, data: Any) -> "RewardModelTraining":
        """Return a new reward model and its training state.

        Raises:
            ValueError: `train` or `data` belong to another kind of run.
        """
        if not (isinstance(train, RewardModelConfig) and isinstance(data, Material)):
            raise ValueError(
                "algo reward_model trains reward models, not policies: use `vla reward-model train`"
            )
        return RewardModelTraining(self, train, data)


@dataclass(frozen=True, kw_only=True)
class Validation:
    """How well weights do on validation tasks; satisfies `training.core.loop.Outcome`."""

    spearman: dict[str, float]
    """Rank correlation of predicted with true progress, by task."""
    done_auroc: dict[str, float]
    """AUROC of the done head, by task."""
    outcome_auroc: dict[str, float]
    """AUROC of success against failure by the progress at the end, by task."""
    train_tasks: tuple[str, ...]
    """Validated tasks that are also trained on: their held-out layouts choose the weights."""
    mae: float
    """Mean absolute error of progress."""
    seconds: float
    """Wall time."""

    @property
    def metric(self) -> str:
        """Name of `rate` in metrics.jsonl."""
        return "score"

    @property
    def rate(self) -> float:
        """Mean over trained tasks of Spearman, done AUROC and outcome AUROC.

        Other tasks are reported and calibrated with but choose no weights: the better a reward
        model knows its tasks, the surer it takes an unknown one for a mismatch.
        """
        scores = (self.spearman, self.done_auroc, self.outcome_auroc)
        return float(np.nanmean([[score[t] for score in scores] for t in self.train_tasks]))

    def summary(self) -> str:
        """Return the result as a sentence."""
        spearman = ", ".join(f"{task} {value:.3f}" for task, value in self.spearman.items())
        return f"validation: Spearman {spearman}; mean absolute error {self.mae:.3f}"

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return {**dataclasses.asdict(self), "rate": self.rate}


class RewardModelTraining:
    """Satisfies `training.core.loop.Learner`."""

    def __init__(self, config: Config, train: RewardModelConfig, data: Material) -> None:
        self.config, self.run, self.data = config, train, data
        self.tokenizer = train_tokenizer(all_instructions(data.train))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(train.seed)  # noqa: TID251  torch's initialisers know no other source
            self.module = train.reward_model.build(self.tokenizer).to(train.device)
        self.rng = np.random.default_rng(train.seed)
        self.scorer, self.calibration = train.scorer, calibration.Calibration()
        self.has_goal = ~np.isnan(data.train.goal).all(1)
        self.collected = 0

    def collect(self) -> tuple[RewardModelBatch, CorrectionBatch | None]:
        """Return the next batch, and a batch of corrections if there are any."""
        self.collected += 1
        sampler, corrections = self.config.sampler, self.data.corrections
        if self._in_goal_pretraining():
            sampler = dataclasses.replace(
                sampler, batch_episodes=self.config.goal_pretrain_batch, anchor_frames=1,
                pair_frames=0, mismatched_instruction_prob=0.0, reference_prob=0.0,
            )  # fmt: skip
            return sample_batch(self.data.train, sampler, self.rng, self.has_goal), None
        batch = sample_batch(self.data.train, sampler, self.rng)
        if corrections is None:
            return batch, None
        return batch, sample_corrections(corrections, CORRECTIONS, sampler, self.rng)

    def update(
        self, data: tuple[RewardModelBatch, CorrectionBatch | None], optimizer: Optimizer,
        generator: torch.Generator,
    ) -> dict[str, float]:  # fmt: skip
        """Take one optimizer step on the sum of the losses and return the metrics."""
        device = self.module.device
        batch = pairwise.to_device(data[0], device)
        corrections = None if data[1] is None else pairwise.to_device(data[1], device)
        if self._in_goal_pretraining():
            losses = pairwise.goal_losses(self.module, batch, self.config.losses)
        else:
            losses = pairwise.loss(self.module, batch, self.config.losses)
        if corrections is not None:
            losses["corrected"] = pairwise.correction_loss(
                self.module, corrections, self.config.losses
            )
        metrics = optimizer.step(torch.stack(list(losses.values())).sum())
        values = {f"{name}_loss": float(value.detach()) for name, value in losses.items()}
        return {**values, **metrics, "samples": float(len(batch.loss_index))}

    def _in_goal_pretraining(self) -> bool:
        """Whether the last collected batch is for the goal loss alone."""
        last = self.config.goal_pretrain_fraction * self.run.steps
        return self.collected <= last and bool(self.has_goal.any())

    def evaluate(self, weights: Weights, *, episodes: int, seed: int) -> Validation:
        """Validate on `episodes` of each validation task; fit fusion and calibration on them."""
        begin = time.perf_counter()
        scorer, clips = self._scorer(weights), first_of_each(self.data.validation, episodes)
        self.scorer, curves = best_fusion(scorer, clips)
        self.calibration = fit_calibration(self.scorer, curves, clips)
        spearman, done, outcome = spearman_by_task(curves, clips), {}, {}
        ends = clips.offsets[1:] - 1
        for task in spearman:
            of_task = clips.task == task
            frames, last = of_task[clips.episode], ends[of_task]
            done[task] = ranks.labelled_auroc(curves.done[frames], clips.success[frames])
            outcome[task] = ranks.labelled_auroc(curves.value[last], clips.success[last])
        return Validation(
            spearman=spearman, done_auroc=done, outcome_auroc=outcome,
            train_tasks=tuple(t for t in spearman if t in self.run.tasks.train),
            mae=float(np.abs(curves.value - clips.progress).mean()),
            seconds=time.perf_counter() - begin,
        )  # fmt: skip

    def save(self, weights: Weights, step: int, folder: Path, also: Callable[[Path], None]) -> None:
        """Write a reward model's folder."""
        origin = policies.provenance({}, (), step)
        provenance = {
            "step": step, "seed": self.run.seed, "data": self.data.names,
            "revision": origin.revision, "versions": origin.versions,
        }  # fmt: skip
        checkpoint.save(
            self._scorer(weights), self.run.reward_model, self.tokenizer, folder, weights=weights,
            provenance=provenance, also=also,
        )  # fmt: skip

    def check_saved(self, folder: Path) -> None:
        """Raise ValueError unless the reward model's folder is whole."""
        checkpoint.load(folder)

    def state(self) -> dict[str, Any]:
        """Return the state of sampling, fusion and calibration."""
        return {
            "rng": self.rng.bit_generator.state,
            "collected": self.collected,
            "scorer": configs.to_json(self.scorer),
            "calibration": configs.to_json(self.calibration),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Set the state of sampling, fusion and calibration."""
        self.rng.bit_generator.state = state["rng"]
        self.collected = state["collected"]
        self.scorer = configs.from_json(ScorerConfig, state["scorer"], "scorer")
        self.calibration = configs.from_json(
            calibration.Calibration, state["calibration"], "calibration"
        )

    def _scorer(self, weights: Weights) -> Scorer:
        averaged = copy.deepcopy(self.module)
        averaged.load_state_dict(weights)
        return Scorer(averaged.eval(), self.scorer, self.calibration)


@torch.no_grad()
def best_fusion(scorer: Scorer, clips: Clips) -> tuple[ScorerConfig, Curves]:
    """Return the scorer settings with the best Spearman, and their curves."""
    embedded = scorer.embed(clips.frames(), tuple(clips.instruction))
    candidates = []
    for share in ABSOLUTE_SHARES:
        config = dataclasses.replace(scorer.config, absolute_share=share)
        fused = Scorer(scorer.reward_model, config, scorer.calibration)
        curves = fused.curves_of(embedded, clips.episode, clips.time_s, None)
        spearman = np.nanmean(list(spearman_by_task(curves, clips).values()))
        candidates.append((spearman, config, curves))
    _, config, curves = max(candidates, key=lambda candidate: candidate[0])
    return config, curves


def fit_calibration(config: ScorerConfig, curves: Curves, clips: Clips) -> calibration.Calibration:
    """Return the calibration fitted on the curves of validation episodes."""
    before = frame_at_lag(clips.episode, clips.time_s, config.horizon_s)
    change = clips.progress - clips.progress[before]
    return calibration.fit(
        value=curves.value, spread=curves.spread, disagreement=curves.disagreement,
        done_logit=curves.done, trend=trend_evidence(curves), progress=clips.progress,
        success=clips.success,
        true_trend=trend_of(change),
    )  # fmt: skip


def spearman_by_task(curves: Curves, clips: Clips) -> dict[str, float]:
    """Return Spearman of predicted with true progress, both rounded to hundredths, by task."""
    spearman = {}
    for task in np.unique(clips.task):
        of_task = (clips.task == task)[clips.episode]
        spearman[str(task)] = ranks.spearman(
            np.round(curves.value[of_task], 2), np.round(clips.progress[of_task], 2)
        )
    return spearman


def first_of_each(clips: Clips, episodes: int) -> Clips:
    """Return at most the first `episodes` of every task."""
    first = [np.flatnonzero(clips.task == task)[:episodes] for task in np.unique(clips.task)]
    chosen = np.sort(np.concatenate(first))
    return clips if len(chosen) == clips.episodes else clips.pick(chosen)
