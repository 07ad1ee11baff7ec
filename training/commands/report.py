"""`vla report RUN ...`: one HTML page about training runs, without network access or scripts.

It reads the files of `vla train` and `vla eval`; runs may be in progress.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from training.core.metrics import read_metrics
from training.report import page
from training.report.page import Run
from vla.utils import arguments, charts, files, pages

PARTS = {
    "exported": ("manifest.json", "vla export", ("precision", "parity")),
    "latency": ("latency.json", "vla bench policy", ("seconds", "quantiles", "peak_mb")),
    "bridge": ("bridge.json", "vla bench bridge", ("in_process", "over_ros", "audit", "episodes")),
}
"""Deployment results: file, command that writes it, and required keys."""


@dataclass(frozen=True, kw_only=True)
class ReportArgs:
    """Write one HTML page about runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Run folders of `vla train --out`."""
    exported: Path | None = None
    """Exported policy of one of the runs, to add the results of `vla verify-export`."""
    latency: Path | None = None
    """Folder of `vla bench policy --out`, to add inference latencies."""
    bridge: Path | None = None
    """Folder of `vla bench bridge --out`, to add the results over ROS 2."""
    out: Path | None = None
    """File to write; report.html in the first run if not given."""


def main(argv: list[str]) -> int:
    """Run `vla report`; return the exit code."""
    args = arguments.read(ReportArgs, argv, "vla report")
    if not args.runs:
        raise ValueError("no run given: vla report RUN [RUN ...] --out FILE")
    out = args.out or args.runs[0] / "report.html"
    text = page.page(read_runs(args.runs), deployed(args.exported, args.latency, args.bridge))
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(out, text)
    print(f"report: {out} ({len(text.encode()) / 1e6:.1f} MB)")
    return 0


def deployed(
    exported: Path | None = None, latency: Path | None = None, bridge: Path | None = None
) -> str:
    """Return the section about an exported policy, its latency and its results over ROS 2, as HTML.

    Raises:
        ValueError: a folder holds no such results, or a file in it is damaged.
    """
    folders = {"exported": exported, "latency": latency, "bridge": bridge}
    parts = {name: _part(folder, *PARTS[name]) for name, folder in folders.items()}
    drawing = ""
    if parts["latency"]:
        series = [
            [(1e3 * time, place / (len(times) - 1)) for place, time in enumerate(times)]
            for times in parts["latency"]["quantiles"].values()
        ]
        drawing = charts.svg(
            charts.curves(
                series, x_label="ms", y_label="fraction decided within", y_range=(0.0, 1.0)
            )
        )
    return pages.render("training/report/deployed.html.j2", drawing=drawing, **parts)


def _part(
    folder: Path | None, file: str, command: str, needed: tuple[str, ...]
) -> dict[str, Any] | None:
    if folder is None:
        return None
    part = _read_json(folder / file, *needed)
    if part is None:
        raise ValueError(f"{folder}: no {file}; give the folder that `{command}` wrote")
    return part


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read run folders; ambiguous names become paths.

    Raises:
        ValueError: a folder holds no run, or a file in it is damaged.
    """
    names = [folder.resolve().name for folder in folders]
    unique = len(set(names)) == len(names)
    return [
        read_run(folder, name if unique else str(folder))
        for folder, name in zip(folders, names, strict=True)
    ]


def read_run(folder: Path, name: str) -> Run:
    """Read one run folder.

    Raises:
        ValueError: it holds no run, or a file in it is damaged.
    """
    config = _read_json(folder / "config.json", "task", "steps")
    if config is None:
        raise ValueError(
            f"{folder}: no run there (no config.json); give the folder that `vla train --out` wrote"
        )
    needed = ("task", "seed", "success", "rate", "interval")
    paths = folder.glob("eval-*/evaluation.json")
    tests = {path.parent.name: _read_json(path, *needed) for path in paths}
    return Run(
        name=name, folder=folder, config=config, metrics=read_metrics(folder),
        checkpoint=_read_json(folder / "checkpoint" / "policy.json") or {},
        evaluation=_read_json(folder / "evaluation.json", *needed),
        others=[tests[key] or {} for key in sorted(tests)],
        memory=_read_json(folder / "memory.json", "episode", "success", "instruction", "slots"),
    )  # fmt: skip


def _read_json(path: Path, *needed: str) -> dict[str, Any] | None:
    """Return the JSON object in a file, None if there is no file; it must have the needed keys."""
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: damaged, not JSON ({error}); delete it or restore it") from error
    if not isinstance(value, dict) or not set(needed) <= set(value):
        raise ValueError(
            f"{path}: damaged, expected a JSON object with {', '.join(needed) or 'settings'}; "
            "delete it or restore it"
        )
    return value
