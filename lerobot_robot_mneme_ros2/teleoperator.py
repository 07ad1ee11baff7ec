"""Teleoperator `mneme_ros2_joints`: a leader arm of any make whose joint states are on a topic."""

from dataclasses import dataclass, field
from typing import Any

from lerobot.teleoperators import Teleoperator, TeleoperatorConfig

from lerobot_robot_mneme_ros2 import joints
from vla.contracts import registry

FIRST_S = 10.0
"""How long the first joint states may take: the other side has to be found."""


@TeleoperatorConfig.register_subclass("mneme_ros2_joints")
@dataclass(kw_only=True)
class MnemeRos2JointsConfig(TeleoperatorConfig):
    """Settings `--teleop.NAME` of LeRobot's commands."""

    robot: str = "so101"
    """Arm that follows: a file name under vla/robots."""
    topic: str = "leader/joint_states"
    """Where the leader's joint states come, in the units of the arm that follows."""
    namespace: str = ""
    """Of that topic, where it is relative."""
    joints: dict[str, str] = field(default_factory=dict)
    """What the leader calls a joint of the arm, where it has another name."""
    stale_s: float = 0.5
    """Silence of the leader after which recording ends."""


class MnemeRos2Joints(Teleoperator):
    """A leader: the arm goes where it is moved."""

    config_class = MnemeRos2JointsConfig
    name = "mneme_ros2_joints"

    def __init__(self, config: MnemeRos2JointsConfig) -> None:
        """Read the description of the arm that follows.

        Raises:
            ValueError: there is no such arm.
        """
        self.leader: Any = None
        self.names: tuple[str, ...] = registry.load("vla.robots", config.robot).SPEC.names
        super().__init__(config)
        self.config = config

    @property
    def action_features(self) -> dict[str, Any]:
        """Joints."""
        return joints.features(self.names)

    @property
    def feedback_features(self) -> dict[str, Any]:
        """It feels nothing."""
        return {}

    @property
    def is_connected(self) -> bool:
        """Whether it is listened to."""
        return self.leader is not None

    @property
    def is_calibrated(self) -> bool:
        """Zero and sign are the driver's business."""
        return True

    def calibrate(self) -> None:
        """There is nothing to do."""

    def configure(self) -> None:
        """There is nothing to do."""

    def connect(self, calibrate: bool = True) -> None:
        """Listen, and wait until the leader speaks.

        Raises:
            ValueError: it does not, or has other joints.
        """
        c = self.config
        leader = joints.ros("leader").Leader(
            self.names, c.topic, namespace=c.namespace, called=c.joints, stale_s=c.stale_s
        )
        try:
            leader.pose(FIRST_S)
        except BaseException:
            leader.close()
            raise
        self.leader = leader

    def get_action(self) -> dict[str, float]:
        """Return where the leader is, in rad or m.

        Raises:
            ValueError: it fell silent.
        """
        return joints.told(self.names, self._leader().pose())

    def send_feedback(self, feedback: dict[str, Any]) -> None:
        """There is nothing to feel."""

    def disconnect(self) -> None:
        """Listen no longer."""
        leader, self.leader = self._leader(), None
        leader.close()

    def _leader(self) -> Any:
        if self.leader is None:
            raise ValueError(f"{self.name} is not connected; call connect() first")
        return self.leader
