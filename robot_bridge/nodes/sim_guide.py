"""The expert of a simulated task in a person's place: its targets go out on topic `teleop`.

A stand-in for studies, on a simulated arm alone: what it says passes the same gate as a person.
"""

from collections.abc import Callable
from typing import Any

from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_bridge.nodes import common


class Guide:
    """Leads for as many control steps as it is asked to; then it is silent, and when it is asked
    again it goes on where it was.

    Args:
        node: Who publishes.
        live: The world and its expert (`sim.live.Live`).
        names: Joints, in the order of targets.
    """

    def __init__(self, node: Any, live: Any, names: tuple[str, ...]) -> None:
        self._left = 0
        self._live, self._names, self._due = live, list(names), 0
        self._stamp, self._publish = node.stamp, node.publish
        self._publisher = node.create_publisher(JointTrajectory, "teleop", common.COMMANDS)

    def ask_(self, steps: int) -> None:
        """Let the expert lead for so many control steps from now on; with 0 it gives back."""
        self._left = steps
        if not steps:
            self._live.let_go_()

    def lead_(self, tick: int, now_s: float) -> Callable[[], None] | None:
        """Return what tells the target of the control step that begins now, if one is due.

        Args:
            tick: Of the physics.
            now_s: Its simulated time.
        """
        if not self._left or tick < self._due:
            return None
        self._left, self._due = self._left - 1, tick + self._live.ticks_per_step
        message = JointTrajectory(joint_names=self._names)
        message.header.stamp = self._stamp(now_s)
        message.points = [JointTrajectoryPoint(positions=self._live.guide_().tolist())]
        return lambda: self._publish(self._publisher, message)
