"""Listening sockets of a policy server, and who is at the other end of a connection."""

import os
import socket
import struct
from pathlib import Path

from deploy.server import wire

BACKLOG = 64
"""Connections that wait to be accepted."""
KEEPALIVE_S, VANISHED_S = 4, 8
"""Silence after which the system asks a TCP connection's other side whether it is there, and after
which, without an answer, it ends the connection, in s."""


def listen(address: str, token: str, tls: bool) -> socket.socket:
    """Return a listening socket.

    Args:
        address: "unix:PATH", or "HOST:PORT"; port 0 is a free one.
        token: Token of clients.
        tls: Whether connections are encrypted.

    Raises:
        ValueError: the address is malformed, or other machines can reach it and there is no token
            or no TLS, or another server listens there.
    """
    if address.startswith("unix:"):
        path = Path(address.removeprefix("unix:"))
        if path.exists() and not path.is_socket():
            raise ValueError(f"{path}: is there and no socket; give another --address")
        if _is_listening(path):
            raise ValueError(
                f"{path}: another server listens there; stop it, or give another --address"
            )
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        path.chmod(0o600)  # the owner alone
    else:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise ValueError(f"address: got {address!r}, expected unix:PATH or HOST:PORT")
        if not wire.is_loopback(host) and not (token and tls):
            raise ValueError(
                f"address: {host} can be reached from elsewhere, which needs --token-file and "
                "--certificate with --key; or serve at 127.0.0.1 or unix:PATH"
            )
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host.strip("[]"), int(port)))
    listener.listen(BACKLOG)
    return listener


def foreign_user(connection: socket.socket) -> int | None:
    """Return the user at the other end of a Unix socket, None if it is ours or root, or of TCP."""
    option = getattr(socket, "SO_PEERCRED", None)  # of Linux
    if connection.family != socket.AF_UNIX or option is None:
        return None
    form = struct.Struct("3i")  # process, user, group
    _, user, _ = form.unpack(connection.getsockopt(socket.SOL_SOCKET, option, form.size))
    return None if user in (os.geteuid(), 0) else user


def set_options(connection: socket.socket) -> None:
    """Let a TCP connection send at once, and end when its other side has vanished."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_NODELAY", 1), ("TCP_KEEPIDLE", KEEPALIVE_S), ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", VANISHED_S - KEEPALIVE_S), ("TCP_USER_TIMEOUT", 1000 * VANISHED_S),
    ):  # fmt: skip
        if hasattr(socket, name):  # macOS lacks some
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _is_listening(path: Path) -> bool:
    """Whether a server answers at a Unix socket, or may; False if a dead server left it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # a full queue would block
        try:
            probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return False
        except OSError:  # its queue is full, or its permissions deny us
            return True
    return True
