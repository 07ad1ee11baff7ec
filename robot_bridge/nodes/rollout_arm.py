"""Drives a simulated arm for rollouts: acts as a policy, starts episodes, requests interventions.

The simulation's expert intervenes on `teleop`, in a person's place.
"""

import time

import numpy as np
from std_msgs.msg import Int32
from trajectory_msgs.msg import JointTrajectory

from robot_bridge.nodes import common
from robot_bridge.nodes.expert_teleop import LEAD
from robot_bridge.nodes.remote_arm import RemoteArm
from robot_bridge.nodes.sim_operator import SimOperator
from robot_bridge.sensing import convert
from robot_bridge.sensing.sync import SyncConfig
from vla.contracts.specs import RobotSpec

SYNC = SyncConfig(max_observation_age_s=1.0, max_sync_interval_s=0.5, frozen_image_timeout_s=10.0)
"""Limits of observations, looser than on a real arm: a busy machine delays images."""


class RolloutArm(RemoteArm, SimOperator):
    """A simulated arm that is driven and reset from this process."""

    def __init__(self, robot: RobotSpec) -> None:
        super().__init__(robot, topic="action_chunk", sync=SYNC)

    def _connect(self) -> None:
        super()._connect()
        self.guide = self.node.create_publisher(Int32, "sim_arm/guide", common.COMMANDS)
        self.expert_targets: list[tuple[float, np.ndarray]] = []
        """Arrival times and targets f64 [u] of the expert."""
        self.node.create_subscription(JointTrajectory, "teleop", self._on_teleop, common.COMMANDS)

    def request_expert(self, steps: int) -> None:
        """Let the expert act for so many control steps; 0 ends it."""
        with self.changed:
            self.expert_targets = []
        self.guide.publish(Int32(data=steps))

    def _on_teleop(self, message: JointTrajectory) -> None:
        if message.header.frame_id != LEAD:
            return
        points = [message.points[0].positions]
        _, targets = convert.trajectory(
            message.joint_names, points, [0.0], self.robot.names, "teleop"
        )
        with self.changed:
            self.expert_targets.append((time.monotonic(), targets[0]))
            self.changed.notify_all()
