"""Charts drawn with matplotlib and written as inline SVG: lines, histograms and intervals.

Charts are `matplotlib.figure.Figure`, made without pyplot, and matplotlib is imported where a chart
is made. The same figures give the same bytes.
"""

import contextlib
import html
import io
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

Figure: TypeAlias = Any
Axes: TypeAlias = Any
"""matplotlib's, imported where a chart is made because that takes a second."""
COLOURS = ("#3b6fd4", "#d97706", "#2e9e5b", "#b0489e", "#0d8f9a", "#7a6a53")
"""Readable on white and on black; a seventh series starts again, dashed."""
TEXT, LINE = "#667080", "#d5d9e0"
"""Colours of text and grid where the page has none of its own."""
SIZE_PX = (540, 250)
FEW = 12
"""Up to so many points each is marked."""
STYLE = {
    "axes.axisbelow": True, "axes.edgecolor": LINE, "axes.facecolor": "none", "axes.grid": True,
    "axes.grid.axis": "y", "axes.labelcolor": TEXT, "axes.spines.left": False,
    "axes.spines.right": False, "axes.spines.top": False, "figure.dpi": 72,
    "figure.facecolor": "none", "font.sans-serif": ["DejaVu Sans"], "font.size": 11.0,
    "grid.color": LINE, "lines.linewidth": 1.75, "svg.fonttype": "none", "svg.hashsalt": "mneme",
    "text.color": TEXT, "xtick.color": TEXT, "xtick.major.pad": 7.0, "xtick.major.size": 0,
    "xtick.minor.size": 0, "ytick.color": TEXT, "ytick.major.size": 0, "ytick.minor.size": 0,
}  # fmt: skip

Number = int | float
Numbers = Sequence[Number] | np.ndarray
Points = Sequence[tuple[Number, Number]] | np.ndarray
"""Rows (x, y)."""


class Interval(NamedTuple):
    """A share with its interval, all in [0, 1]."""

    name: str
    share: Number
    low: Number
    high: Number


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Draw in our style, whatever matplotlib's configuration file says."""
    import matplotlib.style

    with matplotlib.style.context(STYLE, after_reset=True):
        yield


def figure(label: str, size_px: tuple[Number, Number] = SIZE_PX) -> Figure:
    """Return an empty figure; `label` describes it to those who cannot see it."""
    import matplotlib.figure

    size = (size_px[0] / 72, size_px[1] / 72)
    drawing = matplotlib.figure.Figure(figsize=size, layout="constrained")
    drawing.set_label(label)
    return drawing


def svg(drawing: Figure) -> str:
    """Return a figure as SVG, for a page or as a file; its text and grid take the page's colours.

    What would clash on a page of several charts is changed: the style sheet, which would hold for
    the whole page, and ids of groups are left out; other ids begin with a digest of the chart.
    """
    out = io.StringIO()
    with style():
        no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        drawing.savefig(out, format="svg", metadata=no_metadata)
    text = out.getvalue().split("<svg", 1)[1].split(">", 1)[1]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>\s*", "", text, flags=re.DOTALL)
    text = re.sub(r">\s+<", "><", re.sub(r'<g id="[^"]*"', "<g", text))
    digest = f"c{zlib.crc32(text.encode()):08x}"
    text = re.sub(r'( id="|url\(#| xlink:href="#)', rf"\1{digest}", text)
    text = text.replace(" xlink:href=", " href=")
    text = re.sub(r'<path [^>]*?d="[^"]*"', lambda path: _shorter(path[0]), text)
    for name, value in (("soft", TEXT), ("line", LINE)):
        text = text.replace(f": {value}", f": var(--{name}, {value})")
    width, height = 72 * drawing.get_size_inches()
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'class="chart" role="img" aria-label="{html.escape(drawing.get_label())}">{text}'
    )


def curves(
    series: Sequence[Points],
    *,
    x_label: str,
    y_label: str,
    log: bool = False,
    y_range: tuple[Number, Number] | None = None,
    gaps: bool = False,
    diagonal: bool = False,
) -> Figure:
    """Return a line chart; points that are not finite (or not above 0 on a log axis) are left out.

    Args:
        series: Points (x, y) with x >= 0; each takes the colour of its place, even if empty.
        x_label: Below the horizontal axis.
        y_label: Beside the vertical axis.
        log: Whether the vertical axis is logarithmic.
        y_range: Ends of a linear vertical axis; those of the data if None.
        gaps: Whether a line breaks where a point is left out; if not, it goes on.
        diagonal: Whether both axes end at 1 and y = x is drawn, dashed.

    Raises:
        ValueError: no point is left.
    """
    with style():
        drawing = figure(f"{y_label} against {x_label}")
        axes = drawing.add_subplot(xlabel=x_label, ylabel=y_label)
        if diagonal:
            axes.plot([0, 1], [0, 1], color=TEXT, linewidth=1, linestyle="--", gid="chance")
        for place, points in enumerate(series):
            x, y = np.asarray(points, float).reshape(-1, 2).T
            usable = np.isfinite(y) & ((y > 0) | (not log))
            if not gaps:
                x, y, usable = x[usable], y[usable], usable[usable]
            if usable.any():
                axes.plot(
                    x, np.where(usable, y, np.nan), color=colour(place), clip_on=False,
                    linestyle="--" if place >= len(COLOURS) else "-",
                    marker="o", markersize=5, markevery=_marked(usable),
                )  # fmt: skip
        if len(axes.lines) == diagonal:
            raise ValueError(f"nothing to draw: got no usable point of {y_label!r}")
        axes.set_xlim(0, 1 if diagonal else max(line.get_xdata().max() for line in axes.lines) or 1)
        if y_range:
            axes.set_ylim(*y_range)
        _ticks(axes, log)
    return drawing


def histogram(values: Numbers, edges: Numbers, *, x_label: str) -> Figure:
    """Return bars of the share of the finite values between each edge and the next.

    Raises:
        ValueError: no value lies between the edges.
    """
    counts, _ = np.histogram(values, edges)
    if not counts.any():
        raise ValueError(f"nothing to draw: got no {x_label} from {edges[0]} to {edges[-1]}")
    with style():
        drawing = figure(f"histogram of {x_label}")
        axes = drawing.add_subplot(xlabel=x_label, ylabel="share", xlim=(edges[0], edges[-1]))
        widths = np.diff(edges)
        shares = counts / counts.sum()
        axes.bar(edges[:-1], shares, 0.96 * widths, align="edge", color=colour(0))
        _ticks(axes)
    return drawing


def intervals(rows: Sequence[Interval | None], chance: Number | None) -> Figure:
    """Return one dot with its interval per row on an axis from 0 to 100 %, chance as a dashed line.

    Args:
        rows: What to show, from above; the row of a None stays empty.
        chance: Share that guessing reaches, in [0, 1], if there is such a thing.
    """
    from matplotlib import ticker

    with style():
        drawing = figure("success with 95 % intervals", (SIZE_PX[0], 60 + 30 * len(rows)))
        axes = drawing.add_subplot(xlim=(0, 1), ylim=(len(rows) - 0.5, -0.5))
        axes.grid(axis="x")
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_locator(ticker.MultipleLocator(0.25))
        axes.xaxis.set_major_formatter(ticker.PercentFormatter(1.0))
        axes.set_yticks(range(len(rows)), [row.name if row else "" for row in rows])
        if chance is not None:
            axes.axvline(chance, color=TEXT, linewidth=1, linestyle="--", gid="chance")
            axes.annotate("chance", (chance, 1), (0, 3), ("data", "axes fraction"),
                          "offset points", ha="center")  # fmt: skip
        for place, row in enumerate(rows):
            if row is not None:
                axes.hlines(place, row.low, row.high, colour(place), linewidth=3, alpha=0.45)
                axes.plot(row.share, place, "o", color=colour(place), markersize=9, clip_on=False)
    return drawing


def colour(place: int) -> str:
    """Return the colour of the series at a place."""
    return COLOURS[place % len(COLOURS)]


def _marked(usable: np.ndarray) -> list[bool]:
    """Return which points, bool [n], get a mark: all of a few, else those without neighbours."""
    beside = np.pad(usable, 1)
    alone = usable & ~beside[:-2] & ~beside[2:]
    return (usable if usable.sum() <= FEW else alone).tolist()


def _ticks(axes: Axes, log: bool = False) -> None:
    from matplotlib import ticker

    if log:
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        steps = (1, 2, 5) if high / low < 1e3 else (1,)
        locator = ticker.AutoLocator() if high / low < 10 else ticker.LogLocator(subs=steps)
        axes.yaxis.set_major_locator(locator)
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,g}"))


def _shorter(path: str) -> str:
    """Return a path in hundredths of a pixel, in one line."""
    return re.sub(r"(\.\d\d)\d+", r"\1", path.replace("\n", ""))
