"""`vla doctor`: what works on this machine, and the command that fixes what does not.

It imports only the standard library, so that it runs where nothing else is installed.
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Literal

Status = Literal["works", "missing", "broken"]


@dataclass(frozen=True, kw_only=True)
class Probe:
    """One part of the machine and its check."""

    name: str
    """Name of the line."""
    fix: str
    """Command that fixes it."""
    target: str = ""
    """The check, as "module:function"; that of the same name in `vla.probes` if empty."""
    required: bool = False
    """`make demo` cannot run without it."""
    timeout_s: float = 60.0
    """A check without result after this time is broken."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Result of a probe."""

    name: str
    """Name of the probe."""
    status: Status
    """Works, is missing, or is there and fails."""
    detail: str
    """Details in a few words."""
    fix: str | None
    """Command that fixes it; None if it works."""
    required: bool
    """`make demo` cannot run without it."""


PIP = "pip install 'mneme-vla[{}]'"
"""Command that installs an extra of the package that is there, a wheel or a source checkout."""
PROBES = (
    Probe(
        name="python",
        fix="apt-get install -y python3.11 python3.11-venv && make clean demo",
        required=True,
    ),
    Probe(name="cores", fix="nproc --all"),
    Probe(name="memory", fix="ps aux --sort=-rss", required=True),
    Probe(name="disk", fix="du -xh -d 1 . | sort -h | tail", required=True),
    Probe(
        name="egl",
        fix="apt-get install -y libegl1 libegl-mesa0 libgl1-mesa-dri",
        required=True,
    ),
    Probe(name="torch", fix=PIP.format("train"), required=True),
    Probe(name="gpu", fix="nvidia-smi  # then install its driver"),
    Probe(name="lerobot", fix=PIP.format("train"), required=True),
    Probe(name="video", fix=PIP.format("train"), required=True),
    Probe(name="torchcodec", fix="apt-get install -y ffmpeg"),
    Probe(name="rerun", fix=PIP.format("view")),
    Probe(name="transformers", fix=PIP.format("train")),
    Probe(name="onnxruntime", fix=PIP.format("deploy")),
    Probe(name="tensorrt", fix="pip install tensorrt"),
    Probe(name="rclpy", fix=PIP.format("ros")),
)
"""Parts in the order of the report."""

ENVIRONMENT = {
    "MUJOCO_GL": "egl",
    "HF_HUB_OFFLINE": "1",
    "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
}
"""Defaults of environment variables for the probes."""


def main(argv: list[str]) -> int:
    """Run every probe; return 1 if a part that `make demo` needs is broken or missing."""
    parser = argparse.ArgumentParser(prog="vla doctor", description=__doc__.split("\n")[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    as_json = parser.parse_args(argv).json
    findings = []
    for probe in PROBES:
        findings.append(examine(probe))
        if not as_json:
            print(line(findings[-1]), flush=True)
    ready = all(f.status == "works" for f in findings if f.required)
    if as_json:
        print(json.dumps({"ready": ready, "parts": [asdict(f) for f in findings]}, indent=2))
    else:
        print(f"make demo {'can' if ready else 'cannot'} run on this machine")
    return 0 if ready else 1


def examine(probe: Probe) -> Finding:
    """Run one probe in a separate process; a crash or a hang there is a finding, not an error."""
    status, detail = _outcome(probe)
    return Finding(
        name=probe.name,
        status=status,
        detail=detail,
        fix=None if status == "works" else probe.fix,
        required=probe.required,
    )


def line(finding: Finding) -> str:
    """Return the report of one part: a line, and below it the command that fixes it."""
    text = f"{finding.status:<8} {finding.name:<12} {finding.detail}"
    return text if finding.fix is None else f"{text}\n{'':<8} {'':<12} -> {finding.fix}"


def _outcome(probe: Probe) -> tuple[Status, str]:
    target = probe.target or f"vla.probes:{probe.name}"
    code = f"from vla.probes import main; main({target!r})"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=probe.timeout_s,
            env={**ENVIRONMENT, **os.environ},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "broken", f"no answer in {probe.timeout_s:g} s"
    if done.returncode < 0:
        return "broken", f"crashed with signal {-done.returncode}"
    if done.returncode > 0:
        words = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        return "broken", words[-1]
    if not done.stdout.strip():
        return "broken", "ended without an answer"
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return result["status"], result["detail"]
