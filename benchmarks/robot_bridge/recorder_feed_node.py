"""Node `feed`: publishes numbered messages of an arm for the studies of the recorder; no physics.

Message n carries n in its first joint, so that a study can tell which ones are missing, and
`positions` and `shade` say what else it carries.
"""

import array
import sys
from dataclasses import dataclass

from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.duration import Duration
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Header
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from benchmarks.robot_bridge import feed
from robot_bridge.launching.node_settings import check, ranged
from robot_bridge.nodes import common
from vla.contracts import registry
from vla.contracts.specs import RobotSpec


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters of the feed."""

    robot: str = "so101"
    """Robot: a file name under vla/robots."""
    rate_hz: float = ranged(50.0, 1.0, 1000.0)
    """Joint states and commands per second."""
    every: int = ranged(5, 1, 100)
    """Joint states between two images."""
    task_every_s: float = ranged(0.5, 0.05, 1e6)
    """Seconds between two tasks."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check(self)


class Feed(Node):
    """See the module."""

    def __init__(self) -> None:
        super().__init__("feed")
        self._settings: Settings = common.parameters(self, Settings)
        self._robot: RobotSpec = registry.load("vla.robots", self._settings.robot).SPEC
        self._states = self.create_publisher(JointState, "joint_states", common.DRIVERS)
        self._cameras = {
            camera: self.create_publisher(Image, f"cameras/{camera.name}/image_raw", common.DRIVERS)
            for camera in self._robot.cameras
        }
        self._commands = self.create_publisher(
            JointTrajectory, "joint_trajectory_controller/joint_trajectory", common.COMMANDS
        )
        self._tasks = self.create_publisher(Header, "instruction", common.LATCHED)
        self._status = self.create_publisher(DiagnosticArray, "safety_node/status", common.LATCHED)
        self._count = self._told = 0
        common.create_timer(self, 1.0 / self._settings.rate_hz, self._tick)
        common.create_timer(self, self._settings.task_every_s, self._tell)
        self._tell()

    def _tell(self) -> None:
        """Publish the next task; every second one is led by a person."""
        stamp = self.get_clock().now().to_msg()
        self._tasks.publish(Header(stamp=stamp, frame_id=feed.task(self._told)))
        line = common.status("safety_node", "ok", "", {"source": feed.source(self._told)})
        self._status.publish(common.array(self, line))
        self._told += 1

    def _tick(self) -> None:
        stamp = self.get_clock().now().to_msg()
        names = list(self._robot.names)
        positions = feed.positions(self._count, len(names))
        self._states.publish(JointState(header=Header(stamp=stamp), name=names, position=positions))
        if self._count % self._settings.every == 0:
            self._publish_pictures(stamp)
        point = JointTrajectoryPoint(
            positions=positions, time_from_start=Duration(seconds=0.1).to_msg()
        )
        self._commands.publish(
            JointTrajectory(header=Header(stamp=stamp), joint_names=names, points=[point])
        )
        self._count += 1

    def _publish_pictures(self, stamp: Time) -> None:
        for camera, publisher in self._cameras.items():
            pixels = feed.picture(self._count, camera.height_px, camera.width_px)
            publisher.publish(
                Image(
                    header=Header(stamp=stamp, frame_id=camera.name), height=camera.height_px,
                    width=camera.width_px, encoding="rgb8", step=3 * camera.width_px,
                    data=array.array("B", pixels.tobytes()),
                )
            )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the node; return the exit code."""
    return common.run(Feed, argv)


if __name__ == "__main__":
    sys.exit(main(sys.argv))
