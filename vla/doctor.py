"""`vla doctor`: what works on this machine, and the command that mends what does not.

It imports the standard library alone, so that it still speaks where nothing else is installed.
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
    """One part of the machine and how to look at it."""

    name: str
    """What the line is called."""
    target: str
    """The experiment, as "module:function"."""
    mend: str
    """Command that mends it."""
    required: bool = False
    """`make demo` cannot run without it."""
    timeout_s: float = 60.0
    """Longer silence than this counts as broken."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What a probe found."""

    name: str
    """Name of the probe."""
    status: Status
    """Works, is not there, or is there and fails."""
    detail: str
    """What was seen, in a few words."""
    mend: str | None
    """Command that mends it; None where it works."""
    required: bool
    """`make demo` cannot run without it."""


PIP = "pip install -e '.[{}]'"
PROBES = (
    Probe(
        name="python",
        target="vla.probes:python",
        mend="apt-get install -y python3.11 python3.11-venv && make clean demo",
        required=True,
    ),
    Probe(name="cores", target="vla.probes:cores", mend="nproc --all"),
    Probe(name="memory", target="vla.probes:memory", mend="ps aux --sort=-rss", required=True),
    Probe(
        name="disk", target="vla.probes:disk", mend="du -xh -d 1 . | sort -h | tail", required=True
    ),
    Probe(
        name="egl",
        target="vla.probes:egl",
        mend="apt-get install -y libegl1 libegl-mesa0 libgl1-mesa-dri",
        required=True,
    ),
    Probe(name="torch", target="vla.probes:torch", mend=PIP.format("train"), required=True),
    Probe(name="gpu", target="vla.probes:gpu", mend="nvidia-smi  # then install its driver"),
    Probe(name="lerobot", target="vla.probes:lerobot", mend=PIP.format("train"), required=True),
    Probe(name="video", target="vla.probes:video", mend=PIP.format("train"), required=True),
    Probe(name="torchcodec", target="vla.probes:torchcodec", mend="apt-get install -y ffmpeg"),
    Probe(name="rerun", target="vla.probes:rerun", mend=PIP.format("view")),
    Probe(name="transformers", target="vla.probes:transformers", mend=PIP.format("train")),
    Probe(name="onnxruntime", target="vla.probes:onnxruntime", mend=PIP.format("deploy")),
    Probe(name="tensorrt", target="vla.probes:tensorrt", mend="pip install tensorrt"),
    Probe(name="rclpy", target="vla.probes:rclpy", mend=PIP.format("ros")),
)
"""Parts in the order of the report."""

ENVIRONMENT = {
    "MUJOCO_GL": "egl",
    "HF_HUB_OFFLINE": "1",
    "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
    "FASTDDS_BUILTIN_TRANSPORTS": "UDPv4",
}
"""Set for the probes where the user has not set them."""


def main(argv: list[str]) -> int:
    """Run every probe; return 1 if something is broken or missing that `make demo` needs."""
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
    """Run one probe in a process of its own; a crash or a hang there is a finding, not an error."""
    status, detail = _outcome(probe)
    return Finding(
        name=probe.name,
        status=status,
        detail=detail,
        mend=None if status == "works" else probe.mend,
        required=probe.required,
    )


def line(finding: Finding) -> str:
    """Return the report of one part: one line, and below it the command that mends it."""
    text = f"{finding.status:<8} {finding.name:<12} {finding.detail}"
    return text if finding.mend is None else f"{text}\n{'':<8} {'':<12} -> {finding.mend}"


def _outcome(probe: Probe) -> tuple[Status, str]:
    code = f"from vla.probes import main; main({probe.target!r})"
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
