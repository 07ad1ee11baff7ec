"""Drives a real headless Chromium through its DevTools protocol, over a pair of pipes."""

import contextlib
import fcntl
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BINARIES = ("chromium", "google-chrome", "chromium-browser", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--mute-audio",
    "--disable-dev-shm-usage", "--window-size=1280,1000",
)  # fmt: skip
PATIENCE_S = 30.0


def binary() -> str | None:
    """Return the path of a Chromium or Chrome, None if there is none."""
    return next((found for name in BINARIES if (found := shutil.which(name))), None)


class Page:
    """One tab."""

    def __init__(self, write_to: int, read_from: int) -> None:
        self._out, self._in, self._left = write_to, read_from, b""
        self._number, self._session = itertools.count(1), None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        self.call("Page.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        number = next(self._number)
        message = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != number:
            pass
        assert "error" not in answer, f"{method}: {answer['error']}"
        return answer["result"]

    def open(self, url: str) -> None:
        """Go to a page and wait until it has loaded."""
        assert "errorText" not in self.call("Page.navigate", url=url)
        self.wait(f'location.href.startsWith("{url}") && document.readyState == "complete"')

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, expression: str) -> Any:
        """Wait until an expression is true and return its value."""
        end = time.monotonic() + PATIENCE_S
        while not (value := self.value(expression)):
            assert time.monotonic() < end, f"still not: {expression}"
            time.sleep(0.05)
        return value

    def press(self, key: str) -> None:
        """Press and release a key, as a person does."""
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._left:
            ready, _, _ = select.select([self._in], [], [], PATIENCE_S)
            assert ready, "the browser does not answer"
            data = os.read(self._in, 1 << 16)
            assert data, "the browser is gone"
            self._left += data
        text, _, self._left = self._left.partition(b"\0")
        return json.loads(text)


@contextlib.contextmanager
def browser(profile: Path) -> Iterator[Page]:
    """Start a browser with a profile of its own and end it with all its processes."""
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    # Chromium reads from 3 and writes to 4: ours must not be among these when bash moves them.
    high = [fcntl.fcntl(fd, fcntl.F_DUPFD, 20) for fd in (theirs_in, theirs_out)]
    script = f'exec "$0" "$@" 3<&{high[0]} 4>&{high[1]} {high[0]}<&- {high[1]}>&-'
    process = subprocess.Popen(
        ["bash", "-c", script, str(binary()), *FLAGS, f"--user-data-dir={profile}"],
        pass_fds=high, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    for fd in (theirs_in, theirs_out, *high):
        os.close(fd)
    try:
        yield Page(ours_out, ours_in)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        os.close(ours_out)
        os.close(ours_in)
