"""All metrics of a reward model on one evaluation set, with intervals and bounds."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from jaxtyping import Float32
from rich.table import Table

from reward_models.metrics import confidence, grounding, outcome, progress
from reward_models.metrics.episodes import Episodes
from reward_models.metrics.resample import SAMPLES, Draw, Statistic, draws, interval_over, whole


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """All predictions of one reward model on one evaluation set; None parts have no rows.

    `backward` and `mismatched` hold the same episodes as `matched`, in the same order.
    """

    matched: Episodes
    """Under the episodes' instructions, without abstention."""
    abstaining: Episodes | None = None
    """The same with the abstention of labels and rewards."""
    backward: Episodes | None = None
    """With frames (and truth) in reversed order."""
    mismatched: Episodes | None = None
    """Under instructions that do not fit the scene."""
    recolored: Episodes | None = None
    """Under instructions with another colour; a different set of episodes."""
    frozen: Episodes | None = None
    """On stretches of a still image, each an episode; a different set of episodes."""
    curves: Float32[np.ndarray, "c f"] | None = None
    """Values of the frames of `matched` at several strides; NaN for frames left out."""
    changes: Float32[np.ndarray, "2 f"] | None = None
    """Compared changes of progress, from the start of the horizon to every frame, and back."""
    resampled: Float32[np.ndarray, " f"] | None = None
    """Values of the frames of `matched` at another frame rate; NaN for frames left out."""

    def __post_init__(self) -> None:
        for name in ("backward", "mismatched"):
            part = getattr(self, name)
            if part is not None and part.task != self.matched.task:
                raise ValueError(
                    f"{name}: got {len(part.task)} episodes, expected the {len(self.matched.task)} "
                    "of `matched`, in the same order"
                )


class Row(NamedTuple):
    """One line of the table."""

    name: str
    """Name of the metric."""
    prepare: Callable[..., Statistic]
    """Returns the metric, given the parts of `Predictions` named in `of`."""
    of: tuple[str, ...] = ("matched",)
    """Parts of `Predictions`; the first is the one that is resampled."""
    better: Literal["more", "less"] = "more"
    """Which way is better."""
    bound: float | None = None
    """Bound that a good reward model reaches."""


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A metric and its 95 % interval; NaN where it is undefined on the set."""

    value: float
    """The metric."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""
    better: Literal["more", "less"]
    """Which way is better."""
    bound: float | None
    """Bound that a good reward model reaches."""

    @property
    def holds(self) -> bool | None:
        """Whether the bound is reached; None without a bound or a value."""
        if self.bound is None or math.isnan(self.value):
            return None
        return self.value >= self.bound if self.better == "more" else self.value <= self.bound

    def beats(self, other: "Metric") -> bool:
        """Return whether this value is better than another of the same metric."""
        return self.value > other.value if self.better == "more" else self.value < other.value


LESS: Literal["less"] = "less"
ROWS = (
    Row("VOC", progress.voc, bound=0.9),
    Row("VROC", progress.vroc, of=("backward",), bound=0.8),
    Row("VOC-F1", progress.voc_f1, of=("matched", "backward"), bound=0.85),
    Row("Spearman with truth", progress.truth_correlation, bound=0.95),
    Row("MAE of truth", progress.truth_error, better=LESS, bound=0.1),
    Row("NR, negative changes", progress.negative_rate, better=LESS),
    Row("coverage", progress.coverage, of=("abstaining",), bound=0.9),
    Row("direction macro-F1", progress.direction_f1, bound=0.7),
    Row("regress recall", progress.regress_recall, bound=0.9),
    Row("regress precision", progress.regress_precision, bound=0.5),
    Row("false gain/s, frozen", progress.false_gain, of=("frozen",), better=LESS, bound=0.01),
    Row("done AUROC", outcome.done_auroc, bound=0.98),
    Row("done AUPRC", outcome.done_auprc, bound=0.8),
    Row("done FPR at 95 % TPR", outcome.done_false_positives, better=LESS, bound=0.1),
    Row("done recall", outcome.done_recall, bound=0.9),
    Row("done latency, frames", outcome.done_latency, better=LESS, bound=5.0),
    Row("undone recall", outcome.undone_recall, bound=0.8),
    Row("outcome AUROC", outcome.outcome_auroc, bound=0.95),
    Row("outcome AUROC of done", outcome.outcome_auroc_of_done, bound=0.9),
    Row("outcome tau_a", outcome.outcome_tau, bound=0.7),
    Row("near miss predicted done", outcome.near_miss_rate, better=LESS, bound=0.1),
    Row("failure predicted done", outcome.false_done_rate, better=LESS, bound=0.1),
    Row("diagonal margin", grounding.diagonal_margin, of=("matched", "mismatched"), bound=0.6),
    Row("match AUROC", grounding.match_auroc, of=("matched", "mismatched"), bound=0.9),
    Row("mismatch rejected", grounding.mismatch_rejected, of=("mismatched",), bound=0.95),
    Row("other colour rejected", grounding.mismatch_rejected, of=("recolored",)),
    Row(
        "mismatch rejected throughout",
        grounding.mismatch_rejected_throughout,
        of=("mismatched",),
        bound=0.8,
    ),
    Row("path agreement", grounding.path_agreement, of=("matched", "curves"), bound=0.9),
    Row("mirror error", grounding.mirror_error, of=("matched", "changes"), better=LESS, bound=1e-5),
    Row(
        "frame-rate error",
        grounding.rate_error,
        of=("matched", "resampled"),
        better=LESS,
        bound=0.05,
    ),
    Row("confidence ECE", confidence.confidence_ece, better=LESS, bound=0.1),
    Row("done ECE", confidence.done_ece, better=LESS, bound=0.05),
    Row("error at 90 % coverage", confidence.risk_at_coverage, better=LESS, bound=0.08),
    Row("risk-coverage area", confidence.risk_area, better=LESS),
)
"""All rows, in the order of printing."""


def table(
    predictions: Predictions, rng: np.random.Generator, samples: int = SAMPLES
) -> dict[str, Metric]:
    """Return every defined metric by name, in the order of `ROWS`.

    Equal generators give the same bootstrap samples of one set; 200 for 100,000 frames take about
    two seconds.
    """
    metrics: dict[str, Metric] = {}
    drawn: dict[str, list[Draw]] = {}
    for row in ROWS:
        parts = [getattr(predictions, name) for name in row.of]
        if any(part is None for part in parts):
            continue
        # All parts but two are the same episodes and share the samples.
        name = row.of[0] if row.of[0] in ("frozen", "recolored") else "matched"
        if name not in drawn:
            drawn[name] = list(draws(parts[0], rng.spawn(1)[0], samples))
        statistic = row.prepare(*parts)
        low, high = interval_over(statistic, drawn[name])
        metrics[row.name] = Metric(
            value=statistic(whole(parts[0])), low=low, high=high, better=row.better, bound=row.bound
        )
    return metrics


def compare(tables: Mapping[str, Mapping[str, Metric]], title: str | None = None) -> Table:
    """Return tables side by side for printing: a row per metric, a column per reward model.

    The first is the reward model, the others are the controls. A metric of the first that misses
    its bound is marked "x"; a control that beats the first is marked "!".

    Raises:
        ValueError: there is no table.
    """
    if not tables:
        raise ValueError("no reward model to compare: got 0, expected one and its controls")
    (name, first), *others = tables.items()
    printed = Table("metric", "bound", f"{name} (95 % interval)", title=title)
    for control, _ in others:
        printed.add_column(control)
    for key, metric in first.items():
        cells = [_control(metric, metrics.get(key)) for _, metrics in others]
        printed.add_row(key, _bound(metric), _reward_model(metric), *cells)
    return printed


def _bound(metric: Metric) -> str:
    return (
        ""
        if metric.bound is None
        else f"{'≥' if metric.better == 'more' else '≤'} {metric.bound:g}"
    )


def _reward_model(metric: Metric) -> str:
    if math.isnan(metric.value):
        return "-"
    text = f"{metric.value:.3f} ({metric.low:.3f} to {metric.high:.3f})"
    return f"{text} x" if metric.holds is False else text


def _control(reward_model: Metric, control: Metric | None) -> str:
    if control is None or math.isnan(control.value):
        return "-"
    return f"{control.value:.3f}{' !' if control.beats(reward_model) else ''}"
