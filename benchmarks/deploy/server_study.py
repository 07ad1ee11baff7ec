"""The robustness and the cost of a policy server: hostile frames, memory, overhead.

`python -m benchmarks.deploy.server_study FOLDER --frames 1000000`

A real server in another process receives frames that are broken in one of several ways, and
requests that are not allowed; then a client that may act sends broken images and names memories
that the server does not hold. No decision may answer them, the process must survive, and its memory
must not grow. Then the server is timed against the same policy in this process, and under several
clients at once.
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import harness
from deploy.server import jpeg, wire
from deploy.server.client import RemotePolicy
from deploy.server.request import memory
from deploy.server.wire import Closed, FrameReader, Malformed
from vla import cli
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation
from vla.runtime import policy_loader

WARM = 2000
"""Frames before the memory counts: a process grows until its buffers are allocated."""
WARM_DECISIONS = 50
"""Decisions before the clock counts."""
AT = "127.0.0.1:7419"
"""Address of the timed server."""
BATCHING = {
    "each alone": ("--limits.max-batch-size", "1"),
    "whoever waits": (),
    "batched for 2 ms": ("--limits.max-queue-delay-ms", "2"),
}
"""How a server batches several clients, and its flags."""


@dataclass(frozen=True, kw_only=True)
class StudyArgs:
    """Attack a policy server, and time it."""

    folder: tyro.conf.Positional[Path]
    """Exported policy."""
    frames: int = 100_000
    """Hostile frames."""
    images: int = 10_000
    """Hostile requests to act, of a client that is allowed to."""
    decisions: int = 1000
    """Timed decisions."""
    runs: int = 3
    """Repetitions of the timing."""
    clients: int = 0
    """Concurrent clients, each as fast as it is answered; 0 for none."""
    seconds: float = 5.0
    """Duration of each such run."""
    seed: int = 0
    """Seed of everything."""


def hostile(rng: np.random.Generator, policy: ArmPolicy) -> bytes:
    """Return bytes that are no frame, or a frame of a request that is not allowed."""
    size = int(rng.integers(0, 300))
    noise = rng.bytes(size)
    hello = {"do": "hello", "protocol": wire.PROTOCOL, "token": "", "role": "control"}
    kinds = [
        noise,
        wire.MAGIC + noise[:8].ljust(8, b"\xff") + noise,
        wire.PREFIX.pack(wire.MAGIC, size, 0) + noise,
        wire.PREFIX.pack(wire.MAGIC, int(rng.integers(1 << 17, 1 << 32)), 0) + noise,
        wire.PREFIX.pack(wire.MAGIC, 2, int(rng.integers(1 << 26, 1 << 32))) + b"{}",
        _frame({"say": {"do": "act"}, "arrays": [["images", "object", [size]]]}, noise),
        _frame({"say": {"do": "act"}, "arrays": [["images", "uint8", [size, 1 << 24]]]}, noise),
        _frame({"say": {"do": "act"}, "arrays": [["noise", "float32", [-size]]]}, noise),
        _frame(
            {
                "say": {"do": "hello", "protocol": wire.PROTOCOL, "role": "root", "token": ""},
                "arrays": [],
            }
        ),
        _frame(
            {
                "say": {"do": "hello", "protocol": wire.PROTOCOL + 1 + size, "role": "control"},
                "arrays": [],
            }
        ),
        _frame({"say": {"do": "act", "sequence": size}, "arrays": []}),
        _frame({"say": {"do": "__import__('os')"}, "arrays": []}),
        struct.pack(">4sII", b"MNV0", 2, 0) + b"{}",
        b"\x80\x04\x95" + noise,  # as a pickle begins
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"".join(wire.parts(hello))[: -size or -1],
    ]
    return kinds[int(rng.integers(len(kinds)))]


def _frame(head: object, body: bytes = b"") -> bytes:
    text = json.dumps(head).encode()
    return wire.PREFIX.pack(wire.MAGIC, len(text), len(body)) + text + body


def hostile_request(
    rng: np.random.Generator, policy: ArmPolicy
) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return a request to act that is valid but for its images, or the memory that it names."""
    camera, count = policy.robot.cameras[0], len(policy.robot.cameras)
    obs, noise = observed(rng, policy, 0)
    data, lengths = jpeg.encode(obs.images, int(rng.integers(1, 101)))
    raw = data.tobytes()[: int(lengths[0, 0])]
    at = raw.index(b"\xff\xc0")
    size, low, high = at + 5, int(rng.integers(len(raw))), int(rng.integers(256))
    images = [
        raw[:size] + b"\xff\xdc\xff\xdc" + raw[size + 4 :],  # 65500 x 65500
        raw[:size] + rng.bytes(4) + raw[size + 4 :],
        raw[:low],
        raw[:2] + rng.bytes(low + 1),
        raw[: at + 1] + bytes([0xC3 + high % 13]) + raw[at + 2 :],  # arithmetic, lossless, no frame
        raw[: size + 4] + bytes([high if high != 3 else 4]) + raw[size + 5 :],
        raw[:-2] + b"\xff\xda" * (40 + high) + raw[-2:],
        raw[: raw.index(b"\xff\xda")] + b"\xff\xda" + rng.bytes(low),
        b"\x89PNG\r\n\x1a\n" + raw,
        b"",
    ]
    kind = int(rng.integers(len(images) + 1))
    say: dict[str, Any] = {"do": "act", "age_s": 0.0, "task": ["go"]}
    arrays = {
        "time_s": obs.time_s, "noise": noise, "proprio": obs.proprio, "image_ok": obs.image_ok,
    }  # fmt: skip
    if kind == len(images):
        return {**say, "continues": int(rng.integers(-2, 1 << 40))}, {
            **arrays, "images": obs.images
        }  # fmt: skip
    image = np.frombuffer(images[kind], np.uint8)
    fits = 8 <= len(image) <= jpeg.most_bytes(camera.height_px, camera.width_px)
    length = len(image) if fits else int(rng.integers(-8, 1 << 40))
    return say, {
        **arrays, **memory(policy.initial_state(1)), "jpeg": np.tile(image, count),
        "jpeg_bytes": np.full((1, count), length),
    }  # fmt: skip


def observed(
    rng: np.random.Generator, policy: ArmPolicy, decision: int
) -> tuple[Observation, np.ndarray]:
    """Return random images and noise of one row, at a decision of an episode."""
    camera, count = policy.robot.cameras[0], len(policy.robot.cameras)
    obs = Observation(
        images=rng.integers(0, 256, (1, count, camera.height_px, camera.width_px, 3), np.uint8),
        image_ok=np.ones((1, count), np.bool_), proprio=np.array([policy.robot.home], np.float32),
        task=("go",), time_s=np.array([decision * policy.n_action_steps / policy.robot.control_hz]),
    )  # fmt: skip
    return obs, rng.standard_normal((1, *policy.noise_shape), np.float32)


def send(path: str, data: bytes) -> bool | None:
    """Send bytes over a new connection; return whether the answer is ok, None without one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(10)
        connection.connect(path)
        with contextlib.suppress(OSError, Closed, Malformed):
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)

            return bool(FrameReader(connection).read()[0].get("ok"))
    return None


def memory_mb(process: int) -> float:
    """Return the resident memory of a process."""
    pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    return pages * 4096 / 1e6


@contextlib.contextmanager
def serving(folder: Path, at: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Run `vla serve` in another process."""
    line = [sys.executable, "-m", "vla.cli", "serve", str(folder), "--address", at]
    line += ["--limits.max-request-rate-hz", "100000", *more]
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
        reply = send(path, hostile(rng, policy))
        accepted += reply is True
        silent += reply is None
    return {"accepted": accepted, "silent": silent, "before": before, "after": memory_mb(process)}


def abuse(path: str, process: int, args: StudyArgs, policy: ArmPolicy) -> dict[str, float]:
    """Return how many hostile requests got a decision, and the memory before and after."""
    rng, accepted, before = np.random.default_rng(args.seed), 0, 0.0
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(path)
        inbox = FrameReader(connection)
        hello = {"do": "hello", "protocol": wire.PROTOCOL, "token": "", "role": "control"}
        wire.send(connection, wire.parts(hello))
        inbox.read()
        for i in track(range(args.images), "abusing", transient=True):
            before = memory_mb(process) if i == args.images // 10 else before
            say, arrays = hostile_request(rng, policy)
            wire.send(connection, wire.parts({**say, "sequence": i}, arrays))
            accepted += inbox.read()[0].get("ok") is True
    return {"accepted": accepted, "before": before, "after": memory_mb(process)}


def overhead(folder: Path, at: str, args: StudyArgs) -> tuple[np.ndarray, np.ndarray]:
    """Return seconds f64 [runs, decisions] of the policy in this process, and of the server."""
    policy, rng = (
        policy_loader.open_policy(folder, threads=1).policy,
        np.random.default_rng(args.seed),
    )
    times = np.zeros((2, args.runs, WARM_DECISIONS + args.decisions))
    with RemotePolicy(at) as remote:
        for run in range(args.runs):
            state = policy.initial_state(1)
            for i in range(times.shape[-1]):
                obs, noise = observed(rng, policy, i)
                for j in (i % 2, 1 - i % 2):
                    begin = time.perf_counter()
                    _, new = (policy, remote)[j].act(obs, state, noise)
                    times[j, run, i] = time.perf_counter() - begin
                state = new
    return times[0, :, WARM_DECISIONS:], times[1, :, WARM_DECISIONS:]


def throughput(at: str, clients: int, seconds: float) -> tuple[float, float]:
    """Return decisions per second of all clients together, and the mean batch size."""
    begin = time.perf_counter()

    def drive(remote: RemotePolicy, seed: int) -> int:
        rng, state, k = np.random.default_rng(seed), remote.initial_state(1), 0
        while time.perf_counter() - begin < seconds:
            obs, noise = observed(rng, remote, k)
            state, k = remote.act(obs, state, noise)[1], k + 1
        return k

    with contextlib.ExitStack() as stack, ThreadPoolExecutor(clients) as pool:
        remotes = [stack.enter_context(RemotePolicy(at)) for _ in range(clients)]
        count = sum(pool.map(drive, remotes, range(clients)))
        rate = count / (time.perf_counter() - begin)
        return rate, remotes[0].health()["mean_rows"]


def crowd_table(folder: Path, args: StudyArgs) -> Table:
    """Return decisions per second of 1, 2, 4, ... clients, alone and batched."""
    table = Table(title=f"{folder}: decisions per second (mean rows of a call)")
    table.add_column("clients", justify="right")
    for name in BATCHING:
        table.add_column(name, justify="right")
    counts = [2**i for i in range(args.clients.bit_length()) if 2**i < args.clients]
    for clients in (*counts, args.clients):
        row = [str(clients)]
        for more in BATCHING.values():
            limits = ["--limits.max-clients", str(clients),
                      "--limits.max-observation-age-s", "10", *more]  # fmt: skip
            with serving(folder, AT, *limits):
                rate, rows = throughput(AT, clients, args.seconds)
            row.append(f"{rate:.0f} ({rows:.1f})")
        table.add_row(*row)
    return table


def main(argv: list[str]) -> int:
    """Run the study; 1 if a frame was accepted or the server died."""
    args = harness.read(StudyArgs, argv, "deploy.server_study")
    console = Console(highlight=False)
    policy = policy_loader.open_policy(args.folder, threads=1).policy
    table = Table(title=f"{args.folder}: policy server")
    table.add_column("quantity")
    table.add_column("value", justify="right")
    bad = False
    if args.frames or args.images:
        bad = under_attack(args, policy, table)
    if args.decisions:
        with serving(args.folder, AT):
            local, served = overhead(args.folder, AT, args)
        for run, (one, other) in enumerate(zip(local, served, strict=True)):
            p50 = [1e3 * float(np.median(t)) for t in (one, other, other - one)]
            table.add_row(
                f"run {run}: decision p50, in process / over loopback, paired difference",
                f"{p50[0]:.2f} / {p50[1]:.2f}, {p50[2]:.2f} ms",
            )
    if table.rows:
        console.print(table)
    if args.clients:
        console.print(crowd_table(args.folder, args))
    return int(bad)


def under_attack(args: StudyArgs, policy: ArmPolicy, table: Table) -> bool:
    """Attack a server and add the results to a table; return whether it gave in."""
    with tempfile.TemporaryDirectory() as place:
        path = f"{place}/socket"
        with serving(args.folder, f"unix:{path}") as process:
            begin = time.perf_counter()
            attacked = attack(path, process.pid, args, policy)
            seconds = time.perf_counter() - begin
            abused = abuse(path, process.pid, args, policy)
            with RemotePolicy(f"unix:{path}", role="watch") as watcher:
                health = watcher.health()
            alive = process.poll() is None
    for what, result in (
        ("hostile frames", f"{args.frames:,} in {seconds:.0f} s"),
        ("accepted", f"{attacked['accepted']:.0f}"),
        ("hung up without an answer", f"{attacked['silent']:.0f}"),
        (f"memory after {WARM:,} frames, at the end",
         f"{attacked['before']:.1f} MB, {attacked['after']:.1f} MB"),
        ("hostile images and memories of a client that may act", f"{args.images:,}"),
        ("accepted", f"{abused['accepted']:.0f}"),
        ("memory after a tenth of them, at the end",
         f"{abused['before']:.1f} MB, {abused['after']:.1f} MB"),
        ("decisions made", f"{health['decisions']}"),
        ("server alive and answering", "yes" if alive else "no"),
    ):  # fmt: skip
        table.add_row(what, result)
    return bool(attacked["accepted"] or abused["accepted"] or health["decisions"] or not alive)


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.deploy.server_study:main", sys.argv[1:]))
