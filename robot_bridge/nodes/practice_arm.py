"""Whoever practises on a simulated arm: acts as a policy does, begins episodes, and asks for help.

The help is that of the simulation's expert, which leads on `teleop` as a person would.
"""

import time

import numpy as np
from std_msgs.msg import Int32
from trajectory_msgs.msg import JointTrajectory

from robot_bridge import convert
from robot_bridge.nodes import common
from robot_bridge.nodes.remote_arm import RemoteArm
from robot_bridge.nodes.sim_guide import LEAD
from robot_bridge.nodes.simulated import Simulated
from vla.contracts.specs import RobotSpec

STALE_S, APART_S, FROZEN_S = 1.0, 0.5, 10.0
"""A busy machine delays pictures; what is too old for a real arm is waited for here."""


class PracticeArm(RemoteArm, Simulated):
    """An arm that is driven, and begun anew, from here."""

    def __init__(self, robot: RobotSpec) -> None:
        super().__init__(robot, as_="chunk", stale_s=STALE_S, apart_s=APART_S, frozen_s=FROZEN_S)

    def _connect(self) -> None:
        super()._connect()
        self.guide = self.node.create_publisher(Int32, "sim_arm/guide", common.COMMANDS)
        self.led: list[tuple[float, np.ndarray]] = []
        """When each target of whoever helps came, and which, f64 [u]."""
        self.node.create_subscription(JointTrajectory, "teleop", self._helper, common.COMMANDS)

    def ask(self, steps: int) -> None:
        """Ask for help for so many control steps; with 0 it ends."""
        with self.changed:
            self.led = []
        self.guide.publish(Int32(data=steps))

    def _helper(self, message: JointTrajectory) -> None:
        if message.header.frame_id != LEAD:
            return
        points = [message.points[0].positions]
        _, targets = convert.trajectory(
            message.joint_names, points, [0.0], self.robot.names, "teleop"
        )
        with self.changed:
            self.led.append((time.monotonic(), targets[0]))
            self.changed.notify_all()
