"""Small charts as inline SVG: curves, histograms and intervals; no library, no script."""

import bisect
import html
import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

COLOURS = ("#3b6fd4", "#d97706", "#2e9e5b", "#b0489e", "#0d8f9a", "#7a6a53")
"""Readable on white and on black; a seventh series starts again, dashed."""
WIDTH_PX, HEIGHT_PX, ROW_PX = 540, 250, 30
LEFT_PX, RIGHT_PX, TOP_PX, BOTTOM_PX = 56, 16, 10, 40

Number = int | float
Points = Sequence[tuple[Number, Number]]


class Interval(NamedTuple):
    """A share with its interval, all in [0, 1]."""

    name: str
    share: float
    low: float
    high: float


class _Axes(NamedTuple):
    """Maps data to the drawing."""

    x_end: Number
    low: Number
    high: Number
    log: bool
    x_low: Number = 0

    def x(self, value: Number) -> float:
        share = (value - self.x_low) / (self.x_end - self.x_low)
        return LEFT_PX + (WIDTH_PX - LEFT_PX - RIGHT_PX) * share

    def y(self, value: Number) -> float:
        level = math.log10(value) if self.log else value
        share = (level - self.low) / (self.high - self.low)
        return HEIGHT_PX - BOTTOM_PX - (HEIGHT_PX - TOP_PX - BOTTOM_PX) * share


def curves(
    series: Sequence[Points],
    *,
    x_label: str,
    y_label: str,
    log: bool = False,
    y_range: tuple[Number, Number] | None = None,
    gaps: bool = False,
    diagonal: bool = False,
) -> str:
    """Return a line chart; points that are not finite (or not above 0 on a log axis) are left out.

    Args:
        series: Points (x, y) with x >= 0; each takes the colour of its place, even if empty.
        x_label: Below the horizontal axis.
        y_label: Beside the vertical axis.
        log: Whether the vertical axis is logarithmic.
        y_range: Ends of a linear vertical axis; those of the data if None.
        gaps: Whether a line breaks where a point is left out; else it goes on.
        diagonal: Whether both axes end at 1 and y = x is drawn, dashed.

    Raises:
        ValueError: no point is left.
    """
    shown = [
        [(x, y) for x, y in points if math.isfinite(y) and (y > 0 or not log)] for points in series
    ]
    every = [point for points in shown for point in points]
    if not every:
        raise ValueError(f"nothing to draw: got no usable point of {y_label!r}")
    levels = [math.log10(y) if log else y for _, y in every]
    low, high = y_range or (min(levels), max(levels))
    if high - low < 1e-9:
        low, high = low - 0.5, high + 0.5
    axes = _Axes(1.0 if diagonal else max(x for x, _ in every) or 1.0, low, high, log)
    parts = [_head(HEIGHT_PX, f"{y_label} against {x_label}"), *_grid(axes, x_label, y_label)]
    if diagonal:
        parts.append(_stroke(axes.x(0), axes.y(0), axes.x(1), axes.y(1), "chance"))
    for i, points in enumerate(series if gaps else shown):
        for run in _runs(points):
            parts += _line(axes, run, i)
    return "\n".join([*parts, "</svg>"])


def histogram(values: Sequence[Number], edges: Sequence[Number], *, x_label: str) -> str:
    """Return bars of the share of the finite values between each edge and the next.

    Raises:
        ValueError: no value lies between the edges.
    """
    shares = [0.0] * (len(edges) - 1)
    for value in values:
        if edges[0] <= value <= edges[-1]:
            shares[min(bisect.bisect_right(edges, value), len(shares)) - 1] += 1
    total = sum(shares)
    if not total:
        raise ValueError(f"nothing to draw: got no {x_label} from {edges[0]} to {edges[-1]}")
    axes = _Axes(edges[-1], 0.0, max(shares) / total, False, edges[0])
    parts = [_head(HEIGHT_PX, f"histogram of {x_label}"), *_grid(axes, x_label, "share")]
    for left, right, share in zip(edges[:-1], edges[1:], shares, strict=True):
        top, width = axes.y(share / total), axes.x(right) - axes.x(left) - 1
        parts.append(
            f'<rect x="{axes.x(left) + 0.5:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{axes.y(0) - top:.1f}" fill="{colour(0)}"/>'
        )
    return "\n".join([*parts, "</svg>"])


def intervals(rows: Sequence[Interval | None], chance: float | None) -> str:
    """Return one dot with its interval per row on an axis from 0 to 100 %, chance as a dashed line.

    Args:
        rows: What to show, from above; the row of a None stays empty.
        chance: Share that guessing reaches, in [0, 1], if there is such a thing.
    """
    bottom = TOP_PX + 14 + ROW_PX * len(rows)
    axes = _Axes(1.0, 0.0, 1.0, False)
    parts = [_head(bottom + BOTTOM_PX, "success with 95 % intervals")]
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(_stroke(axes.x(share), TOP_PX + 14, axes.x(share), bottom, "grid"))
        parts.append(_text(axes.x(share), bottom + 18, f"{share:.0%}", "middle"))
    if chance is not None:
        parts.append(_stroke(axes.x(chance), TOP_PX + 10, axes.x(chance), bottom, "chance"))
        parts.append(_text(axes.x(chance), TOP_PX + 4, "chance", "middle"))
    for i, row in enumerate(rows):
        if row is None:
            continue
        y = TOP_PX + 14 + ROW_PX * (i + 0.5)
        ends = f'x1="{axes.x(row.low):.1f}" x2="{axes.x(row.high):.1f}" y1="{y}" y2="{y}"'
        parts.append(f'<line {ends} stroke="{colour(i)}" stroke-width="3" stroke-opacity="0.45"/>')
        parts.append(
            f'<circle cx="{axes.x(row.share):.1f}" cy="{y}" r="5" fill="{colour(i)}">'
            f"<title>{html.escape(row.name)}: {row.share:.1%}</title></circle>"
        )
    return "\n".join([*parts, "</svg>"])


def legend(names: Sequence[str]) -> str:
    """Return the names with the colours of their places, as HTML."""
    items = [
        f'<span class="key"><svg width="22" height="10"><line x1="0" x2="22" y1="5" y2="5" '
        f"{_pen(i)}/></svg>{html.escape(name)}</span>"
        for i, name in enumerate(names)
    ]
    return f'<p class="legend">{"".join(items)}</p>'


def colour(place: int) -> str:
    """Return the colour of the series at a place."""
    return COLOURS[place % len(COLOURS)]


def ticks(low: Number, high: Number) -> list[float]:
    """Return 3 to 8 round numbers within [low, high]: steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(s * power for s in (1, 2, 5, 10) if s * power >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(float(k * step), 12) for k in range(first, last + 1)]


def log_ticks(low: Number, high: Number) -> list[float]:
    """Return round numbers between 10^low and 10^high for a logarithmic axis.

    Steps of equal size within a decade, else 1, 2 and 5 times powers of ten, or powers alone.
    """
    if high - low < 1:
        return ticks(10.0**low, 10.0**high)
    powers = range(math.floor(low), math.ceil(high) + 1)
    factors = (1, 2, 5) if high - low <= 3 else (1,)
    found = [factor * 10.0**power for power in powers for factor in factors]
    return [value for value in found if low - 1e-9 <= math.log10(value) <= high + 1e-9]


def _grid(axes: _Axes, x_label: str, y_label: str) -> Iterator[str]:
    marks: Callable[[Number, Number], list[float]] = log_ticks if axes.log else ticks
    for tick in marks(axes.low, axes.high):
        y = axes.y(tick)
        yield _stroke(LEFT_PX, y, WIDTH_PX - RIGHT_PX, y, "grid")
        yield _text(LEFT_PX - 6, y + 4, f"{tick:g}", "end")
    for tick in ticks(axes.x_low, axes.x_end):
        yield _text(axes.x(tick), HEIGHT_PX - BOTTOM_PX + 17, f"{tick:,g}", "middle")
    yield _text((LEFT_PX + WIDTH_PX - RIGHT_PX) / 2, HEIGHT_PX - 5, x_label, "middle")
    middle = (TOP_PX + HEIGHT_PX - BOTTOM_PX) / 2
    yield (
        f'<text x="12" y="{middle}" text-anchor="middle" transform="rotate(-90 12 {middle})">'
        f"{html.escape(y_label)}</text>"
    )


def _runs(points: Points) -> Iterator[Points]:
    """Yield the unbroken runs of points that are finite."""
    run: list[tuple[Number, Number]] = []
    for x, y in points:
        if math.isfinite(y):
            run.append((x, y))
        elif run:
            yield run
            run = []
    if run:
        yield run


def _line(axes: _Axes, points: Points, place: int) -> Iterator[str]:
    at = [(axes.x(x), axes.y(y)) for x, y in points]
    if len(at) > 1:
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in at)
        yield f'<polyline points="{path}" fill="none" {_pen(place)}/>'
    if len(at) <= 12:
        for x, y in at:
            yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour(place)}"/>'


def _pen(place: int) -> str:
    dashes = ' stroke-dasharray="5 3"' if place >= len(COLOURS) else ""
    return f'stroke="{colour(place)}" stroke-width="1.75" stroke-linejoin="round"{dashes}'


def _head(height: Number, title: str) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH_PX} {height:g}" class="chart" role="img" '
        f'aria-label="{html.escape(title)}">'
    )


def _stroke(x1: Number, y1: Number, x2: Number, y2: Number, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _text(x: Number, y: Number, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
