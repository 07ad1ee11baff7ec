"""The report on a labelled data set as one offline HTML page without scripts."""

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reward_models.core import overrides
from reward_models.core.calibration import WITHIN
from reward_models.label_report import doubt, figures, gates, overlay
from reward_models.label_report.figures import TaskFigures
from reward_models.label_report.gates import Gates, Result
from reward_models.label_report.read import Episode, Labelled, read
from vla.utils import charts, files, pages

MAX_VIDEOS_BYTES = 12_000_000
"""Size limit of the videos of a page; further ones are listed by number."""
VIDEOS, CURVES, FLAGGED, TASKS = 20, 6, 200, 100
"""Largest numbers shown."""


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Metrics of the page."""

    whole: TaskFigures
    """Of all episodes."""
    tasks: tuple[TaskFigures, ...]
    """Of each instruction."""
    behaviours: tuple[TaskFigures, ...]
    """Of each known behaviour."""
    unlabelled: int
    """Episodes without labels."""
    gates: tuple[Result, ...]
    """Result of each quality gate."""

    @property
    def missed(self) -> list[str]:
        """A sentence for each gate that was missed."""
        return [result.sentence for result in self.gates if result.missed]


def write(
    labelled: Path, out: Path, *, bounds: Gates | None = None, videos: int = VIDEOS
) -> Summary:
    """Write the report on a labelled data set and return its metrics.

    Without `bounds` the gates are the defaults; `videos` of the worst episodes are shown.

    Raises:
        ValueError: the data set is damaged, or not labelled.
    """
    data = read(labelled)
    summary = summarise(data, bounds or Gates())
    most_doubtful = doubt.most_doubtful(data.episodes)
    worst = doubt.worst(data.episodes)[:videos]
    text = pages.render(
        "reward_models/label_report/page.html.j2",
        data=data,
        summary=summary,
        origin=_origin(data),
        findings=findings(summary),
        most=TASKS,
        most_flagged=FLAGGED,
        flagged=[(e, "; ".join(doubt.reasons(e))) for e in most_doubtful if doubt.reasons(e)],
        calibration=_calibration(data.episodes),
        histograms=list(_histograms(data.episodes)),
        worst=len(worst),
        worst_curves=_names(worst),
        gallery=_gallery(data, worst),
        **_curves(most_doubtful[::-1]),
        provenance=json.dumps(data.provenance, indent=1) if data.provenance else "",
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(out, text)
    return summary


def summarise(data: Labelled, bounds: Gates) -> Summary:
    """Return the metrics of a labelled data set."""
    return Summary(
        whole=figures.task_figures("all", data.episodes),
        tasks=tuple(figures.grouped(data.episodes, lambda e: e.task)),
        behaviours=tuple(figures.grouped(data.episodes, lambda e: e.behaviour)),
        unlabelled=data.info.num_episodes - len(data.episodes),
        gates=tuple(gates.results(data.episodes, bounds)),
    )


def findings(summary: Summary) -> Iterator[str]:
    """Yield sentences that explain the metrics."""
    whole = summary.whole
    sentence = (
        f"{_count(whole.episodes, 'episode')} of {_count(len(summary.tasks), 'instruction')}, "
        f"{whole.frames:,} frames: progress is given for {1 - whole.abstained:.1%} of them"
        f"{', the reward model abstains on the rest' if whole.abstained else ''}."
    )
    if summary.unlabelled:
        sentence += f" {_count(summary.unlabelled, 'episode')} more carry no labels."
    yield sentence
    missed = len(summary.missed)
    checked = sum(result.checked for result in summary.gates)
    if missed:
        verb = "is" if missed == 1 else "are"
        yield f"{missed} of {_count(checked, 'quality gate')} checked {verb} missed."
    else:
        yield f"All {checked} quality gates that could be checked passed."
    if whole.truth is None:
        yield (
            "The data set holds no truth, so the labels cannot be verified here; review the "
            "flagged episodes with `vla label --review`."
        )
    if whole.flagged:
        yield f"{_count(whole.flagged, 'episode')} should be reviewed by a person."


def _origin(data: Labelled) -> str:
    """Return reward model, source and correctors of the labels."""
    origin = [
        f"{key} {data.provenance[key]}"
        for key in ("reward_model", "source")
        if isinstance(data.provenance.get(key), (str, int, float))
    ]
    corrections = overrides.latest(overrides.read(data.info.path))
    if corrections:
        authors = ", ".join(sorted({o.author for o in corrections}))
        origin.append(f"{_count(len(corrections), 'correction')} by {authors}")
    return " · ".join(origin)


def _histograms(episodes: Sequence[Episode]) -> Iterator[tuple[str, str]]:
    """Yield histograms of the labels, and their captions."""
    for name, low in (("progress", 0), ("delta", -1), ("confidence", 0)):
        values = np.concatenate([getattr(e, name)[e.scored] for e in episodes])
        if not np.isnan(values).all():
            drawing = charts.histogram(values, np.linspace(low, 1, 21), x_label=name)
            yield charts.svg(drawing), f"{name.capitalize()} of the scored frames."


def _calibration(episodes: Sequence[Episode]) -> dict[str, Any] | None:
    """Return the calibration plot, its curves' names and its caption; None without the truth."""
    pairs = {
        "done": figures.done_pairs(episodes),
        "confidence": figures.confidence_pairs(episodes),
    }
    bins = [figures.reliability(*pair) for pair in pairs.values()]
    if not any(bins):
        return None
    drawing = charts.curves(
        [[(b.predicted, b.observed) for b in curve] for curve in bins],
        x_label="predicted probability",
        y_label="observed share",
        y_range=(0, 1),
        diagonal=True,
    )
    errors = {name: figures.calibration_error(*pair) for name, pair in pairs.items()}
    measured = ", ".join(f"{name} {error:.3f}" for name, error in errors.items() if error >= 0)
    caption = (
        f"Calibration: the dashed line is perfect. Confidence is right where progress lies within "
        f"{WITHIN:g} of the truth. Expected calibration error: {measured}."
    )
    return {"drawing": charts.svg(drawing), "names": tuple(pairs), "caption": caption}


def _names(episodes: Sequence[Episode]) -> tuple[str, ...]:
    """Return the names of the curves of episodes, with the truth if it is known."""
    has_truth = any(e.truth is not None for e in episodes)
    return overlay.CURVES if has_truth else overlay.CURVES[:-1]


def _gallery(data: Labelled, worst: Sequence[Episode]) -> dict[str, Any]:
    """Return overlay videos with captions up to the size limit, and the episodes without one."""
    room, shown, left_out = MAX_VIDEOS_BYTES, [], []
    for episode in worst:
        with tempfile.TemporaryDirectory() as place:
            file = Path(place) / "overlay.mp4"
            overlay.write(data, episode, file)
            video = file.read_bytes()
        if len(video) > room:
            left_out.append(str(episode.index))
            continue
        room -= len(video)
        shown.append((pages.data_uri(video, "video/mp4"), episode.index, _caption(episode)))
    return {"shown": shown, "left_out": left_out}


def _caption(episode: Episode) -> str:
    parts = [f"Episode {episode.index}, “{episode.task}”"]
    if episode.behaviour is not None:
        parts.append(episode.behaviour)
    if not math.isnan(doubt.error(episode)):
        parts.append(f"mean error {doubt.error(episode):.2f}")
    return "; ".join([", ".join(parts), *doubt.reasons(episode)]) + "."


def _curves(ordered: Sequence[Episode]) -> dict[str, Any]:
    """Return the curves of some episodes, evenly spaced in the order, with captions and names."""
    places = np.linspace(0, len(ordered) - 1, min(CURVES, len(ordered))).round().astype(int)
    chosen = [ordered[k] for k in places]
    drawings = []
    for e in chosen:
        series = [e.progress, e.done_prob, e.confidence, *([] if e.truth is None else [e.truth])]
        drawing = charts.curves(
            [np.stack([e.time_s, values], 1) for values in series],
            x_label="seconds",
            y_label="label",
            y_range=(0, 1),
            gaps=True,
        )
        drawings.append((charts.svg(drawing), _caption(e)))
    return {"curves": drawings, "curve_names": _names(chosen)}


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
