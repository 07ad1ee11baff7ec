"""What a policy server stands, and what it costs: hostile frames, its memory, its overhead.

`python -m deploy.server_study FOLDER --frames 1000000`

A real server in a process of its own gets frames that are no frames, each broken in one of several
ways, and frames that may not be done. None may be answered by a decision, the process must live,
and its memory must stay. Then a client asks for decisions beside the same policy in its own
process.
"""

import contextlib
import json
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from deploy import wire
from deploy.client import RemotePolicy
from deploy.wire import Closed, Malformed
from vla import opening
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation

WARM = 2000
"""Frames before the memory counts: a process grows until its buffers are there."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Attack a policy server, and time it."""

    folder: tyro.conf.Positional[Path]
    """What `vla export` wrote."""
    frames: int = 100_000
    """Hostile frames."""
    decisions: int = 1000
    """Timed decisions."""
    seed: int = 0
    """Of everything."""


def hostile(rng: np.random.Generator, policy: ArmPolicy) -> bytes:
    """Return bytes that are no frame, or a frame of what may not be done."""
    size = int(rng.integers(0, 300))
    noise = rng.bytes(size)
    kinds = [
        noise,
        wire.MAGIC + noise[:8].ljust(8, b"\xff") + noise,
        wire.PREFIX.pack(wire.MAGIC, size, 0) + noise,
        wire.PREFIX.pack(wire.MAGIC, int(rng.integers(1 << 17, 1 << 32)), 0) + noise,
        wire.PREFIX.pack(wire.MAGIC, 2, int(rng.integers(1 << 26, 1 << 32))) + b"{}",
        _frame({"say": {"do": "act"}, "arrays": [["images", "object", [size]]]}, noise),
        _frame({"say": {"do": "act"}, "arrays": [["images", "uint8", [size, 1 << 24]]]}, noise),
        _frame({"say": {"do": "act"}, "arrays": [["noise", "float32", [-size]]]}, noise),
        _frame({"say": {"do": "hello", "protocol": 1, "role": "root", "token": ""}, "arrays": []}),
        _frame({"say": {"do": "hello", "protocol": 2 + size, "role": "control"}, "arrays": []}),
        _frame({"say": {"do": "act", "sequence": size}, "arrays": []}),
        _frame({"say": {"do": "__import__('os')"}, "arrays": []}),
        struct.pack(">4sII", b"MNV2", 2, 0) + b"{}",
        b"\x80\x04\x95" + noise,  # as a pickle begins
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        wire.pack({"do": "hello", "protocol": 1, "token": "", "role": "control"})[: -size or -1],
    ]
    return kinds[int(rng.integers(len(kinds)))]


def _frame(head: object, body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return wire.PREFIX.pack(wire.MAGIC, len(text), len(body)) + text + body


def send(path: str, data: bytes) -> bool | None:
    """Send bytes over a connection of their own; return what the answer says, None without one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(path)
        with contextlib.suppress(OSError, Closed, Malformed):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)

            return bool(wire.unpack(lambda size: wire.exactly(connection, size))[0].get("ok"))
    return None


def memory_mb(process: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


@contextlib.contextmanager
def serving(folder: Path, at: str) -> Iterator[subprocess.Popen[str]]:
    """Run `vla serve` in a process of its own."""
    line = [sys.executable, "-m", "vla.cli", "serve", str(folder), "--at", at]
    line += ["--limits.rate-hz", "100000"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    if "served at" not in process.stdout.readline():
        raise ValueError(f"`{' '.join(line[2:])}` did not begin to serve; see above")
    try:
        yield process
    finally:
        process.terminate()
        process.wait(20)


def attack(path: str, process: int, args: StudyArgs, policy: ArmPolicy) -> dict[str, float]:
    """Return how many frames were accepted or not answered, and the memory before and after."""
    rng, accepted, silent, before = np.random.default_rng(args.seed), 0, 0, 0.0
    for i in track(range(WARM + args.frames), "attacking", transient=True):
        before = memory_mb(process) if i == WARM else before
        said = send(path, hostile(rng, policy))
        accepted += said is True
        silent += said is None
    return {"accepted": accepted, "silent": silent, "before": before, "after": memory_mb(process)}


def overhead(folder: Path, at: str, args: StudyArgs) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds f64 [decisions] of the policy in this process, and of the server's."""
    policy, rng = opening.open_(folder, threads=1).policy, np.random.default_rng(args.seed)
    camera, count = policy.robot.cameras[0], len(policy.robot.cameras)
    times: tuple[list[float], list[float]] = ([], [])
    with RemotePolicy(at) as remote:
        state = policy.initial_state(1)
        for i in range(50 + args.decisions):
            obs = Observation(
                images=rng.integers(
                    0, 256, (1, count, camera.height_px, camera.width_px, 3), np.uint8
                ),
                image_ok=np.ones((1, count), np.bool_),
                proprio=np.array([policy.robot.home], np.float32), task=("go",),
                time_s=np.array([i * policy.execute / policy.robot.control_hz]),
            )  # fmt: skip
            noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
            for j in (i % 2, 1 - i % 2):
                begin = time.perf_counter()
                _, new = (policy, remote)[j].act(obs, state, noise)
                times[j].append(time.perf_counter() - begin)
            state = new
    return np.array(times[0][50:]), np.array(times[1][50:])


def main() -> int:
    """Run the study; 1 if a frame was accepted or the server died."""
    args = tyro.cli(StudyArgs)
    policy = opening.open_(args.folder, threads=1).policy
    with tempfile.TemporaryDirectory() as place:
        path = f"{place}/socket"
        with serving(args.folder, f"unix:{path}") as process:
            begin = time.perf_counter()
            found = attack(path, process.pid, args, policy)
            seconds = time.perf_counter() - begin
            with RemotePolicy(f"unix:{path}", role="watch") as watcher:
                health = watcher.health()
            alive = process.poll() is None
    with serving(args.folder, "127.0.0.1:7419"):
        own, served = overhead(args.folder, "127.0.0.1:7419", args)
    table = Table(title=f"{args.folder}: policy server")
    table.add_column("what")
    table.add_column("found", justify="right")
    table.add_row("hostile frames", f"{args.frames:,} in {seconds:.0f} s")
    table.add_row("accepted", f"{found['accepted']:.0f}")
    table.add_row("decisions made", f"{health['decisions']}")
    table.add_row("hung up without an answer", f"{found['silent']:.0f}")
    table.add_row("server alive and answering", "yes" if alive else "no")
    table.add_row(
        f"memory after {WARM:,} frames, at the end",
        f"{found['before']:.1f} MB, {found['after']:.1f} MB",
    )
    p50 = [1e3 * float(np.median(t)) for t in (own, served)]
    table.add_row("decision p50, in process / over loopback", f"{p50[0]:.2f} / {p50[1]:.2f} ms")
    table.add_row("overhead", f"{1e3 * float(np.median(served - own)):.2f} ms")
    Console(highlight=False).print(table)
    return int(found["accepted"] > 0 or health["decisions"] > 0 or not alive)


if __name__ == "__main__":
    sys.exit(main())
