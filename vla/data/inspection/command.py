"""`vla data inspect`: what is in a data set and what is wrong with it, as a page, text and JSON.

Files that were looked at are kept beside the page until it is written, so an inspection that was
interrupted goes on where it was. The data set is never touched.
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

from vla import arguments
from vla.contracts import registry
from vla.data.bar import bar, stoppable
from vla.data.info import DatasetInfo
from vla.data.inspection import numbers as detectors
from vla.data.inspection import page, pictures
from vla.data.inspection.finding import ERROR, NOTE, WARNING, Finding
from vla.data.inspection.numbers import Numbers
from vla.data.inspection.pictures import Job, Seen
from vla.data.reader import open_dataset, read_columns, read_timestamps
from vla.data.source import fingerprint
from vla.interrupted import Interrupted


@dataclass(frozen=True, kw_only=True)
class InspectConfig:
    """Which data set to look at, and where the page goes."""

    data: tyro.conf.Positional[Path]
    """A LeRobotDataset v3."""
    out: Path | None = None
    """File of the page; NAME_inspection.html beside the data set if not given."""
    robot: str | None = None
    """The arm, whose limits count: a file name under vla/robots; the one that the set names."""
    json: bool = False
    """Print the summary as JSON."""
    strict: bool = False
    """End with exit code 1 if there is an error."""


def main(argv: list[str]) -> int:
    """Run `vla data inspect DATA`; return the exit code.

    Raises:
        ValueError: the set cannot be read at all.
        Interrupted: Ctrl-C or SIGTERM; files that were looked at are kept.
    """
    config = arguments.read(InspectConfig, argv, "vla data inspect")
    out = config.out or config.data.resolve().with_name(
        f"{config.data.resolve().name}_inspection.html"
    )
    begin = time.perf_counter()
    numbers, seen, findings = inspect(config.data, out, config.robot)
    page.write(out, numbers, seen, findings)
    shutil.rmtree(_parts(out), ignore_errors=True)
    said = summary(numbers, seen, findings)
    if config.json:
        print(json.dumps({**said, "page": str(out)}, indent=1))
    else:
        seconds = time.perf_counter() - begin
        looked = sum(len(one.rows) for several in seen.values() for one in several)
        print("\n".join(told(numbers, findings)))
        print(f"{looked:,} pictures in {seconds:.1f} s ({looked / seconds:,.0f}/s); page: {out}")
    return int(config.strict and any(f.severity == ERROR for f in findings))


def inspect(
    data: Path, out: Path, robot: str | None = None
) -> tuple[Numbers, dict[str, list[Seen]], list[Finding]]:
    """Look at all of a data set.

    Args:
        data: The data set.
        out: File of the page; what was seen is kept beside it.
        robot: The arm; the one that the set names if None.

    Returns:
        Its numbers, what was seen by name of the camera, and the findings, the worst first.
    """
    info = open_dataset(data, content=False)
    columns = read_columns(info)
    numbers = Numbers(
        info=info, state=columns.state, action=columns.action, timestamp=read_timestamps(info),
        robot=_robot(info, robot),
    )  # fmt: skip
    findings = detectors.find(numbers)
    seen = _look(info, out)
    for camera in info.cameras:
        findings += pictures.find(numbers, camera, seen[camera.name])
    order = (ERROR, WARNING, NOTE)
    return numbers, seen, sorted(findings, key=lambda f: order.index(f.severity))


def summary(
    numbers: Numbers, seen: Mapping[str, Sequence[Seen]], findings: Sequence[Finding]
) -> dict[str, Any]:
    """Return the whole of it as JSON types."""
    info = numbers.info
    return {
        "data": str(info.path), "robot": info.robot, "fps": info.fps,
        "episodes": info.num_episodes, "frames": info.num_frames,
        "lengths": {
            name: int(value)
            for name, value in zip(
                ("min", "median", "max"), page.three(info.lengths), strict=True
            )
        },
        "tasks": page.tasks(info),
        "cameras": {
            c.name: {
                "height_px": c.height_px, "width_px": c.width_px,
                "pictures": sum(len(one.rows) for one in seen[c.name]),
            }
            for c in info.cameras
        },
        "channels": page.channels(numbers),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }  # fmt: skip


def told(numbers: Numbers, findings: Sequence[Finding]) -> list[str]:
    """Return the summary for a terminal."""
    info = numbers.info
    shortest, usual, longest = page.three(info.lengths)
    lines = [
        f"{info.path}: {info.num_episodes} episodes of {shortest:.0f} to {longest:.0f} frames "
        f"(median {usual:.0f}), {info.num_frames:,} frames at {info.fps:g} Hz, "
        f"{len(page.tasks(info))} instructions, {len(info.cameras)} cameras"
    ]
    lines += [f"{finding.severity}: {finding.sentence}" for finding in findings]
    counts = {s: sum(f.severity == s for f in findings) for s in (ERROR, WARNING)}
    return [*lines, f"{counts[ERROR]} errors, {counts[WARNING]} warnings"]


def _robot(info: DatasetInfo, name: str | None) -> Any:
    """Return the arm's description; that of the set's own name only if there is such an arm."""
    if name is None and info.robot not in registry.names("vla.robots"):
        return None
    return registry.load("vla.robots", name or str(info.robot)).SPEC


def _parts(out: Path) -> Path:
    return out.with_name(out.name + ".parts")


def _look(info: DatasetInfo, out: Path) -> dict[str, list[Seen]]:
    """Look at every file that was not looked at before."""
    parts, jobs = _parts(out), pictures.jobs(info)
    parts.mkdir(parents=True, exist_ok=True)
    wanted = pictures.shown_rows(info)
    seen: dict[str, list[Seen]] = {camera.name: [] for camera in info.cameras}
    done = 0
    try:
        with stoppable(), bar("pictures") as shown:
            line = shown.add_task("looking", total=info.num_frames * len(info.cameras))
            for job in jobs:
                place = parts / _name(info, job)
                found = pictures.kept(place)
                if found is None:
                    found = pictures.look(info, job, wanted, lambda n: shown.advance(line, n))
                    pictures.keep(found, place)
                else:
                    shown.advance(line, len(found.rows))
                seen[job.camera.name].append(found)
                done += 1
    except KeyboardInterrupt:
        raise Interrupted(f"{done} of {len(jobs)} files were looked at ({parts})") from None
    return seen


def _name(info: DatasetInfo, job: Job) -> str:
    """Return under which name what was seen is kept: another once the file or the set changes."""
    files = [info.path / "meta/info.json", *info.path.glob("meta/episodes/*/*.parquet")]
    files += [job.file] * job.file.is_file()
    key = f"{job.camera.key} {job.file} {fingerprint(files)}"
    return f"{hashlib.blake2b(key.encode(), digest_size=16).hexdigest()}.npz"
