"""Serves the review page on this machine only; corrections go to `meta/overrides.json`."""

import getpass
import http
import importlib.resources
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tyro

from reward_models.core import overrides
from reward_models.core.overrides import Override
from reward_models.label_report import doubt
from reward_models.label_report.read import Episode, Labelled, read
from reward_models.review.clips import Clips
from vla.utils import arguments, pages
from vla.utils.local_server import Answer, LocalHandler, LocalServer, Refused, as_json

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; media-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Content security policy: only the page's script runs, whatever the instructions contain."""


@dataclass(frozen=True, kw_only=True)
class ReviewArgs:
    """Review labels in a browser and correct them."""

    labelled: Annotated[Path, tyro.conf.Positional]
    """Labelled data set, as `vla label` wrote it."""
    port: int = 0
    """Port on this machine; a free one if 0."""
    author: str = ""
    """Author of the corrections; the user if empty."""


def main(argv: list[str]) -> int:
    """Run `vla label --review`; return the exit code."""
    args = arguments.read(ReviewArgs, argv, "vla label --review")
    serve(args.labelled, args.port, args.author or _user())
    return 0


def _user() -> str:
    """Return the name of the user; one in a container may have none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def serve(labelled: Path, port: int, author: str) -> None:
    """Serve the review page until Ctrl-C; see `open_server`."""
    with open_server(labelled, port, author) as server:
        print(
            f"review: {server.url}\nCtrl-C stops it; corrections are in {labelled}/{overrides.FILE}"
        )
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print(f"{len(overrides.latest(overrides.read(labelled)))} corrections")


def open_server(labelled: Path, port: int, author: str) -> "ReviewServer":
    """Return a server of the review page that listens on 127.0.0.1.

    Raises:
        ValueError: the data set is damaged or not labelled, or the port is taken.
    """
    if not author:
        raise ValueError("author: got an empty name, expected the reviewer's; give --author NAME")
    data = read(labelled)
    overrides.read(labelled)  # reports a damaged file before the review begins
    try:
        return ReviewServer(data, port, author)
    except (OSError, OverflowError) as error:
        raise ValueError(
            f"port {port}: {error}; give another --port, or 0 for a free one"
        ) from error


class ReviewServer(LocalServer):
    """Serves one data set to one reviewer. A context manager."""

    policy = POLICY

    def __init__(self, labelled: Labelled, port: int, author: str) -> None:
        self.labelled = labelled
        self.folder = labelled.info.path
        self.author = author
        self.clips = Clips(labelled)
        super().__init__(port, Handler)

    def server_close(self) -> None:
        """Stop listening and delete the clips."""
        super().server_close()
        self.clips.close()

    def page(self) -> Answer:
        """Return the page."""
        text = pages.render(
            "reward_models/review/page.html.j2", name=self.labelled.name, author=self.author
        )
        return Answer(text.encode(), "text/html; charset=utf-8")

    def script(self) -> Answer:
        """Return the page's script."""
        text = importlib.resources.files("reward_models.review").joinpath("page.js").read_bytes()
        return Answer(text, "text/javascript; charset=utf-8")

    def queue(self) -> Answer:
        """Return all episodes, most doubtful first, and the corrections so far."""
        ordered = doubt.most_doubtful(self.labelled.episodes)
        episodes = [{"index": e.index, "task": e.task} for e in ordered]
        return as_json({"episodes": episodes, **self._corrections()})

    def episode(self, index: int) -> Answer:
        """Return the labels of one episode."""
        return as_json(_curves(self.labelled.episode(index)))

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
        return as_json(self._corrections())

    def undo(self, body: dict[str, Any]) -> Answer:
        """Undo this author's newest correction; return it and the remaining ones."""
        last = overrides.undo(self.folder, self.author)
        return as_json({"undone": None if last is None else vars(last), **self._corrections()})

    def _corrections(self) -> dict[str, Any]:
        return {"overrides": [vars(override) for override in overrides.read(self.folder)]}


class Handler(LocalHandler):
    """Routes requests."""

    server: ReviewServer

    def get(self, path: str) -> None:
        """Send the page, its script, an episode's labels or its clip."""
        if path == "":
            self.send(self.server.page())
        elif path == "page.js":
            self.send(self.server.script())
        elif path == "queue.json":
            self.send(self.server.queue())
        elif match := re.fullmatch(r"episode/(\d{1,9})\.json", path):
            self.send(self.server.episode(int(match[1])))
        elif match := re.fullmatch(r"clip/(\d{1,9})\.mp4", path):
            self._send_part(self.server.clips.clip(int(match[1])))
        else:
            raise Refused(http.HTTPStatus.NOT_FOUND, f"there is no {path[:80]}")

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Store or undo a correction."""
        actions = {"override": self.server.correct, "undo": self.server.undo}
        if path not in actions:
            raise Refused(http.HTTPStatus.NOT_FOUND, f"there is no {path[:80]}")
        self.send(actions[path](body))

    def _send_part(self, path: Path) -> None:
        """Send a video, or the requested part of it."""
        data = path.read_bytes()
        part = byte_range(self.headers.get("Range"), len(data))
        parts = {"Accept-Ranges": "bytes"}
        if part is None:
            self.head(http.HTTPStatus.OK, "video/mp4", len(data), parts)
        elif not part:
            whole = {**parts, "Content-Range": f"bytes */{len(data)}"}
            self.head(http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, "video/mp4", 0, whole)
            data = b""
        else:
            content_range = {
                **parts, "Content-Range": f"bytes {part[0]}-{part[-1]}/{len(data)}"
            }  # fmt: skip
            self.head(http.HTTPStatus.PARTIAL_CONTENT, "video/mp4", len(part), content_range)
            data = data[part.start : part.stop]
        if self.command != "HEAD":
            self.wfile.write(data)


def byte_range(header: str | None, size: int) -> range | None:
    """Return the bytes of a Range header, None for all, empty if it is out of range.

    RFC 9110, 14.1.2, for a single range; any other header means all.
    """
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", header or "")
    if not match or match[0] == "bytes=-":
        return None
    first, last = match[1], match[2]
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
    """Return values for JSON, None for NaN."""
    return [None if math.isnan(value) else round(value, 4) for value in values.tolist()]
