"""Every figure of a critic on one evaluation set, with intervals and bars, beside its controls."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float32
from rich.table import Table

from reward_models.metrics import confidence, grounding, outcome, progress
from reward_models.metrics.episodes import Episodes
from reward_models.metrics.resample import ROUNDS, Draw, Statistic, draws, interval_over, whole


@dataclass(frozen=True, kw_only=True)
class Judged:
    """All that one critic said of one evaluation set; lines that lack their part are left out.

    `backward` and `foreign` hold the same episodes as `own`, in the same order.
    """

    own: Episodes
    """Judged as they are, under their own instructions; nothing abstained."""
    spoken: Episodes | None = None
    """The same with the abstention that labels and rewards have."""
    backward: Episodes | None = None
    """Judged with frames (and truth) in reversed order."""
    foreign: Episodes | None = None
    """Judged under instructions that do not fit the scene."""
    recoloured: Episodes | None = None
    """Judged under their own instruction with another colour in it; a set of its own."""
    frozen: Episodes | None = None
    """Stretches of video that stands still, each an episode."""
    curves: Float32[np.ndarray, "c f"] | None = None
    """Values of the frames of `own` at several strides; NaN where a stride leaves a frame out."""
    changes: Float32[np.ndarray, "2 f"] | None = None
    """Compared changes of progress, from the horizon's beginning to every frame and back again."""
    resampled: Float32[np.ndarray, " f"] | None = None
    """Values of the frames of `own` at another frame rate; NaN where that has none."""

    def __post_init__(self) -> None:
        """Refuse parts that are not about the same episodes."""
        for name in ("backward", "foreign"):
            part = getattr(self, name)
            if part is not None and part.task != self.own.task:
                raise ValueError(
                    f"{name}: got {len(part.task)} episodes, expected the {len(self.own.task)} of "
                    "`own`, in the same order"
                )


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table."""

    name: str
    """What it says."""
    prepare: Callable[..., Statistic]
    """The figure, given the parts of `Judged` named in `of`."""
    of: tuple[str, ...] = ("own",)
    """Parts of `Judged`; the first is what is resampled."""
    better: Literal["more", "less"] = "more"
    """Which way is better."""
    bar: float | None = None
    """What a good critic reaches."""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number and its 95 % interval; NaN where the set has nothing to say about it."""

    value: float
    """The figure."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""
    better: Literal["more", "less"]
    """Which way is better."""
    bar: float | None
    """What a good critic reaches."""

    @property
    def holds(self) -> bool | None:
        """Whether the bar is reached; None without a bar or a figure."""
        if self.bar is None or math.isnan(self.value):
            return None
        return self.value >= self.bar if self.better == "more" else self.value <= self.bar

    def beats(self, other: "Figure") -> bool:
        """Return whether this is the better of two figures of one name."""
        return self.value > other.value if self.better == "more" else self.value < other.value


LESS: Literal["less"] = "less"
ROWS = (
    Row(name="VOC", prepare=progress.voc, bar=0.9),
    Row(name="VROC", prepare=progress.vroc, of=("backward",), bar=0.8),
    Row(name="VOC-F1", prepare=progress.voc_f1, of=("own", "backward"), bar=0.85),
    Row(name="Spearman with truth", prepare=progress.truth_correlation, bar=0.95),
    Row(name="MAE of truth", prepare=progress.truth_error, better=LESS, bar=0.1),
    Row(name="NR, negative changes", prepare=progress.negative_rate, better=LESS),
    Row(name="coverage", prepare=progress.coverage, of=("spoken",), bar=0.9),
    Row(name="direction macro-F1", prepare=progress.direction_f1, bar=0.7),
    Row(name="regress recall", prepare=progress.regress_recall, bar=0.9),
    Row(name="regress precision", prepare=progress.regress_precision, bar=0.5),
    Row(
        name="false gain/s, frozen", prepare=progress.false_gain, of=("frozen",), better=LESS,
        bar=0.01,
    ),
    Row(name="done AUROC", prepare=outcome.done_auroc, bar=0.98),
    Row(name="done AUPRC", prepare=outcome.done_auprc, bar=0.8),
    Row(name="done FPR at 95 % TPR", prepare=outcome.done_false_positives, better=LESS, bar=0.1),
    Row(name="done found", prepare=outcome.done_found, bar=0.9),
    Row(name="done latency, frames", prepare=outcome.done_latency, better=LESS, bar=5.0),
    Row(name="undone found", prepare=outcome.undone_found, bar=0.8),
    Row(name="outcome AUROC", prepare=outcome.outcome_auroc, bar=0.95),
    Row(name="outcome AUROC of done", prepare=outcome.outcome_auroc_of_done, bar=0.9),
    Row(name="outcome tau_a", prepare=outcome.outcome_tau, bar=0.7),
    Row(name="near miss judged done", prepare=outcome.near_miss_rate, better=LESS, bar=0.1),
    Row(name="failure judged done", prepare=outcome.false_done_rate, better=LESS, bar=0.1),
    Row(
        name="diagonal margin", prepare=grounding.diagonal_margin, of=("own", "foreign"), bar=0.6
    ),
    Row(name="match AUROC", prepare=grounding.match_auroc, of=("own", "foreign"), bar=0.9),
    Row(name="foreign refused", prepare=grounding.foreign_refused, of=("foreign",), bar=0.95),
    Row(name="other colour refused", prepare=grounding.foreign_refused, of=("recoloured",)),
    Row(
        name="foreign refused throughout", prepare=grounding.foreign_refused_throughout,
        of=("foreign",), bar=0.8,
    ),
    Row(name="path agreement", prepare=grounding.path_agreement, of=("own", "curves"), bar=0.9),
    Row(
        name="mirror error", prepare=grounding.mirror_error, of=("own", "changes"), better=LESS,
        bar=1e-5,
    ),
    Row(
        name="frame-rate error", prepare=grounding.rate_error, of=("own", "resampled"),
        better=LESS, bar=0.05,
    ),
    Row(name="confidence ECE", prepare=confidence.confidence_ece, better=LESS, bar=0.1),
    Row(name="done ECE", prepare=confidence.done_ece, better=LESS, bar=0.05),
    Row(name="error at 90 % coverage", prepare=confidence.risk_at_coverage, better=LESS, bar=0.08),
    Row(name="risk-coverage area", prepare=confidence.risk_area, better=LESS),
)  # fmt: skip
"""All lines, in the order they are printed in; cost is measured elsewhere."""


def table(judged: Judged, rng: np.random.Generator, rounds: int = ROUNDS) -> dict[str, Figure]:
    """Return every figure that can be computed, by name, in the order of `ROWS`.

    Args:
        judged: What the critic said.
        rng: Draws the rounds; equal generators give critics on one set the same rounds.
        rounds: Rounds of the bootstrap; 200 of the whole table over 100,000 frames take about two
            seconds.
    """
    found: dict[str, Figure] = {}
    drawn: dict[str, list[Draw]] = {}
    for row in ROWS:
        parts = [getattr(judged, name) for name in row.of]
        if any(part is None for part in parts):
            continue
        # Some are sets of their own; all else are the same episodes, drawn alike.
        apart = row.of[0] if row.of[0] in ("frozen", "recoloured") else "own"
        if apart not in drawn:
            drawn[apart] = list(draws(parts[0], rng.spawn(1)[0], rounds))
        statistic = row.prepare(*parts)
        low, high = interval_over(statistic, drawn[apart])
        found[row.name] = Figure(
            value=statistic(whole(parts[0])), low=low, high=high, better=row.better, bar=row.bar
        )
    return found


def compare(critics: Mapping[str, Mapping[str, Figure]], title: str | None = None) -> Table:
    """Lay tables side by side for printing: figures down, critics across, the first one judged.

    A figure of the first that misses its bar is marked "x"; a control that beats the first is
    marked "!".

    Args:
        critics: By name, what `table` returned; the critic first, then the controls.
        title: What the set is called.

    Raises:
        ValueError: there is no critic.
    """
    if not critics:
        raise ValueError("no critic to compare: got 0, expected one and its controls")
    (name, own), *others = critics.items()
    shown = Table("figure", "bar", f"{name} (95 % interval)", title=title)
    for control, _ in others:
        shown.add_column(control)
    for key, figure in own.items():
        cells = [_control(figure, figures.get(key)) for _, figures in others]
        shown.add_row(key, _bar(figure), _critic(figure), *cells)
    return shown


def _bar(figure: Figure) -> str:
    return "" if figure.bar is None else f"{'≥' if figure.better == 'more' else '≤'} {figure.bar:g}"


def _critic(figure: Figure) -> str:
    if math.isnan(figure.value):
        return "-"
    text = f"{figure.value:.3f} ({figure.low:.3f} to {figure.high:.3f})"
    return f"{text} x" if figure.holds is False else text


def _control(critic: Figure, control: Figure | None) -> str:
    if control is None or math.isnan(control.value):
        return "-"
    return f"{control.value:.3f}{' !' if control.beats(critic) else ''}"
