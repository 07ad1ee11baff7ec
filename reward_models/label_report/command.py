"""Writes the report of a labelled data set; the exit code is 1 if a quality gate is missed."""

import sys
from pathlib import Path

from reward_models.label_report import page
from reward_models.label_report.gates import Gates


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
            print(f"{'gate passed' if result.checked else 'gate'}: {result.sentence}")
    return 1 if summary.missed else 0
