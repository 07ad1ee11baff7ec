"""Learns a pairwise process-reward critic from recorded progress; judged on validation tasks."""

import copy
import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reward_models import calibrate, checkpoint, pairs
from reward_models.curves import Curves, ScorerConfig, trend_evidence
from reward_models.metrics import ranks
from reward_models.pairs import CorrectionBatch, CriticBatch, Losses
from reward_models.scorer import Scorer
from reward_models.truth import earlier, trend_of
from training.config import RunConfig
from training.critic.batches import Drawing, draw, instructions
from training.critic.clips import Clips
from training.critic.config import CriticConfig, Material
from training.critic.corrections import draw_corrections
from training.optimiser import Optimiser
from vla import checkpoint as policies
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig, check_least
from vla.nn.text import train_tokenizer

Weights = dict[str, torch.Tensor]
"""A state dict."""
SHARES = (0.5, 0.65, 0.8, 0.9, 1.0)
"""Weights of the absolute curve to choose from."""
CORRECTIONS = 4
"""Corrected moments per batch, where there are any."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of critic training."""

    drawing: Drawing = field(default_factory=Drawing)
    """How batches are drawn."""
    losses: Losses = field(default_factory=Losses)
    """Weights of the losses; 0 is the ablation of one."""
    aiming: float = 0.15
    """Share of the updates, the first ones, that only teach where the work leads: what is meant,
    before how far it is. Many episodes, few frames of each; 0 is the ablation."""
    aimed: int = 96
    """Episodes per batch there."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, aiming=0, aimed=2)

    def start(self, train: RunConfig, data: Any) -> "CriticLearning":
        """Make a critic for the data.

        Raises:
            ValueError: the run is not one of a critic.
        """
        if not (isinstance(train, CriticConfig) and isinstance(data, Material)):
            raise ValueError("algo critic trains critics: use `vla critic train`")
        return CriticLearning(self, train, data)


@dataclass(frozen=True, kw_only=True)
class Validation:
    """How well weights do on validation tasks; satisfies `training.loop.Outcome`."""

    order: dict[str, float]
    """Spearman against the truth, task by task."""
    done: dict[str, float]
    """AUROC of the done head, task by task."""
    outcome: dict[str, float]
    """AUROC of success against failure by the progress at the end, task by task."""
    learned: tuple[str, ...]
    """Tasks of those that are learned: their held-out layouts choose the weights."""
    error: float
    """Mean absolute error of progress."""
    seconds: float
    """Wall time."""

    @property
    def figure(self) -> str:
        """What `rate` is."""
        return "order"

    @property
    def rate(self) -> float:
        """Mean over learned tasks of Spearman, done and outcome AUROC.

        A task that is not learned is reported and calibrated with, but chooses nothing: the better
        a critic knows its tasks, the surer it is that an unknown one is foreign.
        """
        told = [[self.order[t], self.done[t], self.outcome[t]] for t in self.learned]
        return float(np.nanmean(told))

    def sentence(self) -> str:
        """Return the result for people."""
        order = ", ".join(f"{task} {value:.3f}" for task, value in self.order.items())
        return f"validation: Spearman {order}; mean absolute error {self.error:.3f}"

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON types."""
        return {
            "order": self.order, "done": self.done, "outcome": self.outcome,
            "learned": list(self.learned), "error": self.error, "rate": self.rate,
            "seconds": self.seconds,
        }  # fmt: skip


class CriticLearning:
    """Satisfies `training.loop.Learner`."""

    def __init__(self, config: Config, train: CriticConfig, data: Material) -> None:
        self.config, self.run, self.data = config, train, data
        self.tokenizer = train_tokenizer(instructions(data.train))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(train.seed)  # noqa: TID251  torch's initialisers know no other source
            self.module = train.critic.build(self.tokenizer).to(train.device)
        self.rng = np.random.default_rng(train.seed)
        self.scorer, self.calibration = train.scorer, calibrate.Calibration()
        self.leads = ~np.isnan(data.train.goal).all(1)
        self.collected = 0

    def collect(self) -> tuple[CriticBatch, CorrectionBatch | None]:
        """Return the next batch, and some of what people corrected, if anything."""
        self.collected += 1
        if self._aims():
            few = dataclasses.replace(
                self.config.drawing, episodes=self.config.aimed, spots=1, mates=0,
                foreign=0.0, shown=0.0,
            )  # fmt: skip
            return draw(self.data.train, few, self.rng, self.leads), None
        batch, known = draw(self.data.train, self.config.drawing, self.rng), self.data.corrections
        if known is None:
            return batch, None
        return batch, draw_corrections(known, CORRECTIONS, self.config.drawing, self.rng)

    def update(
        self, data: tuple[CriticBatch, CorrectionBatch | None], optimiser: Optimiser,
        generator: torch.Generator,
    ) -> dict[str, float]:  # fmt: skip
        """Descend the sum of the losses once."""
        batch, corrections = data
        if self._aims():
            losses = {"goal": self.config.losses.goal * pairs.aim_loss(self.module, batch)}
        else:
            losses = pairs.loss(self.module, batch, self.config.losses)
        if corrections is not None:
            losses["corrected"] = pairs.correction_loss(
                self.module, corrections, self.config.losses
            )
        figures = optimiser.step_(torch.stack(list(losses.values())).sum())
        values = {name: float(value.detach()) for name, value in losses.items()}
        return {**values, **figures, "samples": float(len(batch.history))}

    def _aims(self) -> bool:
        """Whether the batch collected last is one of the first, that teach goals alone."""
        return self.collected <= self.config.aiming * self.run.steps and bool(self.leads.any())

    def evaluate(self, weights: Weights, *, episodes: int, seed: int) -> Validation:
        """Judge weights on `episodes` of each validation task; fuse and calibrate by them."""
        begin = time.perf_counter()
        scorer, clips = self._scorer(weights), first_of_each(self.data.validation, episodes)
        self.scorer, curves = best_fusion(scorer, clips)
        self.calibration = calibrated(self.scorer, curves, clips)
        order, done, outcome = order_of(curves, clips), {}, {}
        ends = clips.offsets[1:] - 1
        for task in order:
            here = clips.task == task
            frames, last = here[clips.episode], ends[here]
            done[task] = _auroc(curves.done[frames], clips.success[frames])
            outcome[task] = _auroc(curves.value[last], clips.success[last])
        error = float(np.abs(curves.value - clips.progress).mean())
        return Validation(
            order=order, done=done, outcome=outcome,
            learned=tuple(t for t in order if t in self.run.tasks.train), error=error,
            seconds=time.perf_counter() - begin,
        )  # fmt: skip

    def save(self, weights: Weights, step: int, folder: Path, also: Callable[[Path], None]) -> None:
        """Write a critic's folder."""
        told = {"step": step, "seed": self.run.seed, "data": self.data.names}
        origin = policies.provenance({}, (), step)
        checkpoint.save(
            self._scorer(weights), self.run.critic, self.tokenizer, folder, weights=weights,
            provenance={**told, "revision": origin.revision, "versions": origin.versions},
            also=also,
        )  # fmt: skip

    def check_saved(self, folder: Path) -> None:
        """Raise ValueError unless the critic's folder is whole."""
        checkpoint.load(folder)

    def state(self) -> dict[str, Any]:
        """Return where the stream of data is, and the calibration."""
        return {
            "rng": self.rng.bit_generator.state,
            "collected": self.collected,
            "scorer": configs.to_json(self.scorer),
            "calibration": configs.to_json(self.calibration),
        }

    def restore_(self, state: dict[str, Any]) -> None:
        """Continue the stream of data."""
        self.rng.bit_generator.state = state["rng"]
        self.collected = state["collected"]
        self.scorer = configs.from_json(ScorerConfig, state["scorer"], "scorer")
        self.calibration = configs.from_json(
            calibrate.Calibration, state["calibration"], "calibration"
        )

    def _scorer(self, weights: Weights) -> Scorer:
        averaged = copy.deepcopy(self.module)
        averaged.load_state_dict(weights)
        return Scorer(averaged.eval(), self.scorer, self.calibration)


@torch.no_grad()
def best_fusion(scorer: Scorer, clips: Clips) -> tuple[ScorerConfig, Curves]:
    """Return the weight of the absolute curve that orders frames best, and the curves it gives."""
    words = tuple(clips.instruction)
    embedded = scorer.embed(clips.frames(), words)
    found = []
    for share in SHARES:
        config = dataclasses.replace(scorer.config, absolute_share=share)
        fused = Scorer(scorer.critic, config, scorer.calibration)
        curves = fused.curves_of(embedded, clips.episode, clips.time_s, None)
        found.append((np.nanmean(list(order_of(curves, clips).values())), config, curves))
    _, config, curves = max(found, key=lambda one: one[0])
    return config, curves


def calibrated(config: ScorerConfig, curves: Curves, clips: Clips) -> calibrate.Calibration:
    """Return the calibration that fits the curves of validation episodes."""
    before = earlier(clips.episode, clips.time_s, config.horizon_s)
    change = clips.progress - clips.progress[before]
    return calibrate.fit(
        value=curves.value, spread=curves.spread, disagreement=curves.disagreement,
        done_logit=curves.done, trend=trend_evidence(curves), progress=clips.progress,
        success=clips.success,
        true_trend=trend_of(change),
    )  # fmt: skip


def order_of(curves: Curves, clips: Clips) -> dict[str, float]:
    """Return Spearman of progress with the truth, to hundredths, task by task."""
    order = {}
    for task in np.unique(clips.task):
        here = (clips.task == task)[clips.episode]
        order[str(task)] = ranks.spearman(
            np.round(curves.value[here], 2), np.round(clips.progress[here], 2)
        )
    return order


def _auroc(score: np.ndarray, positive: np.ndarray) -> float:
    return ranks.auroc(*ranks.tally(score, positive)(np.ones(len(score))))


def first_of_each(clips: Clips, episodes: int) -> Clips:
    """Return at most the first `episodes` of every task."""
    kept = [np.flatnonzero(clips.task == task)[:episodes] for task in np.unique(clips.task)]
    chosen = np.sort(np.concatenate(kept))
    return clips if len(chosen) == clips.episodes else clips.pick(chosen)
