"""The expert of a simulated task in a person's place: its targets go out on topic `teleop`.

A stand-in for studies, on a simulated arm alone: what it says passes the same gate as a person.
"""

import threading
from collections.abc import Callable
from typing import Any

from std_msgs.msg import Int32
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_bridge.nodes import common

LEAD, HOLD = "lead", "hold"
"""Frame of a message with a target, and of one that says the last one again."""
GAP = 1.5
"""Control steps without a new target after which the last one is said again."""


class Guide:
    """Leads for as many control steps as topic `~/guide` asks for, then holds still until it is
    asked again, and goes on where it was; with 0 it gives back.

    Args:
        node: Who listens and publishes.
        live: The world and its expert (`sim.live.Live`).
        names: Joints, in the order of targets.
    """

    def __init__(self, node: Any, live: Any, names: tuple[str, ...]) -> None:
        self._live, self._names = live, list(names)
        self._stamp, self._publish = node.stamp, node.publish
        self._lock = threading.Lock()
        self._left = 0
        self._target: list[float] | None = None
        self._due = self._late = 0  # ticks: of the next target, and of saying the last one again
        self._publisher = node.create_publisher(JointTrajectory, "teleop", common.COMMANDS)
        heard = lambda message: self.ask_(message.data)  # noqa: E731
        node.create_subscription(Int32, "~/guide", heard, common.COMMANDS)

    def ask_(self, steps: int) -> None:
        """Let the expert lead for so many control steps from now on; with 0 it gives back."""
        with self._lock:
            self._left = max(0, steps)
            if not self._left:
                self._target = None
                self._live.let_go_()

    def lead_(self, tick: int, now_s: float) -> Callable[[], None] | None:
        """Return what tells the target of the control step that begins now, if one is due.

        Args:
            tick: Of the physics.
            now_s: Its simulated time.
        """
        with self._lock:
            leads = self._left > 0
            if not (leads or self._target) or tick < (self._due if leads else self._late):
                return None
            message = JointTrajectory(joint_names=self._names)
            message.header.stamp, message.header.frame_id = self._stamp(now_s), HOLD
            self._late = tick + round(GAP * self._live.ticks_per_step)
            if leads:
                self._due = tick + self._live.ticks_per_step
                self._left, message.header.frame_id = self._left - 1, LEAD
                self._target = self._live.guide_().tolist()
            message.points = [JointTrajectoryPoint(positions=self._target)]
        return lambda: self._publish(self._publisher, message)
