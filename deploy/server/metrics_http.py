"""Metrics, liveness and readiness over HTTP, on this machine alone.

    GET /metrics    Prometheus' text format
    GET /livez      200 while connections are accepted, else 503
    GET /readyz     200 if a client may say hello, 503 while the server drains

Nothing else is answered. A foreign Host is refused: a web page could otherwise read the answers
through a name that it points here (DNS rebinding).
"""

import contextlib
import socket
import threading
from collections import deque
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOST = "127.0.0.1"
MOST = 32
"""Most connections at once; then the oldest is hung up on."""
SILENT_S = 5.0
"""How long a connection may be silent, in s."""
Page = Callable[[], tuple[int, str]]
"""Returns the status and text of a page."""


class MetricsServer:
    """Answers at a port of 127.0.0.1 until it is closed. A context manager.

    Args:
        port: Port; 0 for a free one.
        pages: Pages by path.

    Raises:
        ValueError: the port is taken or not allowed.
    """

    def __init__(self, port: int, pages: Mapping[str, Page]) -> None:
        try:
            self.http = _Http((HOST, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"metrics_port: got {port}, which cannot be used ({error}); give a free port of "
                "1024 to 65535, or 0 for any"
            ) from error
        self.http.pages, self.port = pages, self.http.server_address[1]
        self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
        self.thread.start()

    def __enter__(self) -> "MetricsServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.shutdown()
        self.http.server_close()


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    pages: Mapping[str, Page] = {}

    def __init__(self, *more: Any) -> None:
        self.latest: deque[socket.socket] = deque()
        super().__init__(*more)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread; hang up on the oldest of too many connections."""
        self.latest.append(request)
        if len(self.latest) > MOST:
            with contextlib.suppress(OSError):  # most have ended long ago
                self.latest.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up or is silent is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = SILENT_S
    server: _Http

    def do_GET(self) -> None:
        """Answer a page."""
        port = self.server.server_address[1]
        if self.headers.get_all("Host") not in ([f"{HOST}:{port}"], [f"localhost:{port}"]):
            self.send_error(403, f"expected Host {HOST}:{port} or localhost:{port}")
        elif self.path not in self.server.pages:
            self.send_error(404, f"expected {', '.join(self.server.pages)}")
        else:
            self._answer(*self.server.pages[self.path]())

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer in plain text; an unknown method (501) is one that is not allowed."""
        if code == 501:
            code, message = 405, "expected GET"
        self._answer(code, f"{message or 'refused'}\n")

    def _answer(self, status: int, page: str) -> None:
        body = page.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        if status == 405:
            self.send_header("Allow", "GET")
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def version_string(self) -> str:
        """Name no versions."""
        return "mneme"

    def log_message(self, *_: Any) -> None:
        """Log nothing: a scrape every few seconds is no news."""
