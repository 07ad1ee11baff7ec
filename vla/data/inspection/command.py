"""`vla data inspect`: reports contents and problems of a data set as a page, text and JSON.

Scans of files are kept next to the page until it is written, so an interrupted inspection resumes.
The data set is never changed.
"""

import dataclasses
import hashlib
import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from vla.contracts import registry
from vla.data.info import DatasetInfo
from vla.data.inspection import images, page
from vla.data.inspection import numbers as detectors
from vla.data.inspection.finding import ERROR, NOTE, WARNING, Finding
from vla.data.inspection.images import FileScan, ScanJob
from vla.data.inspection.numbers import Numbers
from vla.data.progress_bar import bar, sigterm_as_interrupt
from vla.data.reader import open_dataset, read_columns, read_timestamps
from vla.data.source import fingerprint
from vla.utils import arguments
from vla.utils.interrupted import Interrupted


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """Settings of an inspection."""

    data: tyro.conf.Positional[Path]
    """A LeRobotDataset v3."""
    out: Path | None = None
    """HTML file to write; NAME_inspection.html next to the data set if not given."""
    robot: str | None = None
    """Robot whose limits are checked: a file name under vla/robots; that of the data set if not
    given."""
    json: bool = False
    """Print the summary as JSON."""
    strict: bool = False
    """Exit with code 1 if there is an error."""


def main(argv: list[str]) -> int:
    """Run `vla data inspect DATA`; return the exit code.

    Raises:
        ValueError: the data set cannot be read at all.
        Interrupted: Ctrl-C or SIGTERM; finished scans are kept.
    """
    config = arguments.read(InspectConfig, argv, "vla data inspect")
    out = config.out or config.data.resolve().with_name(
        f"{config.data.resolve().name}_inspection.html"
    )
    begin = time.perf_counter()
    numbers, scans, findings = inspect(config.data, out, config.robot)
    page.write(out, numbers, scans, findings)
    shutil.rmtree(_parts(out), ignore_errors=True)
    result = summary(numbers, scans, findings)
    if config.json:
        print(json.dumps({**result, "page": str(out)}, indent=1))
    else:
        seconds = time.perf_counter() - begin
        count = sum(len(scan.rows) for parts in scans.values() for scan in parts)
        print("\n".join(lines(numbers, findings)))
        print(f"{count:,} images in {seconds:.1f} s ({count / seconds:,.0f}/s); page: {out}")
    return int(config.strict and any(f.severity == ERROR for f in findings))


def inspect(
    data: Path, out: Path, robot: str | None = None
) -> tuple[Numbers, dict[str, list[FileScan]], list[Finding]]:
    """Inspect a data set, against the limits of its own robot if `robot` is None.

    Scans are kept next to `out`, the file of the page.

    Returns:
        Its numbers, the scans by camera name, and the findings, errors first.
    """
    info = open_dataset(data, content=False)
    columns = read_columns(info)
    numbers = Numbers(
        info=info, state=columns.state, action=columns.action, timestamp=read_timestamps(info),
        scalars=columns.scalars, robot=_robot(info, robot),
    )  # fmt: skip
    findings = detectors.find(numbers)
    scans = _scan(info, out)
    for camera in info.cameras:
        findings += images.find(numbers, camera, scans[camera.name])
    order = (ERROR, WARNING, NOTE)
    return numbers, scans, sorted(findings, key=lambda f: order.index(f.severity))


def summary(
    numbers: Numbers, scans: Mapping[str, Sequence[FileScan]], findings: Sequence[Finding]
) -> dict[str, Any]:
    """Return the result as JSON types."""
    info = numbers.info
    return {
        "data": str(info.path), "robot": info.robot, "fps": info.fps,
        "episodes": info.num_episodes, "frames": info.num_frames,
        "lengths": dict(
            zip(("min", "median", "max"), map(int, page.min_median_max(info.lengths)), strict=True)
        ),
        "tasks": page.tasks(info),
        "cameras": {
            c.name: {
                "height_px": c.height_px, "width_px": c.width_px,
                "images": sum(len(scan.rows) for scan in scans[c.name]),
            }
            for c in info.cameras
        },
        "channels": page.channels(numbers),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }  # fmt: skip


def lines(numbers: Numbers, findings: Sequence[Finding]) -> list[str]:
    """Return the summary as lines of text."""
    info = numbers.info
    shortest, median, longest = page.min_median_max(info.lengths)
    text = [
        f"{info.path}: {info.num_episodes} episodes of {shortest:.0f} to {longest:.0f} frames "
        f"(median {median:.0f}), {info.num_frames:,} frames at {info.fps:g} Hz, "
        f"{len(page.tasks(info))} instructions, {len(info.cameras)} cameras"
    ]
    text += [f"{finding.severity}: {finding.message}" for finding in findings]
    counts = {s: sum(f.severity == s for f in findings) for s in (ERROR, WARNING)}
    return [*text, f"{counts[ERROR]} errors, {counts[WARNING]} warnings"]


def _robot(info: DatasetInfo, name: str | None) -> Any:
    """Return the robot's description; None if none is given and that of the data is unknown."""
    if name is None and info.robot not in registry.names("vla.robots"):
        return None
    return registry.load("vla.robots", name or str(info.robot)).SPEC


def _parts(out: Path) -> Path:
    return out.with_name(out.name + ".parts")


def _scan(info: DatasetInfo, out: Path) -> dict[str, list[FileScan]]:
    """Scan every file that was not scanned before."""
    parts, jobs = _parts(out), images.jobs(info)
    parts.mkdir(parents=True, exist_ok=True)
    wanted = images.sample_rows(info)
    scans: dict[str, list[FileScan]] = {camera.name: [] for camera in info.cameras}
    done = 0
    try:
        with sigterm_as_interrupt(), bar("images") as progress:
            line = progress.add_task("scanning", total=info.num_frames * len(info.cameras))
            for job in jobs:
                place = parts / _name(info, job)
                scan = images.load(place)
                if scan is None:
                    scan = images.scan(info, job, wanted, lambda n: progress.advance(line, n))
                    images.save(scan, place)
                else:
                    progress.advance(line, len(scan.rows))
                scans[job.camera.name].append(scan)
                done += 1
    except KeyboardInterrupt:
        raise Interrupted(f"{done} of {len(jobs)} files were scanned ({parts})") from None
    return scans


def _name(info: DatasetInfo, job: ScanJob) -> str:
    """Return the name of a saved scan; it changes with the file and the data set."""
    files = [info.path / "meta/info.json", *info.path.glob("meta/episodes/*/*.parquet")]
    files += [job.file] * job.file.is_file()
    key = f"{job.camera.key} {job.file} {fingerprint(files)}"
    return f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.npz"
