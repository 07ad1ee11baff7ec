"""`vla serve`: an exported policy, or a checkpoint, behind a socket."""

import contextlib
import logging
import signal
import ssl
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prometheus_client import generate_latest
from rich.console import Console

from deploy.server import sockets
from deploy.server.metrics_http import MetricsServer
from deploy.server.server import Limits, Server
from vla.contracts.config import validate_min
from vla.runtime import policy_loader
from vla.utils import arguments

MIN_TOKEN_LENGTH = 16
"""Shortest token, in characters."""


@dataclass(frozen=True, kw_only=True)
class ServeArgs:
    """Serve a policy to a robot's computer or to simulators."""

    address: str = "127.0.0.1:7410"
    """unix:PATH or HOST:PORT (port 0: a free one); other machines need a token and TLS."""
    token_file: Path | None = None
    """File with the token of clients."""
    certificate: Path | None = None
    """The server's TLS certificate (PEM)."""
    key: Path | None = None
    """Its private key (PEM)."""
    threads: int = 1
    """CPU threads of the policy."""
    targets: tuple[str, ...] = ()
    """Inference targets in order of preference: torch or torch-compile for a checkpoint,
    onnxruntime, tensorrt and others for an exported policy; the first that runs it here is used."""
    reference_checkpoint: Path | None = None
    """Checkpoint of an exported policy, if targets name torch or torch-compile."""
    metrics_port: int | None = None
    """Port on 127.0.0.1 of /metrics (Prometheus), /livez and /readyz; 0 for a free one."""
    limits: Limits = field(default_factory=Limits)
    """Limits of clients, and dynamic batching."""

    def __post_init__(self) -> None:
        validate_min(self, threads=1)
        if (self.certificate is None) != (self.key is None):
            raise ValueError(
                f"certificate {self.certificate} and key {self.key}: TLS needs both; give both or "
                "neither"
            )


def read_token(path: Path | None) -> str:
    """Return the token in a file, "" if there is none.

    Raises:
        ValueError: it is too short, or other users can read it.
    """
    if path is None:
        return ""
    token = path.read_text().strip()
    if len(token) < MIN_TOKEN_LENGTH:
        raise ValueError(
            f"{path}: a token of {len(token)} characters, expected {MIN_TOKEN_LENGTH} or more; "
            f"make one with: openssl rand -hex 16 > {path}"
        )
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path}: others can read the token; chmod 600 {path}")
    return token


def tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return the TLS context of connections, None without a certificate.

    Raises:
        ValueError: certificate and key cannot be used.
    """
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise ValueError(
            f"{certificate}, {key}: no TLS certificate and its key ({error.reason}); give PEM files"
        ) from error
    return context


def pages(serving: Server) -> dict[str, Callable[[], tuple[int, str]]]:
    """Return what a `MetricsServer` answers, by path."""

    def state(good: bool, word: str) -> tuple[int, str]:
        return (200, f"{word}\n") if good else (503, f"not {word}\n")

    return {
        "/metrics": lambda: (200, generate_latest(serving).decode()),
        "/livez": lambda: state(serving.is_alive, "alive"),
        "/readyz": lambda: state(serving.is_ready, "ready"),
    }


def main(argv: list[str]) -> int:
    """Run `vla serve FOLDER`; ends by Ctrl-C or SIGTERM.

    Raises:
        ValueError: the policy is damaged, or the address is refused.
    """
    if not argv or argv[0].startswith("-"):
        print("usage: vla serve FOLDER [--address unix:PATH | HOST:PORT] [--token-file FILE] ...")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    args = arguments.read(ServeArgs, argv[1:], "vla serve FOLDER")
    token, context = read_token(args.token_file), tls(args.certificate, args.key)
    loaded = policy_loader.open_policy(
        Path(argv[0]), args.threads, args.targets, reference_checkpoint=args.reference_checkpoint
    )
    listener = sockets.listen(args.address, token, context is not None)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    about = {"task": loaded.task.get("type"), "step": loaded.step, "target": loaded.target}
    with contextlib.ExitStack() as stack:
        serving = stack.enter_context(
            Server(
                loaded.policy, listener, token=token, tls=context, limits=args.limits, about=about
            )
        )
        for one in (signal.SIGTERM, signal.SIGINT):
            signal.signal(one, lambda *_: serving.stop())
        address = args.address
        is_unix = address.startswith("unix:")
        where = address if is_unix else _address(listener.getsockname())
        console = Console(highlight=False, soft_wrap=True)
        served = f"{loaded.folder}: served at {where}, target: {loaded.target}"
        lines = [*loaded.refusals()]
        if args.metrics_port is not None:
            port = stack.enter_context(MetricsServer(args.metrics_port, pages(serving))).port
            lines.append(f"metrics at http://127.0.0.1:{port}/metrics")
        for line in (*lines, served):
            console.print(line, markup=False)
        serving.serve()
        if is_unix:  # before it is closed: then another server may take the path
            Path(address.removeprefix("unix:")).unlink(missing_ok=True)
    print("stopped")
    return 0


def _address(name: tuple[Any, ...]) -> str:
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{host}:{name[1]}"
