"""Writes the report of a labelled data set; the exit code is 1 if a quality gate is missed."""

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import tyro

from reward_models.label_report import page
from reward_models.label_report.gates import Gates
from vla.utils import arguments


@dataclass(frozen=True, kw_only=True)
class LabelReportArgs:
    """Write a report on a labelled data set and check its quality gates."""

    labelled: Annotated[Path, tyro.conf.Positional]
    """Labelled data set, as `vla label` wrote it."""
    out: Path | None = None
    """File to write; NAME_report.html next to the data set by default."""
    videos: int = page.VIDEOS
    """Number of the worst episodes shown as videos."""
    gates: Gates = field(default_factory=Gates)
    """Bounds of the labels' quality."""

    def __post_init__(self) -> None:
        if self.videos < 0:
            raise ValueError(f"videos: got {self.videos}, expected 0 or more")


def main(argv: list[str]) -> int:
    """Write the report; return 0, or 1 if the labels miss a gate.

    Raises:
        ValueError: the data set is damaged, or not labelled.
    """
    args = arguments.read(LabelReportArgs, argv, "vla label --report")
    return report(args.labelled, args.out, args.gates, args.videos)


def report(labelled: Path, out: Path | None, gates: Gates, videos: int = page.VIDEOS) -> int:
    """Write the report and print the results of the gates; return 0, or 1 if one is missed.

    Raises:
        ValueError: the data set is damaged, or not labelled.
    """
    # Next to the data set, not in it, where stock tools read.
    file = out or labelled.resolve().with_name(f"{labelled.resolve().name}_report.html")
    summary = page.write(labelled, file, bounds=gates, videos=videos)
    print(f"report: {file} ({file.stat().st_size / 1e6:.1f} MB)")
    for result in summary.gates:
        if result.missed:
            print(f"gate missed: {result.sentence}", file=sys.stderr)
        else:
            print(f"{'gate kept' if result.checked else 'gate'}: {result.sentence}")
    return 1 if summary.missed else 0
