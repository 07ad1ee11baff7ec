"""Report of an inspection as one HTML file without network access or scripts."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vla.data.info import Camera, DatasetInfo
from vla.data.inspection.finding import ERROR, NOTE, WARNING, Finding
from vla.data.inspection.images import FileScan, sample_rows
from vla.data.inspection.numbers import Numbers, vectors
from vla.utils import charts, files, pages

TASKS, BINS = 50, 24
"""Largest number of instructions and histogram bars."""
PERCENTILES = {"min": 0.0, "1 %": 0.01, "median": 0.5, "99 %": 0.99, "max": 1.0}


def write(
    out: Path, numbers: Numbers, scans: Mapping[str, Sequence[FileScan]],
    findings: Sequence[Finding],
) -> None:  # fmt: skip
    """Write the page atomically."""
    info = numbers.info
    severities = [finding.severity for finding in findings]
    errors, notes = severities.count(ERROR), severities.count(NOTE)
    shortest, median, longest = min_median_max(info.lengths)
    edges = np.linspace(shortest - 0.5, longest + 0.5, min(BINS, int(longest - shortest) + 1) + 1)
    drawing = charts.histogram(info.lengths, edges, x_label="frames per episode")
    text = pages.render(
        "vla/data/inspection/page.html.j2", info=info, errors=errors,
        warnings=len(findings) - errors - notes, findings=findings,
        severity_colours={ERROR: 3, WARNING: 1, NOTE: 0}, drawing=charts.svg(drawing),
        lengths=(shortest, median, longest), tasks=tasks(info), most=TASKS,
        cameras=[_camera(info, camera, scans[camera.name]) for camera in info.cameras],
        percentiles=list(PERCENTILES), channels=channels(numbers), robot=numbers.robot,
    )  # fmt: skip
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(out, text)


def min_median_max(values: np.ndarray) -> tuple[float, float, float]:
    """Return minimum, median and maximum."""
    return float(values.min()), float(np.median(values)), float(values.max())


def tasks(info: DatasetInfo) -> dict[str, int]:
    """Return the number of episodes with each instruction, the most frequent first."""
    episodes = range(info.num_episodes)
    counts = Counter(text or "" for e in episodes for text in info.episode_instructions(e)[0])
    return dict(counts.most_common())


def channels(numbers: Numbers) -> list[dict[str, Any]]:
    """Return percentiles of every channel, its limits, and the fraction of frames beyond them."""
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


def _camera(info: DatasetInfo, camera: Camera, scans: Sequence[FileScan]) -> dict[str, Any]:
    """Return a camera with its brightness and the images for the page."""
    captions = sample_rows(info)
    read = [part for part in scans if len(part.rows)]
    shown = {row: data for part in read for row, data in part.shown.items()}
    return {
        "camera": camera,
        "brightness": min_median_max(np.concatenate([part.mean for part in read]))
        if read
        else None,
        "images": [
            (pages.data_uri(shown[row], "image/jpeg"), captions[row]) for row in sorted(shown)
        ],
    }
