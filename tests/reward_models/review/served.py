"""A review server that answers in the background, and requests to it."""

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from reward_models.review import server
from reward_models.review.server import ReviewServer


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@contextlib.contextmanager
def serving(folder: Path, author: str = "ann") -> Iterator[ReviewServer]:
    """Answer requests about a data set until the block ends."""
    with server.open_server(folder, 0, author) as found:
        thread = threading.Thread(target=found.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield found
        finally:
            found.shutdown()
            thread.join()


def ask(
    found: ReviewServer, path: str, body: Any = None, method: str | None = None, **headers: str
) -> Reply:
    """Send a request for a path behind the token (or, with a leading slash, for that path)."""
    whole = path if path.startswith("/") else f"/{found.token}/{path}"
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    data = None
    if body is not None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json", **sent}
    connection = http.client.HTTPConnection("127.0.0.1", found.server_port, timeout=20)
    try:
        connection.request(method or ("GET" if body is None else "POST"), whole, data, sent)
        answer = connection.getresponse()
        return Reply(answer.status, dict(answer.getheaders()), answer.read())
    finally:
        connection.close()
