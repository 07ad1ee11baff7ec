"""Matches joint states and images by stamp to one observation, and refuses old ones.

All times are seconds of the monotonic clock; ages of stamps are by the clock that stamps.
This module does not import ROS.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from robot_bridge.launching.node_settings import ranged
from vla.contracts.types import Observation

BUFFERED = 100
"""Number of buffered joint states: about one second of them."""
MOVED = 0.05
"""Motion, in the unit of the joint, that has to change a camera's image."""


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """Limits of age and distance in time; parameters of the nodes that observe."""

    max_observation_age_s: float = ranged(0.3, 0.01, 10.0)
    """Largest age in s of any part of an observation."""
    max_sync_interval_s: float = ranged(0.1, 0.001, 10.0)
    """Largest time in s between the parts of an observation."""
    frozen_image_timeout_s: float = ranged(1.0, 0.05, 60.0)
    """Longest time in s a camera may show the same image to the bit while the arm moves."""


@dataclass(frozen=True, kw_only=True)
class SyncedObservation:
    """Images and pose of one moment."""

    images: np.ndarray
    """RGB u8 [v, h, w, 3]."""
    proprio: np.ndarray
    """f32 [u]."""
    time_s: float
    """Time of its oldest part."""
    underway_s: float = 0.0
    """Transport time in s of its oldest image."""

    def row(self, task: str, time_s: float) -> Observation:
        """Return the observation of an episode, one row, at a time in s since its beginning."""
        images = self.images[None]
        return Observation(
            images=images, image_ok=np.ones(images.shape[:2], np.bool_),
            proprio=self.proprio[None], task=(task,), time_s=np.array([time_s]),
        )  # fmt: skip


class _View(NamedTuple):
    """The latest image of a camera."""

    time_s: float
    received_s: float
    decode: Callable[[], np.ndarray]
    """Decodes the image; most images are never used."""


class _Change(NamedTuple):
    """The last change of a camera's image."""

    pixels: bytes
    time_s: float
    pose: np.ndarray


class Sync:
    """Buffers messages and returns the present observation, its cameras in view order."""

    def __init__(self, config: SyncConfig, cameras: tuple[str, ...]) -> None:
        self.config, self.cameras = config, cameras
        self.joints: deque[tuple[float, np.ndarray]] = deque(maxlen=BUFFERED)
        self.views: dict[str, _View] = {}
        self.changes: dict[str, _Change] = {}

    def add_joints(self, time_s: float, pose: np.ndarray) -> None:
        """Add a measured pose f64 [u]; a pose older than the last one is dropped."""
        if not self.joints or time_s > self.joints[-1][0]:
            self.joints.append((time_s, pose))

    def add_image(
        self, camera: str, time_s: float, decode: Callable[[], np.ndarray], received_s: float = 0.0
    ) -> None:
        """Add an image; an image older than the camera's last one is dropped.

        Args:
            camera: Name of the camera.
            time_s: Time of its stamp.
            decode: Returns the image as RGB u8 [h, w, 3].
            received_s: Arrival time of its message.
        """
        if camera not in self.views or time_s > self.views[camera].time_s:
            self.views[camera] = _View(time_s, received_s, decode)

    def look(self, now_s: float) -> SyncedObservation | str:
        """Return the present observation, or the reason why there is none.

        Raises:
            ValueError: an image cannot be decoded.
        """
        config = self.config
        if not self.joints:
            return "no joint states yet"
        missing = [name for name in self.cameras if name not in self.views]
        if missing:
            return f"no image of camera {missing[0]} yet"
        views = [self.views[name] for name in self.cameras]
        times_s = [view.time_s for view in views]
        time_s, pose = min(self.joints, key=lambda state: abs(state[0] - max(times_s)))
        oldest_s, newest_s = min(*times_s, time_s), max(*times_s, time_s)
        if now_s - oldest_s > config.max_observation_age_s:
            oldest = min(self.cameras, key=lambda name: self.views[name].time_s)
            part = "joint states" if oldest_s == time_s else f"image of camera {oldest}"
            return f"{part} {now_s - oldest_s:.2f} s old, at most {config.max_observation_age_s}"
        if not np.isfinite(pose).all():
            return "joint states are not finite"
        if newest_s - now_s > config.max_observation_age_s:
            return (
                f"a part is stamped {newest_s - now_s:.2f} s in the future, at most "
                f"{config.max_observation_age_s}; synchronise the clocks of the computers"
            )
        if newest_s - oldest_s > config.max_sync_interval_s:
            return f"parts {newest_s - oldest_s:.2f} s apart, at most {config.max_sync_interval_s}"
        images = [view.decode() for view in views]
        for name, image in zip(self.cameras, images, strict=True):
            if self._is_frozen(name, image, now_s, pose):
                limit_s = config.frozen_image_timeout_s
                return f"camera {name} shows the same for {limit_s} s while the arm moves"
        first = min(views, key=lambda view: view.time_s)
        return SyncedObservation(
            images=np.stack(images), proprio=pose.astype(np.float32), time_s=oldest_s,
            underway_s=first.received_s - first.time_s,
        )  # fmt: skip

    def _is_frozen(self, name: str, image: np.ndarray, now_s: float, pose: np.ndarray) -> bool:
        last, pixels = self.changes.get(name), image.tobytes()
        if last is None or last.pixels != pixels:
            self.changes[name] = _Change(pixels, now_s, pose)
            return False
        moved = bool((np.abs(pose - last.pose) > MOVED).any())
        return moved and now_s - last.time_s > self.config.frozen_image_timeout_s
