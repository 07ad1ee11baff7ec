"""`vla serve`: an exported policy, or a checkpoint, behind a socket."""

import logging
import signal
import ssl
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from deploy import server
from deploy.server import Limits, Server
from vla import arguments, opening
from vla.contracts.config import check_least

LEAST_TOKEN = 16
"""Shortest token, in characters."""


@dataclass(frozen=True, kw_only=True)
class ServeArgs:
    """Serve a policy to a robot's computer or to simulators."""

    at: str = "127.0.0.1:7410"
    """unix:PATH or HOST:PORT (port 0: a free one); reachable from elsewhere only with token and
    TLS."""
    token_file: Path | None = None
    """File with the token that clients must know."""
    certificate: Path | None = None
    """The server's TLS certificate (PEM)."""
    key: Path | None = None
    """Its private key (PEM)."""
    threads: int = 1
    """CPU threads of the policy."""
    targets: tuple[str, ...] = ()
    """Who may run the policy, in order: of a checkpoint torch or torch-compile, of an exported
    policy onnxruntime, tensorrt and others; the first that decides on this machine does."""
    against: Path | None = None
    """The checkpoint that an exported policy is of, if targets name torch or torch-compile."""
    limits: Limits = field(default_factory=Limits)
    """What clients may do."""

    def __post_init__(self) -> None:
        """Refuse what does not go together."""
        check_least(self, threads=1)
        if (self.certificate is None) != (self.key is None):
            raise ValueError(
                f"certificate {self.certificate} and key {self.key}: TLS needs both; give both or "
                "neither"
            )


def read_token(path: Path | None) -> str:
    """Return the token in a file, "" if there is none.

    Raises:
        ValueError: it is too short, or others than its owner can read it.
    """
    if path is None:
        return ""
    token = path.read_text().strip()
    if len(token) < LEAST_TOKEN:
        raise ValueError(
            f"{path}: a token of {len(token)} characters, expected {LEAST_TOKEN} or more; make one "
            f"with: openssl rand -hex 16 > {path}"
        )
    if path.stat().st_mode & 0o077:
        raise ValueError(f"{path}: others can read the token; chmod 600 {path}")
    return token


def tls(certificate: Path | None, key: Path | None) -> ssl.SSLContext | None:
    """Return what encrypts connections, None without a certificate.

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


def main(argv: list[str]) -> int:
    """Run `vla serve FOLDER`; ends by Ctrl-C or SIGTERM.

    Raises:
        ValueError: the policy is damaged, or the address may not be served.
    """
    if not argv or argv[0].startswith("-"):
        print("usage: vla serve FOLDER [--at unix:PATH | HOST:PORT] [--token-file FILE] ...")
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    args = arguments.read(ServeArgs, argv[1:], "vla serve FOLDER")
    token, context = read_token(args.token_file), tls(args.certificate, args.key)
    found = opening.open_(Path(argv[0]), args.threads, args.targets, against=args.against)
    listener = server.listen(args.at, token, context is not None)
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s %(message)s")
    about = {"task": found.task.get("type"), "step": found.step, "target": found.target}
    with Server(
        found.policy, listener, token=token, tls=context, limits=args.limits, about=about
    ) as serving:

        def stop(*_: Any) -> None:
            serving.over.set()  # `serve` looks at it five times a second

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        where = args.at if args.at.startswith("unix:") else _address(listener.getsockname())
        console = Console(highlight=False, soft_wrap=True)
        served = f"{found.folder}: served at {where}, target: {found.target}"
        for line in (*found.refusals(), served):
            console.print(line, markup=False)
        serving.serve()
        if args.at.startswith("unix:"):  # while it is still ours: once closed, another may take it
            Path(args.at.removeprefix("unix:")).unlink(missing_ok=True)
    print("stopped")
    return 0


def _address(name: tuple[Any, ...]) -> str:
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"{host}:{name[1]}"
