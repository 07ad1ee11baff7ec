"""The report on a labelled data set as one HTML page that needs no network and runs no script."""

import base64
import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reward_models import overrides
from reward_models.calibrate import WITHIN
from reward_models.label_report import doubt, figures, gates, overlay
from reward_models.label_report.figures import TaskFigures
from reward_models.label_report.gates import Gates, Result
from reward_models.label_report.read import Episode, Labelled, read
from vla import files, pages, svg
from vla.pages import NONE, escape, figure, table

MAX_VIDEOS_BYTES = 12_000_000
"""Room for the videos of a page; those beyond it are named instead of shown."""
VIDEOS, CURVES, FLAGGED, TASKS = 20, 6, 200, 100
"""How many are shown at most."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The figures of the page."""

    whole: TaskFigures
    """Of all episodes together."""
    tasks: tuple[TaskFigures, ...]
    """Of each instruction."""
    behaviours: tuple[TaskFigures, ...]
    """Of each behaviour, where it is known."""
    unlabelled: int
    """Episodes without labels."""
    gates: tuple[Result, ...]
    """What became of each quality gate."""

    @property
    def missed(self) -> list[str]:
        """A sentence for each gate that was missed."""
        return [result.sentence for result in self.gates if result.missed]


def write(
    labelled: Path, out: Path, *, bounds: Gates | None = None, videos: int = VIDEOS
) -> Summary:
    """Write the report on a labelled data set.

    Args:
        labelled: Folder of the data set.
        out: File to write.
        bounds: Quality gates; the usual ones if None.
        videos: How many of the worst episodes are shown as overlay videos.

    Returns:
        The figures that the page shows.

    Raises:
        ValueError: the data set is damaged, or not labelled.
    """
    data = read(labelled)
    summary = summarise(data, bounds or Gates())
    body = [
        *_head(data, summary),
        *_gates(summary),
        *_tasks(summary),
        *_truth(summary),
        *_charts(data.episodes),
        *_flagged(data),
        *_gallery(data, videos),
        *_curves(data.episodes),
        *_origin(data),
    ]
    text = pages.document(f"Labels of {data.name}", body)
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(out, text)
    return summary


def summarise(data: Labelled, bounds: Gates) -> Summary:
    """Return the figures of a labelled data set."""
    return Summary(
        whole=figures.task_figures("all", data.episodes),
        tasks=tuple(figures.grouped(data.episodes, lambda e: e.task)),
        behaviours=tuple(figures.grouped(data.episodes, lambda e: e.behaviour)),
        unlabelled=data.info.num_episodes - len(data.episodes),
        gates=tuple(gates.results(data.episodes, bounds)),
    )


# --- what the figures say ------------------------------------------------------------------------


def findings(summary: Summary) -> Iterator[str]:
    """Yield plain sentences that say what the figures mean."""
    whole = summary.whole
    sentence = (
        f"{_count(whole.episodes, 'episode')} of {_count(len(summary.tasks), 'instruction')}, "
        f"{whole.frames:,} frames: progress is given for {1 - whole.abstained:.1%} of them"
        f"{', the critic abstains on the rest' if whole.abstained else ''}."
    )
    if summary.unlabelled:
        sentence += f" {_count(summary.unlabelled, 'episode')} more carry no labels."
    yield sentence
    missed = len(summary.missed)
    checked = sum(result.checked for result in summary.gates)
    if missed:
        yield f"{missed} of {_count(checked, 'quality gate')} checked {_are(missed)} missed."
    else:
        yield f"All {checked} quality gates that could be checked are kept."
    if whole.truth is None:
        yield (
            "The data set holds no truth, so nothing here says how right the labels are; go over "
            "the flagged episodes with `vla label --review`."
        )
    if whole.flagged:
        yield f"{_count(whole.flagged, 'episode')} should be seen by a person."


def _head(data: Labelled, summary: Summary) -> Iterator[str]:
    yield f"<h1>Labels of {escape(data.name)}</h1>"
    origin = [f"{key} {data.provenance[key]}" for key in ("critic", "source") if _plain(data, key)]
    corrections = overrides.latest(overrides.read(data.info.path))
    if corrections:
        authors = ", ".join(sorted({o.author for o in corrections}))
        origin.append(f"{_count(len(corrections), 'correction')} by {authors}")
    yield f'<p class="soft">{escape(" · ".join(origin))}</p>' if origin else ""
    for sentence in findings(summary):
        yield f"<p>{escape(sentence)}</p>"


def _plain(data: Labelled, key: str) -> bool:
    return isinstance(data.provenance.get(key), (str, int, float))


def _gates(summary: Summary) -> Iterator[str]:
    rows = []
    for result in summary.gates:
        verdict = "missed" if result.missed else "kept" if result.checked else "not checked"
        colour = 1 if result.missed else 2
        spot = pages.dot(colour) if result.checked else ""
        side = "at most" if result.at_most else "at least"
        cells = [_number(result.value, 3), f"{side} {result.bound:g}"]
        rows.append([escape(result.name), *map(escape, cells), f"{spot}{verdict}"])
    yield "<h2>Quality gates</h2>"
    yield table(["gate", "value", "bound", ""], rows, numbers=range(1, 3), strong=1)
    for result in summary.gates:
        if not result.checked:
            yield f'<p class="soft">{escape(result.sentence)}.</p>'


# --- tables --------------------------------------------------------------------------------------


def _tasks(summary: Summary) -> Iterator[str]:
    yield "<h2>Labels</h2>"
    yield _label_table("instruction", summary.tasks, summary.whole)
    yield (
        '<p class="soft">Means over episodes. VOC: rank correlation of progress with time, which a '
        "clock drives to 1. Negative: share of steps back. Fall: largest loss of progress. "
        "Stagnant: share of frames that change nothing.</p>"
    )
    if summary.behaviours:
        yield "<h3>By behaviour</h3>"
        yield _label_table("behaviour", summary.behaviours, None)


def _label_table(what: str, rows: Sequence[TaskFigures], whole: TaskFigures | None) -> str:
    head = [what, "episodes", "frames", "final progress", "success", "VOC", "negative", "fall"]
    head += ["stagnant", "abstained", "flagged"]
    shown = [*rows[:TASKS], *([whole] if whole and len(rows) > 1 else [])]
    cells = [
        [
            _long(row.name), f"{row.episodes}", f"{row.frames:,}", _number(row.final_progress),
            _number(row.success_prob), _number(row.voc), _share(row.negative_rate),
            _number(row.max_regression), _share(row.stagnation_ratio), _share(row.abstained),
            str(row.flagged),
        ]
        for row in shown
    ]  # fmt: skip
    return table(head, cells, numbers=range(1, 11)) + _left_out(len(rows), TASKS)


def _truth(summary: Summary) -> Iterator[str]:
    """Yield how labels compare with the truth."""
    if summary.whole.truth is None:
        return
    rows = [*summary.tasks[:TASKS], *([summary.whole] if len(summary.tasks) > 1 else [])]
    cells = []
    for row in rows:
        if row.truth is not None:
            told = (row.truth.spearman, row.truth.error, row.truth.done_auroc)
            won = f"{row.truth.successes} of {row.episodes}"
            numbers = [_number(value) for value in (*told, row.truth.outcome_auroc)]
            cells.append([_long(row.name), *numbers, won])
    head = ["instruction", "Spearman", "mean error", "done AUROC", "outcome AUROC", "succeed"]
    yield "<h2>Against the simulator's truth</h2>"
    yield table(head, cells, numbers=range(1, 6), strong=1) + _left_out(len(summary.tasks), TASKS)
    yield (
        '<p class="soft">Over the measured frames: rank correlation and mean absolute error of '
        "progress, and how well done tells solved frames from others. Outcome: how well success "
        "tells episodes that end in success from others. A dash: there is one class only.</p>"
    )


def _flagged(data: Labelled) -> Iterator[str]:
    found = [e for e in doubt.most_doubtful(data.episodes) if doubt.reasons(e)]
    yield "<h2>Flagged episodes</h2>"
    if not found:
        yield "<p>None.</p>"
        return
    rows = [
        [str(e.index), _long(e.task), _number(e.final_progress), _number(e.success_prob),
         _number(e.mean_confidence), _long("; ".join(doubt.reasons(e)))]
        for e in found[:FLAGGED]
    ]  # fmt: skip
    head = ["episode", "instruction", "final progress", "success", "confidence", "why"]
    yield table(head, rows, numbers=range(2, 5)) + _left_out(len(found), FLAGGED)
    yield (
        '<p class="soft">Most doubtful first. To correct them: '
        f"<code>vla label --review {escape(str(data.info.path))}</code></p>"
    )


# --- drawings ------------------------------------------------------------------------------------


def _charts(episodes: Sequence[Episode]) -> Iterator[str]:
    """Yield the calibration plot, where there is a truth, and histograms."""
    yield "<h2>Calibration and distribution</h2>"
    drawings = [*_calibration(episodes)]
    unit, signed = np.linspace(0, 1, 21).tolist(), np.linspace(-1, 1, 21).tolist()
    for name, edges in (("progress", unit), ("delta", signed), ("confidence", unit)):
        values = np.concatenate([getattr(e, name)[e.scored] for e in episodes])
        values = values[~np.isnan(values)].tolist()
        if values:
            drawing = svg.histogram(values, edges, x_label=name)
            drawings.append(figure(drawing, f"{name.capitalize()} of the measured frames."))
    yield f'<div class="pair">{"".join(drawings)}</div>'


def _calibration(episodes: Sequence[Episode]) -> Iterator[str]:
    pairs = {
        "done": figures.done_pairs(episodes),
        "confidence": figures.confidence_pairs(episodes),
    }
    bins = [figures.reliability(*pair) for pair in pairs.values()]
    if not any(bins):
        return
    drawing = svg.curves(
        [[(b.predicted, b.observed) for b in one] for one in bins],
        x_label="predicted probability",
        y_label="observed share",
        y_range=(0, 1),
        diagonal=True,
    )
    errors = [figures.calibration_error(*pair) for pair in pairs.values()]
    told = [f"{name} {value:.3f}" for name, value in zip(pairs, errors, strict=True) if value >= 0]
    caption = (
        f"Calibration: the dashed line is perfect. Confidence is right where progress lies within "
        f"{WITHIN:g} of the truth. Expected calibration error: {', '.join(told)}."
    )
    yield f"<div>{figure(drawing, caption)}{svg.legend(tuple(pairs))}</div>"


def _gallery(data: Labelled, videos: int) -> Iterator[str]:
    """Yield overlay videos of the worst episodes, as far as there is room."""
    chosen = doubt.worst(data.episodes)[:videos]
    if not chosen:
        return
    true = any(e.truth is not None for e in chosen)
    order = "largest error first" if true else "most doubtful first"
    yield f"<h2>The {len(chosen)} worst episodes</h2>"
    yield f'<p class="soft">By their labels, {order}, at the pace of the recording.</p>'
    yield svg.legend(overlay.CURVES if true else overlay.CURVES[:-1])
    room, shown, named = MAX_VIDEOS_BYTES, [], []
    for episode in chosen:
        film = _film(data, episode)
        if len(film) > room:
            named.append(str(episode.index))
            continue
        room -= len(film)
        source = f"data:video/mp4;base64,{base64.b64encode(film).decode()}"
        shown.append(
            figure(f'<video controls loop muted playsinline src="{source}"></video>', _why(episode))
        )
    yield f'<div class="gallery">{"".join(shown)}</div>'
    if named:
        text = f"No room on this page for the videos of episodes {', '.join(named)}."
        yield f'<p class="soft">{text}</p>'


def _film(data: Labelled, episode: Episode) -> bytes:
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / "overlay.mp4"
        overlay.write(data, episode, file)
        return file.read_bytes()


def _why(episode: Episode) -> str:
    told = [f"Episode {episode.index}, “{episode.task}”"]
    if episode.behaviour is not None:
        told.append(episode.behaviour)
    if not math.isnan(doubt.error(episode)):
        told.append(f"mean error {doubt.error(episode):.2f}")
    return "; ".join([", ".join(told), *doubt.reasons(episode)]) + "."


def _curves(episodes: Sequence[Episode]) -> Iterator[str]:
    """Yield the curves of episodes from the least doubtful to the most."""
    ordered = doubt.most_doubtful(episodes)[::-1]
    places = np.linspace(0, len(ordered) - 1, min(CURVES, len(ordered))).round().astype(int)
    true = any(ordered[k].truth is not None for k in places)
    yield "<h2>Curves, from the least doubtful episode to the most</h2>"
    yield svg.legend(overlay.CURVES if true else overlay.CURVES[:-1])
    drawings = []
    for k in places.tolist():
        e = ordered[k]
        none = np.full(e.frames, np.nan)
        series = [e.progress, e.done_prob, e.confidence, none if e.truth is None else e.truth]
        drawing = svg.curves(
            [list(zip(e.time_s.tolist(), values.tolist(), strict=True)) for values in series],
            x_label="seconds",
            y_label="label",
            y_range=(0, 1),
            gaps=True,
        )
        drawings.append(figure(drawing, _why(e)))
    yield f'<div class="pair">{"".join(drawings)}</div>'


def _origin(data: Labelled) -> Iterator[str]:
    if data.provenance:
        text = escape(json.dumps(data.provenance, indent=1))
        yield f"<details><summary>Origin</summary><pre>{text}</pre></details>"


# --- words ---------------------------------------------------------------------------------------


def _number(value: float, digits: int = 2) -> str:
    return NONE if math.isnan(value) else f"{value:.{digits}f}"


def _share(value: float) -> str:
    return NONE if math.isnan(value) else f"{value:.1%}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _long(text: str) -> str:
    """Return text as HTML that may take several lines of a table."""
    return f'<span class="long">{escape(text)}</span>'


def _left_out(there: int, shown: int) -> str:
    return f'<p class="soft">{there - shown} more are not shown.</p>' if there > shown else ""
