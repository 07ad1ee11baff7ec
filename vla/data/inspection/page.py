"""The page of an inspection: one HTML file that needs no network and runs no script."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vla import files, pages, svg
from vla.data.info import DatasetInfo
from vla.data.inspection.finding import ERROR, NOTE, Finding
from vla.data.inspection.numbers import Numbers, vectors
from vla.data.inspection.pictures import Seen, shown_rows
from vla.pages import NONE, escape, figure, table

TASKS, BINS = 50, 24
"""Instructions and bars that are shown at most."""
PERCENTILES = {"min": 0.0, "1 %": 0.01, "median": 0.5, "99 %": 0.99, "max": 1.0}


def write(
    out: Path, numbers: Numbers, seen: Mapping[str, Sequence[Seen]], findings: Sequence[Finding]
) -> None:
    """Write the page, whole or not at all."""
    body = [
        *_head(numbers.info, findings),
        *_findings(findings),
        *_episodes(numbers.info),
        *_cameras(numbers.info, seen),
        *_channels(numbers),
    ]
    text = pages.document(f"Data set {numbers.info.path.name}", body)
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(out, text)


def three(values: np.ndarray) -> tuple[float, float, float]:
    """Return smallest, median and largest."""
    return float(values.min()), float(np.median(values)), float(values.max())


def tasks(info: DatasetInfo) -> dict[str, int]:
    """Return the number of episodes of each instruction, the most frequent first."""
    counts: dict[str, int] = {}
    for text in info.tasks:
        counts[text or ""] = counts.get(text or "", 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def channels(numbers: Numbers) -> list[dict[str, Any]]:
    """Return percentiles of every channel, its limits, and the share of frames beyond them."""
    limits = {c.name: (c.low, c.high) for c in numbers.robot.channels} if numbers.robot else {}
    rows = []
    for what, values, names in vectors(numbers):
        for channel, name in enumerate(names):
            column = values[:, channel]
            clean = column[np.isfinite(column)]
            row: dict[str, Any] = {"vector": what, "channel": name}
            row |= {
                label: float(np.quantile(clean, q)) if len(clean) else None
                for label, q in PERCENTILES.items()
            }
            if name in limits:
                low, high = limits[name]
                outside = float(((clean < low) | (clean > high)).mean()) if len(clean) else 0.0
                row |= {"low": low, "high": high, "outside": outside}
            rows.append(row)
    return rows


def _head(info: DatasetInfo, findings: Sequence[Finding]) -> Iterator[str]:
    errors = sum(f.severity == ERROR for f in findings)
    warnings = sum(f.severity not in (ERROR, NOTE) for f in findings)
    yield f"<h1>{escape(info.path.name)}</h1>"
    robot = f" · {info.robot}" if info.robot else ""
    yield f'<p class="soft">{escape(str(info.path) + robot)}</p>'
    minutes = info.num_frames / info.fps / 60
    yield (
        f"<p>{info.num_episodes:,} episodes, {info.num_frames:,} frames at {info.fps:g} Hz "
        f"({minutes:,.1f} minutes), {len(info.cameras)} cameras, {info.state_dim} states and "
        f"{info.action_dim} actions.</p>"
    )
    if errors or warnings:
        yield f"<p><b>{errors} errors, {warnings} warnings.</b></p>"
    else:
        yield "<p>Nothing is wrong with it, as far as this looks.</p>"


def _findings(findings: Sequence[Finding]) -> Iterator[str]:
    yield "<h2>Findings</h2>"
    if not findings:
        yield "<p>None.</p>"
        return
    places = {ERROR: 3, NOTE: 0}
    rows = [
        [
            f"{pages.dot(places.get(f.severity, 1))}{escape(f.severity)}", escape(f.kind),
            f'<span class="said">{escape(f.sentence)}.</span>',
        ]
        for f in findings
    ]  # fmt: skip
    yield "<style>.said { display: inline-block; white-space: normal; max-width: 72ch; }</style>"
    yield table(["", "what", "where, and what to do"], rows)


def _episodes(info: DatasetInfo) -> Iterator[str]:
    yield "<h2>Episodes</h2>"
    shortest, usual, longest = three(info.lengths)
    edges = np.linspace(shortest - 0.5, longest + 0.5, min(BINS, int(longest - shortest) + 1) + 1)
    drawing = svg.histogram(info.lengths.tolist(), edges.tolist(), x_label="frames per episode")
    caption = (
        f"Lengths from {shortest:.0f} to {longest:.0f} frames, median {usual:.0f} "
        f"({usual / info.fps:.1f} s)."
    )
    found = tasks(info)
    rows = [
        [f'<span class="long">{escape(text) or NONE}</span>', str(count)]
        for text, count in list(found.items())[:TASKS]
    ]
    more = f'<p class="soft">{len(found) - TASKS} more.</p>' if len(found) > TASKS else ""
    listed = table(["instruction", "episodes"], rows, numbers=range(1, 2)) + more
    yield f'<div class="pair">{figure(drawing, caption)}<div>{listed}</div></div>'


def _cameras(info: DatasetInfo, seen: Mapping[str, Sequence[Seen]]) -> Iterator[str]:
    yield "<h2>Cameras</h2>"
    words = shown_rows(info)
    for camera in info.cameras:
        several = [one for one in seen[camera.name] if len(one.rows)]
        shown = {row: data for one in several for row, data in one.shown.items()}
        kind = "video" if camera.video else "pictures in the tables"
        told = f"{camera.name}: {camera.width_px} x {camera.height_px} pixels, {kind}"
        if several:
            brightness = np.concatenate([one.mean for one in several])
            told += f", brightness {' to '.join(f'{v:.0f}' for v in three(brightness)[::2])} of 255"
        yield f"<h3>{escape(told)}</h3>"
        pictures = "".join(
            figure(f'<img alt="" src="{_source(shown[row])}">', words[row]) for row in sorted(shown)
        )
        yield f'<div class="shots">{pictures}</div>' if pictures else "<p>None could be read.</p>"
    yield (
        "<style>.shots { display: grid; grid-template-columns: repeat(auto-fill, "
        "minmax(150px, 1fr)); gap: 12px; } .shots figure { margin: 0; }</style>"
    )


def _source(jpeg: bytes) -> str:
    return f"data:image/jpeg;base64,{base64.b64encode(jpeg).decode()}"


def _channels(numbers: Numbers) -> Iterator[str]:
    yield "<h2>States and actions</h2>"
    rows = []
    for row in channels(numbers):
        limits = f"{row['low']:.3g} to {row['high']:.3g}" if "low" in row else NONE
        outside = f"{row['outside']:.1%}" if "low" in row else NONE
        cells = [NONE if row[name] is None else f"{row[name]:.3g}" for name in PERCENTILES]
        rows.append([row["vector"], escape(row["channel"]), *cells, limits, outside])
    head = ["", "channel", *PERCENTILES, "limits", "outside"]
    yield table(head, rows, numbers=range(2, 9))
    if numbers.robot is not None:
        yield f'<p class="soft">Limits are those of {escape(numbers.robot.name)}.</p>'
