"""Rollouts of online RL, sent to a Rerun viewer that the user started, or to a file.

A viewer that is not there, or goes away, is reported once; the run continues without it.
"""

import ipaddress
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from training.rl.experience.episode import Episode
from training.rl.experience.rewards import EpisodeReward
from training.view import drawing, layout
from vla.contracts.specs import RobotSpec

SHOWN = 4
"""Episodes of an iteration whose images are sent."""
SILENT_S = 5.0
"""Seconds after which a viewer that takes nothing is given up."""
SERIES = ("reward", "reward_model", "is_intervention")
"""Time series of each decision."""
Report = Callable[[str], Any]


def check(target: str) -> str:
    """Return where to send to.

    Raises:
        ValueError: it is neither a file nor a viewer's address, or one that others can listen to.
    """
    if target.endswith(".rrd") and "://" not in target:
        return target
    expected = "expected FILE.rrd or rerun+http://127.0.0.1:9876/proxy"
    try:
        url = urlsplit(target)
        port = url.port
    except ValueError as error:
        raise ValueError(f"view: got {target!r} ({error}), {expected}") from error
    if url.scheme not in ("rerun+http", "rerun+https") or not url.hostname or not port:
        raise ValueError(f"view: got {target!r}, {expected}")
    if url.scheme == "rerun+http" and not _local(url.hostname):
        raise ValueError(
            f"view: got {target!r}, which would send images unencrypted to another machine; "
            "use a viewer on this one, a tunnel to it, or rerun+https://"
        )
    return target


def _local(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Live:
    """A live view of a run of online RL; satisfies `training.core.callbacks.RunCallback`.

    Args:
        target: What `check` returned.
        report: Called once, with the reason, when nothing is shown any more.
    """

    def __init__(self, target: str, report: Report) -> None:
        self.target, self.report = target, report
        self.sends = True
        self.ahead_s = 0.0
        """Where on the time line the next iteration begins."""
        self._stream: Any = None

    def on_metrics(self, step: int, values: dict[str, float]) -> None:
        """Plot the metrics of an update."""
        self._try(lambda stream: _metrics(stream, step, values))

    def on_rollouts(
        self, number: int, episodes: Sequence[Episode], rewards: Sequence[EpisodeReward],
        robot: RobotSpec,
    ) -> None:  # fmt: skip
        """Show the first episodes of an iteration side by side, after those before it."""
        begin = self.ahead_s
        self.ahead_s += max(float(e.time_s[-1]) for e in episodes) + 1.0

        def send(stream: Any) -> None:
            cameras = [camera.name for camera in robot.cameras]
            if begin == 0.0:  # later the user may have changed the layout
                tabs = layout.rollouts(min(SHOWN, len(episodes)), cameras)
                layout.send(stream, tabs, "rollouts")
            for k, (episode, reward) in enumerate(zip(episodes, rewards, strict=True)):
                if k < SHOWN:
                    _episode(stream, k, episode, reward, cameras, number, begin)

        self._try(send)

    def close(self) -> None:
        """Send what is left."""
        if self._stream is not None:
            self._try(lambda stream: None)
            self._stream.disconnect()
            self._stream = None

    def _try(self, send: Callable[[Any], None]) -> None:
        if not self.sends:
            return
        try:
            if self._stream is None:
                self._stream = self._opened()
            if "://" in self.target:
                _check_listening(self.target)  # the library would wait without an error
            send(self._stream)
            self._stream.flush(timeout_sec=SILENT_S)
        except (OSError, RuntimeError, ValueError) as error:
            self.sends = False
            self.report(
                f"{self.target} shows nothing any more ({error}); the run continues without it"
            )

    def _opened(self) -> Any:
        stream = drawing.new_stream("rollouts")
        if "://" in self.target:
            _check_listening(self.target)
            stream.connect_grpc(self.target)
        else:
            path = free(Path(self.target))
            path.parent.mkdir(parents=True, exist_ok=True)
            stream.save(path)
        return stream


def free(path: Path) -> Path:
    """Return a file that is not there yet: a resumed run does not overwrite its beginning."""
    number, candidate = 2, path
    while candidate.exists():
        candidate = path.with_name(f"{path.stem}-{number}{path.suffix}")
        number += 1
    return candidate


def _check_listening(target: str) -> None:
    """Raise OSError unless a server listens."""
    url = urlsplit(target)
    socket.create_connection((str(url.hostname), int(url.port or 0)), timeout=SILENT_S).close()


def _metrics(stream: Any, step: int, values: dict[str, float]) -> None:
    for name, value in values.items():
        times = {"update": np.array([step])}
        drawing.scalars(stream, f"metrics/{name}", times, np.array([value], np.float64), (name,))


def _episode(
    stream: Any, k: int, episode: Episode, reward: EpisodeReward, cameras: Sequence[str],
    number: int, begin_s: float,
) -> None:  # fmt: skip
    place = f"rollout_{k}"
    times = _times(episode.time_s + begin_s, number)
    for view, camera in enumerate(cameras):
        images = episode.images[:, view]
        drawing.images(stream, f"{place}/camera/{camera}", times, images)
    boundaries = _times(episode.time_s[episode.boundary_index] + begin_s, number)
    at = {name: values[:-1] for name, values in boundaries.items()}
    series = (reward.reward, reward.potential, episode.is_intervention.astype(np.float32))
    for name, values in zip(SERIES, series, strict=True):
        when = boundaries if len(values) > len(episode) else at
        drawing.scalars(stream, f"{place}/reward/{name}", when, values, (name,))
    outcomes = ("failure", "success")
    line = (
        f"iteration {number}, episode {episode.number}: {outcomes[episode.success]}, predicted "
        f"{outcomes[reward.success]}: {episode.task}"
    )
    drawing.log_line(stream, f"{place}/outcome", {n: v[-1:] for n, v in times.items()}, line)


def _times(seconds: np.ndarray, number: int) -> drawing.Times:
    return {"rollouts": seconds, "iteration": np.full(len(seconds), number)}
