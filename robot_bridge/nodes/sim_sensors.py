"""Messages of a simulated arm's sensors and their transport; independent of the simulator."""

import array
import math
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
from builtin_interfaces.msg import Time
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState
from std_msgs.msg import Header

from robot_bridge.sim_arm.realtime_clock import LinkModel, Outbox
from vla.contracts.specs import CameraSpec

JPEG_QUALITY = 90


class SensorStream:
    """Output of one sensor with delay, jitter and losses; frozen or silent on request."""

    def __init__(self, outbox: Outbox, link: LinkModel, rng: np.random.Generator) -> None:
        """Send through an outbox by a link model; `rng` draws losses and jitter."""
        self.frozen = False
        """Repeats its last measurement with new stamps, as a hung driver does."""
        self.silent = False
        """Sends nothing, as an unplugged sensor does."""
        self.sent = 0
        self.lost = 0
        self._outbox, self._link, self._rng = outbox, link, rng
        self._last_due_s = 0.0
        self._last: Any = None

    def send(self, measured_s: float, value: Any, publish: Callable[[Any], None]) -> None:
        """Schedule the publication of a measurement, unless it is lost."""
        if self.frozen and self._last is not None:
            value = self._last
        self._last = value
        if self.silent:
            return
        due_s = self._link.arrival_s(self._rng, measured_s, self._last_due_s)
        if due_s is None:
            self.lost += 1
            return
        self._last_due_s = due_s
        self.sent += 1
        self._outbox.put(due_s, lambda: publish(value))


def stamp_of(time_s: float) -> Time:
    """Return seconds as a stamp."""
    whole = math.floor(time_s)
    return Time(sec=whole, nanosec=min(round(1e9 * (time_s - whole)), 999_999_999))


def joint_state(
    names: list[str], stamp: Time, positions: np.ndarray, velocities: np.ndarray
) -> JointState:
    """Return positions and velocities of joints."""
    position, velocity = positions.tolist(), velocities.tolist()
    return JointState(header=Header(stamp=stamp), name=names, position=position, velocity=velocity)


def image(camera: CameraSpec, stamp: Time, pixels: np.ndarray) -> Image:
    """Return an image u8 [h, w, 3] as a raw message."""
    return Image(
        header=Header(stamp=stamp, frame_id=camera.name), height=camera.height_px,
        width=camera.width_px, encoding="rgb8", step=3 * camera.width_px,
        data=array.array("B", pixels.tobytes()),  # bytes would be checked one by one
    )  # fmt: skip


def compressed(camera: CameraSpec, stamp: Time, pixels: np.ndarray) -> CompressedImage:
    """Return an image u8 [h, w, 3] as JPEG."""
    data = cv2.imencode(".jpg", pixels[..., ::-1], (cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY))[1]
    header = Header(stamp=stamp, frame_id=camera.name)
    return CompressedImage(header=header, format="jpeg", data=array.array("B", data.tobytes()))


def camera_info(camera: CameraSpec, stamp: Time) -> CameraInfo:
    """Return the matrix of a pinhole camera without distortion, square pixels.

    Pixel centers have whole coordinates, so the center of the image is at (w - 1) / 2.
    """
    focal_px = camera.height_px / 2 / math.tan(math.radians(camera.fovy_deg) / 2)
    cx, cy = (camera.width_px - 1) / 2, (camera.height_px - 1) / 2
    return CameraInfo(
        header=Header(stamp=stamp, frame_id=camera.name),
        height=camera.height_px, width=camera.width_px, distortion_model="plumb_bob", d=[0.0] * 5,
        k=[focal_px, 0.0, cx, 0.0, focal_px, cy, 0.0, 0.0, 1.0],
        r=[1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],
        p=[focal_px, 0.0, cx, 0.0, 0.0, focal_px, cy, 0.0, 0.0, 0.0, 1.0, 0.0],
    )  # fmt: skip
