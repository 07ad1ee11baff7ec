"""The page on which a person watches rollouts and moves the arm: served on this machine alone.

It shows the camera images and sends what is held down on keyboard or gamepad several times a
second. `training.rl.intervention_sources.human` decides what comes of it; a page that has fallen
silent holds nothing down.
"""

import http
import io
import math
import secrets
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from vla.utils import pages
from vla.utils.local_server import Answer, LocalHandler, LocalServer, Refused, as_json

INPUT_TIMEOUT_S = 0.3
"""Silence after which a page holds nothing down."""
PAGE_TIMEOUT_S = 2.0
"""Silence after which a page counts as closed."""
RELEASE_S = 1.0
"""Time without anything held down after which a person has given back."""
AXES = ("right", "away", "up", "turn")
GAP_PX = 2
"""Between images."""
JPEG_QUALITY = 90


@dataclass(frozen=True)
class Controls:
    """What a person does at this moment."""

    move: np.ndarray
    """Velocities f64 [4], each in [-1, 1]: to the right and away from the first camera, up, and
    turning to the left."""
    toggles: bool
    """Whether the gripper is to do the opposite of what it does."""
    active: bool
    """Whether anything was held down within the last `RELEASE_S`, and not given back since."""
    connected: bool
    """Whether the page sent anything within the last `INPUT_TIMEOUT_S`; if not, nothing moves."""


class PageInput:
    """What pages say is held down. Only one of them moves the arm: the first to press a key.

    Its methods may be called from several threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._page, self._received, self._moved = "", -np.inf, -np.inf
        self._any_received = -np.inf
        self._move = self._tapped = np.zeros(len(AXES))
        self._count: dict[str, int] = {}
        self._toggles = 0
        # Pages that hold something down, and those for which it does not count until released.
        self._holding: set[str] = set()
        self._stale: set[str] = set()

    def receive(self, message: dict[str, Any]) -> bool:
        """Take a page's message; return whether it is the page that moves the arm.

        Raises:
            ValueError: it is not such a message.
        """
        page, move, grips, gives = _checked(message)
        now = time.monotonic()
        with self._lock:
            self._any_received = now
            gripped = grips - self._count.get(page, grips)
            self._count[page] = grips
            if move.any():
                self._holding.add(page)
            else:
                self._holding.discard(page)
                self._stale.discard(page)
            move = np.zeros(len(AXES)) if page in self._stale else move
            busy = now - self._moved < RELEASE_S and now - self._received < PAGE_TIMEOUT_S
            if page != self._page:
                if busy or not (move.any() or gripped):
                    return False
                self._page, self._toggles = page, 0
            self._received, self._move = now, move
            if move.any() or gripped:
                self._moved, self._tapped = now, move
                self._toggles += gripped
            if gives:
                self._reset()
            return now - self._moved < RELEASE_S

    def read(self) -> Controls:
        """Return what is held down now, or was for a moment since the last call."""
        now = time.monotonic()
        with self._lock:
            connected = now - self._received < INPUT_TIMEOUT_S
            move = self._move if self._move.any() else self._tapped
            toggles = connected and self._toggles % 2 == 1
            self._tapped, self._toggles = np.zeros(len(AXES)), 0
            return Controls(
                move=move if connected else np.zeros(len(AXES)), toggles=toggles,
                active=now - self._moved < RELEASE_S, connected=connected,
            )  # fmt: skip

    def reset(self) -> None:
        """Ignore what is held down, at every page, until it is released."""
        with self._lock:
            self._reset()

    def _reset(self) -> None:
        self._stale |= self._holding
        self._moved, self._toggles = -np.inf, 0
        self._move = self._tapped = np.zeros(len(AXES))

    @property
    def active(self) -> bool:
        """Whether a person moves the arm, or did a moment ago."""
        return time.monotonic() - self._moved < RELEASE_S

    @property
    def page_open(self) -> bool:
        """Whether a page is open."""
        return time.monotonic() - self._any_received < PAGE_TIMEOUT_S


def _checked(message: dict[str, Any]) -> tuple[str, np.ndarray, int, bool]:
    if set(message) != {"page", "move", "grips", "gives"}:
        raise ValueError(f"got {sorted(message)}, expected page, move, grips, gives")
    page, grips, gives = message["page"], message["grips"], message["gives"]
    if not isinstance(page, str) or type(grips) is not int or type(gives) is not bool:
        raise ValueError(
            f"got page {str(page)[:40]!r}, grips {str(grips)[:40]} and gives {str(gives)[:40]}, "
            "expected a name, a whole number and true or false"
        )
    move = message["move"]
    if not isinstance(move, list) or len(move) != len(AXES) or not all(map(_finite, move)):
        raise ValueError(f"got move {str(move)[:80]}, expected {len(AXES)} numbers")
    return page[:40], np.clip(np.array(move, np.float64), -1, 1), grips, gives


def _finite(number: Any) -> bool:
    try:
        return type(number) in (int, float) and math.isfinite(number)
    except OverflowError:  # a whole number beyond all floats
        return False


class Viewer(LocalServer):
    """Serves the page from its own thread until it is closed.

    Args:
        port: Port on this machine; a free one if 0.

    Raises:
        ValueError: the port is taken.
    """

    def __init__(self, port: int) -> None:
        self.input = PageInput()
        self.nonce = secrets.token_urlsafe(16)
        # Only the page's own script runs, whatever an instruction holds.
        self.policy = (
            f"default-src 'none'; script-src 'nonce-{self.nonce}'; style-src 'unsafe-inline'; "
            "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
            "frame-ancestors 'none'"
        )
        self._lock = threading.Lock()
        self._state: dict[str, Any] = {"frame": 0, "over": False}
        self._views = np.zeros((1, 8, 8, 3), np.uint8)
        try:
            super().__init__(port, Handler)
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"port {port}: {error}; give another --intervention.port, or 0 for a free one"
            ) from error
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        )
        self._thread.start()

    def show(self, views: np.ndarray, state: dict[str, Any]) -> None:
        """Show images u8 [v, h, w, 3] and the state of the rollout, as JSON types."""
        with self._lock:
            self._views = views
            self._state = {**self._state, **state, "frame": self._state["frame"] + 1}

    def update(self, **state: Any) -> None:
        """Change some of the state."""
        with self._lock:
            self._state = {**self._state, **state}

    def close(self) -> None:
        """Stop; calling it twice does no harm."""
        self.update(over=True)  # to pages that are still connected
        self.shutdown()
        self._thread.join()
        self.server_close()

    # --- answers to requests ------------------------------------------------------------------

    def page(self) -> Answer:
        """Return the page."""
        text = pages.render("training/rl/intervention/viewer.html.j2", nonce=self.nonce)
        return Answer(text.encode(), "text/html; charset=utf-8")

    def image(self) -> Answer:
        """Return the latest images side by side."""
        with self._lock:
            views = self._views
        file = io.BytesIO()
        gap = np.zeros((len(views[0]), GAP_PX, 3), np.uint8)
        row = np.concatenate([part for view in views for part in (gap, view)][1:], axis=1)
        Image.fromarray(row).save(file, "JPEG", quality=JPEG_QUALITY, subsampling=0)
        return Answer(file.getvalue(), "image/jpeg")

    def receive(self, message: dict[str, Any]) -> Answer:
        """Take a page's message; return the state."""
        moves_arm = self.input.receive(message)
        with self._lock:
            return as_json({**self._state, "moves_arm": moves_arm})


class Handler(LocalHandler):
    """Routes requests."""

    def get(self, path: str) -> None:
        """Send the page, or the latest images."""
        if path == "":
            self.send(self.server.page())
        elif path == "views.jpg":
            self.send(self.server.image())
        else:
            raise Refused(http.HTTPStatus.NOT_FOUND, f"there is no {path[:80]}")

    def post(self, path: str, body: dict[str, Any]) -> None:
        """Take a page's message."""
        if path != "input":
            raise Refused(http.HTTPStatus.NOT_FOUND, f"there is no {path[:80]}")
        self.send(self.server.receive(body))
