"""Strangers that crowd a policy server, and its memory over many decisions.

`python -m benchmarks.deploy.server_soak FOLDER --decisions 1000000`

Strangers connect, say nothing and come back as soon as they are hung up on, over TCP, TLS and a
Unix socket, while a client with the token connects anew again and again. Exit code 1 if one of its
hellos takes more than a second, or the server's memory grows by more than `GROWTH` between a tenth
of the decisions and their end.
"""

import contextlib
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks import harness
from benchmarks.deploy.server_study import memory_mb, observed, serving
from deploy.server.client import RemotePolicy
from vla import cli
from vla.contracts.config import validate_min

HELLO_S = 1.0
"""Longest time in which a client with the token must be let in."""
HELLO_PERIOD_S = 0.1
"""Pause between two hellos: the strangers are to come back meanwhile."""
GROWTH = 1.02
"""Largest ratio of the memory at the end to that after a tenth of the decisions."""
TOKEN = "correct horse battery staple"
TCP = "127.0.0.1:7421"


@dataclass(frozen=True, kw_only=True)
class SoakArgs:
    """Crowd a policy server with strangers, then let it decide for long."""

    folder: tyro.conf.Positional[Path]
    """Exported policy."""
    strangers: int = 24
    """Connections that come back; 0 for none of this."""
    hellos: int = 200
    """Hellos of the client with the token, over each kind of connection."""
    decisions: int = 100_000
    """Decisions of one client; 0 for none of this."""

    def __post_init__(self) -> None:
        validate_min(self, strangers=0, hellos=1, decisions=0)


def certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate of 127.0.0.1 and its key."""
    made = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "1", "-subj", "/CN=127.0.0.1",
         "-addext", "subjectAltName=IP:127.0.0.1", "-out", made[0], "-keyout", made[1]],
        check=True, capture_output=True,
    )  # fmt: skip
    return made


@contextlib.contextmanager
def crowd(address: str, count: int) -> Iterator[list[int]]:
    """Let strangers connect and come back; yield how often each did."""
    over, visits = threading.Event(), [0] * count

    def visit(number: int) -> None:
        while not over.is_set():
            with contextlib.suppress(OSError), _connected(address) as connection:
                visits[number] += 1
                connection.settimeout(0.2)
                while not over.is_set():
                    try:
                        if not connection.recv(1 << 12):
                            break
                    except TimeoutError:
                        pass

    threads = [threading.Thread(target=visit, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield visits
    finally:
        over.set()
        for thread in threads:
            thread.join()


def _connected(address: str) -> socket.socket:
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(address.removeprefix("unix:"))
        return connection
    host, port = address.rsplit(":", 1)
    return socket.create_connection((host, int(port)), timeout=5)


def hellos(address: str, args: SoakArgs, **how: str | Path) -> tuple[np.ndarray, int]:
    """Return the seconds of each hello, inf of one that failed, and the strangers' visits."""
    seconds = np.full(args.hellos, np.inf)
    with crowd(address, args.strangers) as visits:
        time.sleep(1.0)  # all have come
        for i in range(args.hellos):
            begin = time.perf_counter()
            with contextlib.suppress(ValueError), RemotePolicy(address, **how):  # type: ignore[arg-type]
                seconds[i] = time.perf_counter() - begin
            time.sleep(HELLO_PERIOD_S)
        return seconds, sum(visits)


def crowded(args: SoakArgs, table: Table) -> bool:
    """Measure hellos among strangers over each kind of connection; return whether one was late."""
    late = False
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "token").write_text(TOKEN)
        (folder / "token").chmod(0o600)
        cert, key = certificate(folder)
        token = ("--token-file", str(folder / "token"))
        tls = (*token, "--certificate", str(cert), "--key", str(key))
        for name, at, flags, how in (
            ("TCP with a token", TCP, token, {"token": TOKEN}),
            ("TLS with a token", TCP, tls, {"token": TOKEN, "authority": cert}),
            ("Unix socket", f"unix:{folder / 's'}", (), {}),
        ):
            with serving(args.folder, at, *flags):
                seconds, visits = hellos(at, args, **how)
            inside = int((seconds <= HELLO_S).sum())
            late |= inside < len(seconds)
            table.add_row(
                f"{name}: {args.strangers} strangers, {visits:,} visits; hellos within "
                f"{HELLO_S:g} s, p50 / longest",
                f"{inside} of {len(seconds)}, {1e3 * np.median(seconds):.1f} / "
                f"{1e3 * seconds.max():.1f} ms",
            )
    return late


def soak(args: SoakArgs, table: Table) -> bool:
    """Let one client decide for long; return whether the server's memory grew."""
    marks: list[float] = []
    with tempfile.TemporaryDirectory() as place:
        at = f"unix:{place}/s"
        with serving(args.folder, at) as process, RemotePolicy(at) as remote:
            rng = np.random.default_rng(0)
            pool = [observed(rng, remote, 0) for _ in range(16)]
            state, period_s = (
                remote.initial_state(1),
                remote.n_action_steps / remote.robot.control_hz,
            )
            begin = time.perf_counter()
            for i in track(range(args.decisions), "deciding", transient=True):
                step = i % 100  # of an episode
                state = remote.initial_state(1) if step == 0 else state
                obs, noise = pool[i % len(pool)]
                obs.time_s[:] = step * period_s
                _, state = remote.act(obs, state, noise)
                if (i + 1) % max(1, args.decisions // 10) == 0:
                    marks.append(memory_mb(process.pid))
            rate = args.decisions / (time.perf_counter() - begin)
    table.add_row(f"{args.decisions:,} decisions of one client", f"{rate:.0f} a second")
    table.add_row("memory after each tenth", ", ".join(f"{m:.1f}" for m in marks) + " MB")
    return marks[-1] > GROWTH * marks[0]


def main(argv: list[str]) -> int:
    """Run both; 1 if a client was kept waiting, or the memory grew."""
    args = harness.read(SoakArgs, argv, "deploy.server_soak")
    table = Table("quantity", "value", title=f"{args.folder}: policy server")
    bad = bool(args.strangers) and crowded(args, table)
    if args.decisions:
        bad |= soak(args, table)
    Console(highlight=False, width=140).print(table)
    return int(bad)


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.deploy.server_soak:main", sys.argv[1:]))
