"""Publishes synthetic images as camera drivers do: the load for timing the bridge."""

from array import array
from dataclasses import dataclass

import numpy as np
from rclpy.node import Node
from sensor_msgs.msg import Image

from robot_bridge.launching.node_settings import check, ranged
from robot_bridge.nodes import common

PICTURES = 4
"""Number of different images."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters of `camera_feed`."""

    cameras: tuple[str, ...] = ("front", "wrist")
    """Camera names."""
    width: int = ranged(640, 16, 4096)
    """Pixels of a row."""
    height: int = ranged(480, 16, 4096)
    """Rows."""
    hz: float = ranged(30.0, 0.1, 200.0)
    """Images of each camera per second."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check(self)


class CameraFeed(Node):
    """Publishes synthetic camera images."""

    def __init__(self) -> None:
        super().__init__("camera_feed")
        s: Settings = common.parameters(self, Settings)
        rng, shape = np.random.default_rng(0), (s.height, s.width, 3)
        self.pictures = [
            array("B", rng.integers(0, 255, shape, np.uint8).tobytes()) for _ in range(PICTURES)
        ]
        self.settings, self.count = s, 0
        self.speakers = [
            self.create_publisher(Image, f"cameras/{name}/image_raw", common.DRIVERS)
            for name in s.cameras
        ]
        common.create_timer(self, 1 / s.hz, self._show)

    def _show(self) -> None:
        s = self.settings
        self.count += 1
        for speaker in self.speakers:
            message = Image(
                height=s.height, width=s.width, step=3 * s.width, encoding="rgb8",
                data=self.pictures[self.count % PICTURES],
            )  # fmt: skip
            message.header.stamp = self.get_clock().now().to_msg()
            speaker.publish(message)


def main(argv: list[str] | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM."""
    return common.run(CameraFeed, argv)


if __name__ == "__main__":
    raise SystemExit(main())
