"""Base of a web server for local pages: access control and responses.

Access needs the printed address, which contains a random token; requests that name another host (a
web page that points its name at this machine) are refused. Subclasses add the pages and actions.
"""

import abc
import http
import json
import secrets
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

HOST = "127.0.0.1"
MAX_BODY_BYTES = 4096


class Answer(NamedTuple):
    """Response to a request."""

    body: bytes
    kind: str
    """Content type."""


def as_json(value: Any) -> Answer:
    """Return an answer that is JSON."""
    return Answer(json.dumps(value).encode(), "application/json")


class Refused(Exception):
    """A request that is answered by a status and a sentence only."""

    def __init__(self, status: http.HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class LocalServer(ThreadingHTTPServer):
    """Listens on this machine. A context manager.

    Args:
        port: Port on this machine; a free one if 0.
        handler: Answers requests.

    Raises:
        OSError: the port is taken.
        OverflowError: there is no such port.
    """

    daemon_threads = True
    policy = "default-src 'none'"
    """Content security policy of every answer."""

    def __init__(self, port: int, handler: type["LocalHandler"]) -> None:
        self.token = secrets.token_urlsafe(16)
        super().__init__((HOST, port), handler)  # closes itself if the port is taken

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """Host names that a request may use."""
        return f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that close the connection during a request."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


class LocalHandler(BaseHTTPRequestHandler, abc.ABC):
    """Checks access and sends the responses of `get` and `post`."""

    server: Any
    protocol_version = "HTTP/1.1"
    timeout = 60

    @abc.abstractmethod
    def get(self, path: str) -> None:
        """Send the page at a path behind the token.

        Raises:
            Refused: there is none.
            ValueError: the request is malformed.
        """

    @abc.abstractmethod
    def post(self, path: str, body: dict[str, Any]) -> None:
        """Perform the action of a path behind the token with a request body; errors as `get`."""

    def do_GET(self) -> None:
        """Handle GET and HEAD."""
        self._answer(self.get)

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        """Handle POST."""
        self._answer(lambda path: self.post(path, self._body()))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing: the terminal is for the address."""

    def send(self, answer: Answer, status: http.HTTPStatus = http.HTTPStatus.OK) -> None:
        """Send an answer."""
        self.head(status, answer.kind, len(answer.body))
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def head(
        self, status: http.HTTPStatus, kind: str, length: int, more: dict[str, str] | None = None
    ) -> None:
        """Send the head of an answer."""
        self.send_response(status)
        fixed = {
            "Content-Type": kind,
            "Content-Length": str(length),
            "Cache-Control": "no-store",
            "Content-Security-Policy": self.server.policy,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in {**fixed, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def _answer(self, find: Callable[[str], None]) -> None:
        try:
            find(self._path())
        except Refused as error:
            self._complain(error.status, str(error))
        except ValueError as error:
            self._complain(http.HTTPStatus.BAD_REQUEST, str(error))
        except ConnectionError:
            self.close_connection = True  # the browser went on to something else
        except OSError as error:
            self._complain(http.HTTPStatus.INTERNAL_SERVER_ERROR, f"not stored: {error}")

    def _path(self) -> str:
        """Return the path behind the token, after checks of host, origin and token."""
        expected = " and ".join(sorted(self.server.hosts))
        if self.headers.get("Host", "") not in self.server.hosts:
            raise Refused(http.HTTPStatus.FORBIDDEN, f"this server answers to {expected} alone")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in [f"http://{host}" for host in self.server.hosts]:
            raise Refused(http.HTTPStatus.FORBIDDEN, "this server answers to its own page alone")
        _, token, *rest = [*self.path.split("?")[0].split("/", 2), "", ""]
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise Refused(http.HTTPStatus.NOT_FOUND, "open the address that the command printed")
        return rest[0]

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or int(length) > MAX_BODY_BYTES:
            self.close_connection = True  # what follows is not read
            raise Refused(http.HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "expected a short JSON object")
        text = self.rfile.read(int(length))
        # Forms of other web pages cannot send this type without asking first.
        if self.headers.get_content_type() != "application/json":
            raise Refused(http.HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        try:
            body = json.loads(text)
        except (json.JSONDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ValueError(f"got no JSON ({error}), expected an object") from error
        if not isinstance(body, dict):
            raise ValueError(f"got {str(body)[:80]}, expected a JSON object")
        return body

    def _complain(self, status: http.HTTPStatus, sentence: str) -> None:
        if self.command == "POST" and status != http.HTTPStatus.BAD_REQUEST:
            self.close_connection = True  # its body may not have been read
        self.send(as_json({"error": sentence}), status)
