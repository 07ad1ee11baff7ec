"""One observation out of streams that come as they like: matched by stamp, refused when old.

All times are seconds of the monotonic clock: a stamp counts as the moment that lies as far back as
the stamping clock says. No ROS here.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

KEPT = 100
"""Joint states that wait for the picture they belong to: a second of them."""


@dataclass(frozen=True, kw_only=True)
class SyncConfig:
    """What belongs together."""

    cameras: tuple[str, ...]
    """Names in view order."""
    stale_s: float
    """Oldest picture or joint state of an observation."""
    apart_s: float
    """Largest distance in time between the parts of an observation."""
    frozen_s: float
    """How long a camera may show the same to the bit while the arm moves."""
    moved: float = 0.05
    """Distance, in the unit of the joint, after which a camera has to show something else."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is seen at one moment."""

    images: np.ndarray
    """RGB u8 [v, h, w, 3]."""
    proprio: np.ndarray
    """f32 [u]."""
    time_s: float
    """When the oldest part of it was measured."""
    underway_s: float = 0.0
    """How long its oldest picture was under way."""


class _View(NamedTuple):
    """The latest picture of a camera."""

    time_s: float
    came_s: float
    read: Callable[[], np.ndarray]
    """Decodes it; most pictures are never looked at."""


class _Look(NamedTuple):
    """What a camera showed when it last showed something new."""

    pixels: bytes
    time_s: float
    pose: np.ndarray


class Sync:
    """Takes what comes and says what is seen."""

    def __init__(self, config: SyncConfig) -> None:
        self.config = config
        self.joints: deque[tuple[float, np.ndarray]] = deque(maxlen=KEPT)
        self.views: dict[str, _View] = {}
        self.looks: dict[str, _Look] = {}

    def take_joints(self, time_s: float, pose: np.ndarray) -> None:
        """Take a measured pose f64 [u]; one that is older than the last is lost."""
        if not self.joints or time_s > self.joints[-1][0]:
            self.joints.append((time_s, pose))

    def take_picture(
        self, camera: str, time_s: float, read: Callable[[], np.ndarray], came_s: float = 0.0
    ) -> None:
        """Take a picture that `read` decodes to RGB u8 [h, w, 3], and when its message came; one
        that is older than the last is lost as well.
        """
        if camera not in self.views or time_s > self.views[camera].time_s:
            self.views[camera] = _View(time_s, came_s, read)

    def look(self, now_s: float) -> Seen | str:
        """Return what is seen now, or why nothing can be decided on it.

        Raises:
            ValueError: a picture cannot be read.
        """
        config = self.config
        if not self.joints:
            return "no joint states yet"
        missing = [name for name in config.cameras if name not in self.views]
        if missing:
            return f"no picture of camera {missing[0]} yet"
        views = [self.views[name] for name in config.cameras]
        times_s = [view.time_s for view in views]
        time_s, pose = min(self.joints, key=lambda one: abs(one[0] - max(times_s)))
        oldest_s, newest_s = min(*times_s, time_s), max(*times_s, time_s)
        if now_s - oldest_s > config.stale_s:
            part = "joint states" if oldest_s == time_s else self._oldest()
            return f"{part} {now_s - oldest_s:.2f} s old, at most {config.stale_s}"
        if not np.isfinite(pose).all():
            return "joint states are not finite"
        if newest_s - oldest_s > config.apart_s:
            return f"parts {newest_s - oldest_s:.2f} s apart, at most {config.apart_s}"
        images = [view.read() for view in views]
        for name, image in zip(config.cameras, images, strict=True):
            if self._is_frozen(name, image, now_s, pose):
                return f"camera {name} shows the same for {config.frozen_s} s while the arm moves"
        first = min(views, key=lambda view: view.time_s)
        return Seen(
            images=np.stack(images), proprio=pose.astype(np.float32), time_s=oldest_s,
            underway_s=first.came_s - first.time_s,
        )  # fmt: skip

    def _oldest(self) -> str:
        name = min(self.config.cameras, key=lambda name: self.views[name].time_s)
        return f"picture of camera {name}"

    def _is_frozen(self, name: str, image: np.ndarray, now_s: float, pose: np.ndarray) -> bool:
        last, now = self.looks.get(name), image.tobytes()
        if last is None or last.pixels != now:
            self.looks[name] = _Look(now, now_s, pose)
            return False
        moved = bool((np.abs(pose - last.pose) > self.config.moved).any())
        return moved and now_s - last.time_s > self.config.frozen_s
