"""Robot `mneme_ros2`: an arm with cameras, joints and safety node on ROS 2 topics."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from lerobot.robots import Robot, RobotConfig

from lerobot_robot_mneme_ros2 import joints
from robot_bridge.sensing.sync import SyncConfig
from vla.contracts import robot_file
from vla.contracts.specs import RobotSpec

TOPICS = ("teleop", "action_chunk")
OBSERVATION_TIMEOUT_S = 2.0
"""Longest wait in s for an observation after the first one."""


@RobotConfig.register_subclass("mneme_ros2")
@dataclass(kw_only=True)
class MnemeRos2Config(RobotConfig):
    """Settings `--robot.NAME` of LeRobot's commands."""

    robot: str = "so101"
    """Robot, a file name under vla/robots, or a YAML file."""
    namespace: str = ""
    """Namespace of the arm's nodes."""
    views: list[str] = field(default_factory=list)
    """Cameras; those of the robot if empty."""
    width_px: int = 0
    """Width of images; 0 for the robot's."""
    height_px: int = 0
    """Height of images; 0 for the robot's."""
    compressed: bool = False
    """Whether images come as cameras/NAME/image_raw/compressed."""
    fps: int = 30
    """Actions per second, as --dataset.fps of LeRobot."""
    topic: str = "teleop"
    """Topic of the actions: `teleop` of a person, `action_chunk` of a policy, which a monitor may
    slow."""
    max_relative_target: float | None = 0.5
    """Largest distance of a target from the joint, rad or m; below the safety node's
    `max_start_deviation`, which refuses larger ones."""
    hold_s: float = 60.0
    """Time in s for which the last target is repeated between actions, as while an episode is
    saved, before the arm latches on silence."""
    max_observation_age_s: float = 0.3
    """Largest age in s of any part of an observation."""
    max_sync_interval_s: float = 0.1
    """Largest time in s between the parts of an observation."""
    frozen_image_timeout_s: float = 1.0
    """Longest time in s a camera may show the same image to the bit while the arm moves."""


class MnemeRos2(joints.Connected, Robot):
    """An arm that `connect` enables, and `disconnect` brings to rest and disables."""

    config_class = MnemeRos2Config
    name = "mneme_ros2"

    def __init__(self, config: MnemeRos2Config) -> None:
        """Read the robot's description.

        Raises:
            ValueError: there is no such robot, or a setting is out of range.
        """
        self.spec = described(config)
        super().__init__(config)
        self.config = config
        views = config.views or [camera.name for camera in self.spec.cameras]
        shape = (self.spec.cameras[0].height_px, self.spec.cameras[0].width_px, 3)
        self.cameras = dict.fromkeys(views, shape)
        self.target: np.ndarray | None = None

    @property
    def observation_features(self) -> dict[str, Any]:
        """Joints, then cameras with the shape of their images."""
        return {**joints.features(self.spec.names), **self.cameras}

    @property
    def action_features(self) -> dict[str, Any]:
        """Joints."""
        return joints.features(self.spec.names)

    def connect(self, calibrate: bool = True) -> None:
        """Wait for an observation, and enable the arm.

        Raises:
            ValueError: a part of the observation is missing, or the safety node refuses.
        """
        c = self.config
        sync = SyncConfig(
            max_observation_age_s=c.max_observation_age_s,
            max_sync_interval_s=c.max_sync_interval_s,
            frozen_image_timeout_s=c.frozen_image_timeout_s,
        )
        arm = joints.ros("remote_arm").RemoteArm(
            self.spec, namespace=c.namespace, cameras=tuple(self.cameras), compressed=c.compressed,
            sync=sync, topic="action_chunk" if c.topic == "action_chunk" else "teleop",
        )  # fmt: skip
        try:
            arm.hold_s = c.hold_s
            arm.look()
            arm.enable(True)
        except BaseException:
            arm.close()
            raise
        self.device, self.target = arm, None

    def get_observation(self) -> dict[str, Any]:
        """Return joints in rad or m, and images RGB u8 [h, w, 3].

        Raises:
            ValueError: there is no observation in time.
        """
        observation = self.connection().look(OBSERVATION_TIMEOUT_S)
        positions: dict[str, Any] = joints.named_positions(self.spec.names, observation.proprio)
        return positions | dict(zip(self.cameras, observation.images, strict=True))

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        """Move the arm to a pose during the next period; return the pose that was sent.

        Raises:
            ValueError: the safety node has stopped following; says why.
        """
        arm = self.connection()
        if arm.state not in ("holding", "tracking"):
            raise ValueError(refusal(arm.heard["safety_node"], self.config.namespace))
        measured = arm.observations.pose()
        assert measured is not None
        target, limit = joints.pose(self.spec.names, action), self.config.max_relative_target
        if limit is not None:
            target = np.clip(target, measured - limit, measured + limit)
        # Starts at the last target: a single one would be a pose to stop at, 30 times a second.
        arm.send(np.stack([measured if self.target is None else self.target, target]))
        self.target = target
        return joints.named_positions(self.spec.names, target)

    def disconnect(self) -> None:
        """Bring the arm to rest, disable it, and close the connection.

        Raises:
            ValueError: the safety node does not answer; silence will stop the arm.
        """
        arm, self.device = self.connection(), None
        try:
            arm.enable(False)
        finally:
            arm.close()


def described(config: MnemeRos2Config) -> RobotSpec:
    """Return the robot with the image size and control rate of the settings.

    Raises:
        ValueError: there is no such robot, or a setting is out of range.
    """
    if config.topic not in TOPICS:
        raise ValueError(f"topic: got {config.topic!r}, expected {' or '.join(TOPICS)}")
    if (config.width_px > 0) != (config.height_px > 0):
        raise ValueError(
            f"image size: got {config.width_px} x {config.height_px}, expected both sides or "
            "neither (0)"
        )
    if config.fps < 1:
        raise ValueError(f"fps: got {config.fps}, expected at least 1")
    spec: RobotSpec = robot_file.load(config.robot)
    cameras = spec.cameras
    if config.width_px:
        cameras = tuple(
            dataclasses.replace(c, width_px=config.width_px, height_px=config.height_px)
            for c in cameras
        )
    return dataclasses.replace(spec, cameras=cameras, control_hz=float(config.fps))


def refusal(heard: dict[str, Any], namespace: str) -> str:
    """Return why a safety node with these key-values follows no target, and what to do."""
    by = f" by {heard['stage']}: {heard['why']}" if heard.get("stage") else ""
    option = f" --namespace {namespace}" if namespace else ""
    return (
        f"safety_node: {heard['state']}{by}; remove the cause, then `vla safety reset{option}` and "
        "start again"
    )
