"""Teleoperator `mneme_ros2_joints`: a leader arm of any make with joint states on a topic."""

from dataclasses import dataclass, field
from typing import Any

from lerobot.teleoperators import Teleoperator, TeleoperatorConfig

from lerobot_robot_mneme_ros2 import joints
from vla.contracts import robot_file

FIRST_S = 10.0
"""Longest time in s until the first joint states, discovery included."""


@TeleoperatorConfig.register_subclass("mneme_ros2_joints")
@dataclass(kw_only=True)
class MnemeRos2JointsConfig(TeleoperatorConfig):
    """Settings `--teleop.NAME` of LeRobot's commands."""

    robot: str = "so101"
    """Robot that follows, a file name under vla/robots."""
    topic: str = "leader/joint_states"
    """Topic of the leader's joint states, in the units of the robot that follows."""
    namespace: str = ""
    """Namespace of a relative topic."""
    joints: dict[str, str] = field(default_factory=dict)
    """The leader's name of a joint, where it differs."""
    max_observation_age_s: float = 0.5
    """Silence in s of the leader after which recording ends."""


class MnemeRos2Joints(joints.Connected, Teleoperator):
    """A leader arm, whose pose is the action."""

    config_class = MnemeRos2JointsConfig
    name = "mneme_ros2_joints"

    def __init__(self, config: MnemeRos2JointsConfig) -> None:
        """Read the description of the robot that follows; ValueError if there is no such robot."""
        self.names: tuple[str, ...] = robot_file.load(config.robot).names
        super().__init__(config)
        self.config = config

    @property
    def action_features(self) -> dict[str, Any]:
        """Joints."""
        return joints.features(self.names)

    @property
    def feedback_features(self) -> dict[str, Any]:
        """None."""
        return {}

    def connect(self, calibrate: bool = True) -> None:
        """Subscribe, and wait for the leader's first pose.

        Raises:
            ValueError: none comes, or it has other joints.
        """
        c = self.config
        leader = joints.ros("leader").Leader(
            self.names,
            c.topic,
            namespace=c.namespace,
            leader_names=c.joints,
            max_observation_age_s=c.max_observation_age_s,
        )
        try:
            leader.pose(FIRST_S)
        except BaseException:
            leader.close()
            raise
        self.device = leader

    def get_action(self) -> dict[str, float]:
        """Return the leader's pose, in rad or m; ValueError if the leader is silent."""
        return joints.named_positions(self.names, self.connection().pose())

    def send_feedback(self, feedback: dict[str, Any]) -> None:
        """There is nothing to do."""

    def disconnect(self) -> None:
        """Close the subscription."""
        leader, self.device = self.connection(), None
        leader.close()
