"""The page on which a person watches practice and moves the arm: served on this machine alone.

It shows what the cameras see and takes what is held down on keyboard or gamepad, several times a
second. What comes of it is decided elsewhere (`training.rl.stand_ins.human`); a page that has
fallen silent holds nothing down.
"""

import http
import importlib.resources
import io
import math
import secrets
import string
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from vla import pages
from vla.local_server import Answer, LocalHandler, LocalServer, Refused, as_json

SILENT_S = 0.3
"""Silence after which a page holds nothing down."""
GONE_S = 2.0
"""Silence after which it is taken for closed."""
LET_GO_S = 1.0
"""Time without anything held down after which a person has let go."""
AXES = ("right", "away", "up", "turn")
GAP_PX = 2
"""Between pictures."""
QUALITY = 90
"""Of the pictures, as JPEG counts it."""


@dataclass(frozen=True)
class Held:
    """What a person does at this moment."""

    move: np.ndarray
    """Wanted velocities f64 [4], each in [-1, 1]: to the right and away from the first camera, up,
    and turning to the left."""
    toggles: bool
    """Whether the hand is to do the opposite of what it does."""
    active: bool
    """Whether anything was held down within the last `LET_GO_S`, and not given back since."""
    loud: bool
    """Whether the page was heard within the last `SILENT_S`; if not, nothing is to move."""


class Hands:
    """What pages say is held down. Only one of them moves the arm: whose keys were pressed first.

    Its methods may be called from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._page, self._heard, self._moved = "", -np.inf, -np.inf
        self._anybody = -np.inf
        self._move = self._tapped = np.zeros(len(AXES))
        self._count: dict[str, int] = {}
        self._toggles = 0
        # Pages that hold something down, and those for which it does not count until released.
        self._holding: set[str] = set()
        self._stale: set[str] = set()

    def hear(self, said: dict[str, Any]) -> bool:
        """Take what a page says; return whether it is the one that moves the arm.

        Raises:
            ValueError: it is not what a page says.
        """
        page, move, grips, gives = _checked(said)
        now = time.monotonic()
        with self._lock:
            self._anybody = now
            gripped = grips - self._count.get(page, grips)
            self._count[page] = grips
            if move.any():
                self._holding.add(page)
            else:
                self._holding.discard(page)
                self._stale.discard(page)
            move = np.zeros(len(AXES)) if page in self._stale else move
            busy = now - self._moved < LET_GO_S and now - self._heard < GONE_S
            if page != self._page:
                if busy or not (move.any() or gripped):
                    return False
                self._page, self._toggles = page, 0
            self._heard, self._move = now, move
            if move.any() or gripped:
                self._moved, self._tapped = now, move
                self._toggles += gripped
            if gives:
                self._drop_()
            return now - self._moved < LET_GO_S

    def look(self) -> Held:
        """Return what is held down now, or was for a moment since the last look."""
        now = time.monotonic()
        with self._lock:
            loud = now - self._heard < SILENT_S
            move = self._move if self._move.any() else self._tapped
            toggles = loud and self._toggles % 2 == 1
            self._tapped, self._toggles = np.zeros(len(AXES)), 0
            return Held(
                move=move if loud else np.zeros(len(AXES)), toggles=toggles,
                active=now - self._moved < LET_GO_S, loud=loud,
            )  # fmt: skip

    def drop_(self) -> None:
        """Let go of whatever is held down, at every page: it counts again once it is released."""
        with self._lock:
            self._drop_()

    def _drop_(self) -> None:
        self._stale |= self._holding
        self._moved, self._toggles = -np.inf, 0
        self._move = self._tapped = np.zeros(len(AXES))

    @property
    def active(self) -> bool:
        """Whether a person moves the arm, or did a moment ago."""
        return time.monotonic() - self._moved < LET_GO_S

    @property
    def there(self) -> bool:
        """Whether a page is open."""
        return time.monotonic() - self._anybody < GONE_S


def _checked(said: dict[str, Any]) -> tuple[str, np.ndarray, int, bool]:
    if set(said) != {"page", "move", "grips", "gives"}:
        raise ValueError(f"got {sorted(said)}, expected page, move, grips, gives")
    page, grips, gives = said["page"], said["grips"], said["gives"]
    if not isinstance(page, str) or type(grips) is not int or type(gives) is not bool:
        raise ValueError(
            f"got page {str(page)[:40]!r}, grips {str(grips)[:40]} and gives {str(gives)[:40]}, "
            "expected a name, a whole number and true or false"
        )
    move = said["move"]
    if not isinstance(move, list) or len(move) != len(AXES) or not all(map(_finite, move)):
        raise ValueError(f"got move {str(move)[:80]}, expected {len(AXES)} numbers")
    return page[:40], np.clip(np.array(move, np.float64), -1, 1), grips, gives


def _finite(one: Any) -> bool:
    try:
        return type(one) in (int, float) and math.isfinite(one)
    except OverflowError:  # a whole number beyond all floats
        return False


class Viewer(LocalServer):
    """Serves the page from a thread of its own until it is closed.

    Args:
        port: Port on this machine; a free one if 0.

    Raises:
        ValueError: the port is taken.
    """

    def __init__(self, port: int) -> None:
        self.hands = Hands()
        self.nonce = secrets.token_urlsafe(16)
        # Only the page's own script runs, whatever an instruction holds.
        self.policy = (
            f"default-src 'none'; script-src 'nonce-{self.nonce}'; style-src 'unsafe-inline'; "
            "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        self._lock = threading.Lock()
        self._told: dict[str, Any] = {"frame": 0, "over": False}
        self._views = np.zeros((1, 8, 8, 3), np.uint8)
        try:
            super().__init__(port, Handler)
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"port {port}: {error}; give another --help.port, or 0 for a free one"
            ) from error
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def show(self, views: np.ndarray, told: dict[str, Any]) -> None:
        """Show pictures u8 [v, h, w, 3] and what else there is to tell, as JSON types."""
        with self._lock:
            self._views = views
            self._told = {**self._told, **told, "frame": self._told["frame"] + 1}

    def tell(self, **told: Any) -> None:
        """Change some of what is told."""
        with self._lock:
            self._told = {**self._told, **told}

    def close(self) -> None:
        """Stop; calling it twice does no harm."""
        self.tell(over=True)  # to pages that are still connected
        self.shutdown()
        self._thread.join()
        self.server_close()

    # --- what there is to see and to do -------------------------------------------------------

    def page(self) -> Answer:
        """Return the page."""
        text = importlib.resources.files("training.rl").joinpath("viewer.html").read_text("utf-8")
        filled = string.Template(text).substitute(STYLE=pages.STYLE, NONCE=self.nonce)
        return Answer(filled.encode(), "text/html; charset=utf-8")

    def picture(self) -> Answer:
        """Return the latest pictures side by side."""
        with self._lock:
            views = self._views
        file = io.BytesIO()
        apart = np.zeros((len(views[0]), GAP_PX, 3), np.uint8)
        row = np.concatenate([part for view in views for part in (apart, view)][1:], axis=1)
        Image.fromarray(row).save(file, "JPEG", quality=QUALITY, subsampling=0)
        return Answer(file.getvalue(), "image/jpeg")

    def hear(self, said: dict[str, Any]) -> Answer:
        """Take what a page says; return what there is to tell."""
        mine = self.hands.hear(said)
        with self._lock:
            return as_json({**self._told, "mine": mine})


class Handler(LocalHandler):
    """Finds what is asked for."""

    def get(self, path: str) -> None:
        """Send the page, or the latest pictures."""
        if path == "":
            self.send(self.server.page())
        elif path == "views.jpg":
            self.send(self.server.picture())
        else:
            raise Refused(http.HTTPStatus.NOT_FOUND, f"there is no {path[:80]}")

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Take what is held down."""
        if path != "hands":
            raise Refused(http.HTTPStatus.NOT_FOUND, f"there is no {path[:80]}")
        self.send(self.server.hear(body))
