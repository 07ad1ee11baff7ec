"""Serves the review page on this machine alone; corrections go to `meta/overrides.json`.

Only a reader of the printed address gets in: it holds a random token, and requests that name
another host (a web page that points its own name at this machine) are refused.
"""

import getpass
import http
import importlib.resources
import json
import math
import re
import secrets
import string
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
import tyro

from reward_models import overrides
from reward_models.label_report import doubt
from reward_models.label_report.read import Episode, Labelled, read
from reward_models.overrides import Override
from reward_models.review.clips import Clips
from vla import arguments, pages

HOST = "127.0.0.1"
MAX_BODY_BYTES = 4096
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: whatever a data set's instructions hold, only our script runs."""


@dataclass(frozen=True, kw_only=True)
class ReviewArgs:
    """Go over labels in a browser and correct them."""

    labelled: Annotated[Path, tyro.conf.Positional]
    """Labelled data set, as `vla label` wrote it."""
    port: int = 0
    """Port on this machine; a free one if 0."""
    author: str = ""
    """Name that goes with corrections; the user's if empty."""


def main(argv: list[str]) -> int:
    """Run `vla label --review`; return the exit code.

    Raises:
        ValueError: the data set is damaged or not labelled, or the port is taken.
    """
    args = arguments.read(ReviewArgs, argv, "vla label --review")
    serve(args.labelled, args.port, args.author or _user())
    return 0


def _user() -> str:
    """Return the name of who runs this; a container's user may have none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def serve(labelled: Path, port: int, author: str) -> None:
    """Serve the review page until Ctrl-C.

    Raises:
        ValueError: the data set is damaged or not labelled, or the port is taken.
    """
    with open_server(labelled, port, author) as server:
        print(
            f"review: {server.url}\nCtrl-C ends it; corrections are in {labelled}/{overrides.FILE}"
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(f"{len(overrides.latest(overrides.read(labelled)))} corrections stand")


def open_server(labelled: Path, port: int, author: str) -> "ReviewServer":
    """Return a server of the review page that listens on 127.0.0.1 but does not answer yet.

    Raises:
        ValueError: the data set is damaged or not labelled, or the port is taken.
    """
    if not author:
        raise ValueError("author: got an empty name, expected who corrects; give --author NAME")
    data = read(labelled)
    overrides.read(labelled)  # a damaged file is better found before the work begins
    try:
        return ReviewServer(data, port, author)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"port {port}: {error}; give another --port, or 0 for a free one"
        ) from error


class Answer(NamedTuple):
    """What a request gets."""

    body: bytes
    kind: str
    """Content type."""


class Refused(Exception):
    """A request that gets no answer but a status and a sentence."""

    def __init__(self, status: http.HTTPStatus, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class ReviewServer(ThreadingHTTPServer):
    """Listens on this machine; one reviewer, one data set. A context manager."""

    daemon_threads = True

    def __init__(self, labelled: Labelled, port: int, author: str) -> None:
        self.labelled = labelled
        self.folder = labelled.info.path
        self.author = author
        self.token = secrets.token_urlsafe(16)
        self.clips = Clips(labelled)
        super().__init__((HOST, port), Handler)  # closes itself if the port is taken

    @property
    def url(self) -> str:
        """Address of the page."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @property
    def hosts(self) -> tuple[str, str]:
        """What a request may call us."""
        return f"{HOST}:{self.server_port}", f"localhost:{self.server_port}"

    def server_close(self) -> None:
        """Stop listening and delete the clips."""
        super().server_close()
        self.clips.close()

    # --- what there is to see and to do -------------------------------------------------------

    def page(self) -> Answer:
        """Return the page."""
        names = {"NAME": self.labelled.name, "AUTHOR": self.author}
        filled = {key: pages.escape(value) for key, value in names.items()}
        text = string.Template(_resource("page.html")).substitute(filled, STYLE=pages.STYLE)
        return Answer(text.encode(), "text/html; charset=utf-8")

    def script(self) -> Answer:
        """Return the page's script."""
        return Answer(_resource("page.js").encode(), "text/javascript; charset=utf-8")

    def queue(self) -> Answer:
        """Return all episodes, most doubtful first, and the corrections so far."""
        ordered = doubt.most_doubtful(self.labelled.episodes)
        episodes = [{"index": e.index, "task": e.task} for e in ordered]
        return _json({"episodes": episodes, **self._corrections()})

    def episode(self, index: int) -> Answer:
        """Return the labels of one episode."""
        return _json(_curves(self.labelled.episode(index)))

    def correct(self, body: dict[str, Any]) -> Answer:
        """Store a correction; return all there are."""
        if set(body) != {"episode", "frame", "kind", "value"}:
            raise ValueError(
                f"a correction has {sorted(body)}, expected episode, frame, kind, value"
            )
        override = Override(**body, author=self.author, time=overrides.now())
        episode = self.labelled.episode(override.episode)
        if override.frame is not None and override.frame >= episode.frames:
            raise ValueError(f"got frame {override.frame}, expected less than {episode.frames}")
        overrides.append(self.folder, override)
        return _json(self._corrections())

    def undo(self, body: dict[str, Any]) -> Answer:
        """Take back this author's newest correction; return it and all that are left."""
        last = overrides.undo(self.folder, self.author)
        return _json({"undone": None if last is None else vars(last), **self._corrections()})

    def _corrections(self) -> dict[str, Any]:
        return {"overrides": [vars(one) for one in overrides.read(self.folder)]}


class Handler(BaseHTTPRequestHandler):
    """Checks who asks, finds what is asked for, and sends it."""

    server: ReviewServer
    protocol_version = "HTTP/1.1"
    timeout = 60

    def do_GET(self) -> None:
        """Answer with the page, its script, an episode's labels or its clip."""
        self._answer(self._get)

    do_HEAD = do_GET  # noqa: N815

    def do_POST(self) -> None:
        """Store or take back a correction."""
        self._answer(self._post)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Print nothing: the terminal is for the address."""

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
        """Return the path behind the token, once host and token are found right."""
        if self.headers.get("Host", "") not in self.server.hosts:
            raise Refused(http.HTTPStatus.FORBIDDEN, "this server answers to 127.0.0.1 alone")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in [f"http://{host}" for host in self.server.hosts]:
            raise Refused(http.HTTPStatus.FORBIDDEN, "this server answers to its own page alone")
        _, token, *rest = [*self.path.split("?")[0].split("/", 2), "", ""]
        if not secrets.compare_digest(token.encode(), self.server.token.encode()):
            raise Refused(http.HTTPStatus.NOT_FOUND, "open the address that the command printed")
        return rest[0]

    def _get(self, path: str) -> None:
        if path == "":
            self._send(self.server.page())
        elif path == "page.js":
            self._send(self.server.script())
        elif path == "queue.json":
            self._send(self.server.queue())
        elif found := re.fullmatch(r"episode/(\d{1,9})\.json", path):
            self._send(self.server.episode(int(found[1])))
        elif found := re.fullmatch(r"clip/(\d{1,9})\.mp4", path):
            self._send_part(self.server.clips.clip(int(found[1])))
        else:
            raise Refused(http.HTTPStatus.NOT_FOUND, f"there is no {path[:80]}")

    def _post(self, path: str) -> None:
        actions = {"override": self.server.correct, "undo": self.server.undo}
        body = self._body()
        if path not in actions:
            raise Refused(http.HTTPStatus.NOT_FOUND, f"there is no {path[:80]}")
        self._send(actions[path](body))

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

    def _send(self, answer: Answer, status: http.HTTPStatus = http.HTTPStatus.OK) -> None:
        self._head(status, answer.kind, len(answer.body))
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    def _send_part(self, path: Path) -> None:
        """Send a video, or the part asked for: browsers seek by asking for parts."""
        data = path.read_bytes()
        wanted = byte_range(self.headers.get("Range"), len(data))
        if wanted is None:
            self._head(http.HTTPStatus.OK, "video/mp4", len(data))
        elif not wanted:
            whole = {"Content-Range": f"bytes */{len(data)}"}
            self._head(http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "video/mp4", 0, whole)
            data = b""
        else:
            place = {"Content-Range": f"bytes {wanted[0]}-{wanted[-1]}/{len(data)}"}
            self._head(http.HTTPStatus.PARTIAL_CONTENT, "video/mp4", len(wanted), place)
            data = data[wanted.start : wanted.stop]
        if self.command != "HEAD":
            self.wfile.write(data)

    def _head(
        self, status: http.HTTPStatus, kind: str, length: int, more: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        fixed = {
            "Content-Type": kind,
            "Content-Length": str(length),
            "Accept-Ranges": "bytes",
            "Cache-Control": "no-store",
            "Content-Security-Policy": POLICY,
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        for name, value in {**fixed, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()

    def _complain(self, status: http.HTTPStatus, sentence: str) -> None:
        if self.command == "POST" and status != http.HTTPStatus.BAD_REQUEST:
            self.close_connection = True  # its body may not have been read
        self._send(_json({"error": sentence}), status)


def byte_range(header: str | None, size: int) -> range | None:
    """Return the bytes that a Range header asks for, None for all, empty if there are none such.

    RFC 9110, 14.1.2, a single range; what is no such range counts as none.
    """
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if not found or found[0] == "bytes=-":
        return None
    first, last = found[1], found[2]
    if not first:
        return range(max(0, size - int(last)), size)
    end = min(size, int(last) + 1) if last else size
    return range(int(first), end)


def _curves(e: Episode) -> dict[str, Any]:
    return {
        "index": e.index,
        "task": e.task,
        "fps": e.fps,
        "frames": e.frames,
        "reasons": doubt.reasons(e),
        "progress": _numbers(e.progress),
        "delta": _numbers(e.delta),
        "done": _numbers(e.done_prob),
        "confidence": _numbers(e.confidence),
        "trend": e.trend.tolist(),
    }


def _numbers(values: np.ndarray) -> list[float | None]:
    """Return values for JSON, which knows no NaN."""
    return [None if math.isnan(value) else round(value, 4) for value in values.tolist()]


def _json(value: Any) -> Answer:
    return Answer(json.dumps(value).encode(), "application/json")


def _resource(name: str) -> str:
    return importlib.resources.files("reward_models.review").joinpath(name).read_text("utf-8")
