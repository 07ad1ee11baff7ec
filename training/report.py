"""`vla report RUN ...`: one HTML page about training runs that needs no network and no script.

It reads what `vla train` and `vla eval` wrote and computes nothing new; runs may be in progress.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from training import report_deployed, report_page
from training.metrics import read_metrics
from training.report_page import Run
from vla import arguments, files


@dataclass(frozen=True, kw_only=True)
class ReportArgs:
    """Write one HTML page about runs."""

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional]
    """Folders that `vla train --out` wrote."""
    exported: Path | None = None
    """What `vla export` made of one of them: what `vla parity` found of it is shown, too."""
    latency: Path | None = None
    """Folder that `vla bench policy --out` wrote: times of a decision are shown, too."""
    bridge: Path | None = None
    """Folder that `vla bench bridge --out` wrote: how it did over ROS 2 is shown, too."""
    out: Path | None = None
    """File to write; report.html in the first run if not given."""


def main(argv: list[str]) -> int:
    """Run `vla report`; return the exit code.

    Raises:
        ValueError: a folder holds no run, or a file in it is damaged.
    """
    args = arguments.read(ReportArgs, argv, "vla report")
    if not args.runs:
        raise ValueError("no run given: vla report RUN [RUN ...] --out FILE")
    out = args.out or args.runs[0] / "report.html"
    text = report_page.page(
        read_runs(args.runs), deployed(args.exported, args.latency, args.bridge)
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    files.write_text(out, text)
    print(f"report: {out} ({len(text.encode()) / 1e6:.1f} MB)")
    return 0


def deployed(
    exported: Path | None = None, latency: Path | None = None, bridge: Path | None = None
) -> list[str]:
    """Return the page's parts about an exported policy, its times and its arm.

    Raises:
        ValueError: a folder does not hold them, or a file in it is damaged.
    """
    body: list[str] = []
    if exported:
        manifest = _read_json(exported / "manifest.json", "precision", "parity")
        if manifest is None:
            raise ValueError(f"{exported}: no exported policy there; give what `vla export` wrote")
        body += report_deployed.parity(manifest)
    if latency:
        told = _read_json(latency / "latency.json", "seconds", "quantiles", "peak_mb")
        if told is None:
            raise ValueError(f"{latency}: no latency.json; give what `vla bench policy` wrote")
        body += report_deployed.latency(told)
    if bridge:
        told = _read_json(bridge / "bridge.json", "in_process", "over_ros", "audit", "episodes")
        if told is None:
            raise ValueError(f"{bridge}: no bridge.json; give what `vla bench bridge` wrote")
        body += report_deployed.bridge(told)
    return body


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """Read run folders; names that two folders share become paths.

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
    figures = ("task", "seed", "success", "rate", "interval")
    paths = folder.glob("eval-*/evaluation.json")
    tests = {path.parent.name: _read_json(path, *figures) for path in paths}
    return Run(
        name=name,
        folder=folder,
        config=config,
        metrics=read_metrics(folder),
        checkpoint=_read_json(folder / "checkpoint" / "policy.json") or {},
        evaluation=_read_json(folder / "evaluation.json", *figures),
        others=[tests[key] or {} for key in sorted(tests)],
        memory=_read_json(folder / "memory.json", "episode", "success", "instruction", "slots"),
    )


def _read_json(path: Path, *needed: str) -> dict[str, Any] | None:
    """Return the object in a file, None if there is no such file; it must have the needed keys."""
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
