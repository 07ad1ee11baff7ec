"""A simulated task's expert in a person's place: publishes its targets on topic `teleop`.

Its targets pass the same gate as a person's.
"""

import threading
from collections.abc import Callable
from typing import Any

from std_msgs.msg import Int32
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_bridge.nodes import common

LEAD, HOLD = "lead", "hold"
"""Frame of a message with a new target, and of a repeated one."""
GAP = 1.5
"""Control steps without a new target after which the last one is repeated."""


class ExpertTeleop:
    """Acts for the number of control steps on topic `~/guide`, then holds until the next request;
    0 ends it.

    Args:
        node: Node with the topics.
        live: The world and its expert (`sim.vector.realtime_world.RealtimeWorld`).
        names: Joints in the order of targets.
    """

    def __init__(self, node: Any, live: Any, names: tuple[str, ...]) -> None:
        self._live, self._names = live, list(names)
        self._stamp, self._publish = node.stamp, node.publish
        self._lock = threading.Lock()
        self._left = 0
        self._target: list[float] | None = None
        self._due = self._late = 0  # ticks: of the next target, and of saying the last one again
        self._publisher = node.create_publisher(JointTrajectory, "teleop", common.COMMANDS)
        receive = lambda message: self.request(message.data)  # noqa: E731
        node.create_subscription(Int32, "~/guide", receive, common.COMMANDS)

    def request(self, steps: int) -> None:
        """Let the expert act for so many control steps from now on; 0 ends it."""
        with self._lock:
            self._left = max(0, steps)
            if not self._left:
                self._target = None
                self._live.release_expert()

    def next_message(self, tick: int, now_s: float) -> Callable[[], None] | None:
        """Return the publication of the target at a tick and its time, None if none is due."""
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
                self._target = self._live.expert_action().tolist()
            message.points = [JointTrajectoryPoint(positions=self._target)]
        return lambda: self._publish(self._publisher, message)
