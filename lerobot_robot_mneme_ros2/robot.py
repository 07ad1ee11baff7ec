"""Robot `mneme_ros2`: the arm whose cameras, joints and safety node are on ROS 2's topics."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from lerobot.robots import Robot, RobotConfig

from lerobot_robot_mneme_ros2 import joints
from vla.contracts import registry
from vla.contracts.specs import RobotSpec

TOPICS = ("teleop", "chunk")
GLANCE_S = 2.0
"""How long a picture may be waited for once all have been seen."""


@RobotConfig.register_subclass("mneme_ros2")
@dataclass(kw_only=True)
class MnemeRos2Config(RobotConfig):
    """Settings `--robot.NAME` of LeRobot's commands."""

    robot: str = "so101"
    """Arm: a file name under vla/robots."""
    namespace: str = ""
    """Of the arm's nodes."""
    views: list[str] = field(default_factory=list)
    """Cameras by name; those of the arm's description if empty."""
    width_px: int = 0
    """Width of pictures; 0: as the description says."""
    height_px: int = 0
    """Height of pictures; 0: as the description says."""
    compressed: bool = False
    """Whether pictures come as cameras/NAME/image_raw/compressed."""
    fps: int = 30
    """Actions per second, the --dataset.fps of LeRobot."""
    topic: str = "teleop"
    """Who the actions come from: `teleop` a person, `chunk` a policy, which a monitor may slow."""
    max_relative_target: float | None = 0.5
    """Farthest that a target may be from where the joint is, rad or m; below the safety node's
    `jump`, which refuses what is farther."""
    hold_s: float = 60.0
    """How long the last target is said again between actions, as when an episode is saved, before
    the silence that latches the arm."""
    stale_s: float = 0.3
    """Oldest part of an observation."""
    apart_s: float = 0.1
    """Largest distance in time between the parts of an observation."""
    frozen_s: float = 1.0
    """How long a camera may show the same to the bit while the arm moves."""


class MnemeRos2(Robot):
    """The arm: enabled by `connect`, at rest and disarmed by `disconnect`."""

    config_class = MnemeRos2Config
    name = "mneme_ros2"

    def __init__(self, config: MnemeRos2Config) -> None:
        """Read the arm's description.

        Raises:
            ValueError: there is no such arm, or a setting is out of range.
        """
        self.arm: Any = None
        self.spec = described(config)
        super().__init__(config)
        self.config = config
        views = config.views or [camera.name for camera in self.spec.cameras]
        shape = (self.spec.cameras[0].height_px, self.spec.cameras[0].width_px, 3)
        self.cameras = dict.fromkeys(views, shape)
        self.target: np.ndarray | None = None

    @property
    def observation_features(self) -> dict[str, Any]:
        """Joints, then cameras with the shape of their pictures."""
        return {**joints.features(self.spec.names), **self.cameras}

    @property
    def action_features(self) -> dict[str, Any]:
        """Joints."""
        return joints.features(self.spec.names)

    @property
    def is_connected(self) -> bool:
        """Whether the arm is enabled by us."""
        return self.arm is not None

    @property
    def is_calibrated(self) -> bool:
        """Zero and sign are the driver's business."""
        return True

    def calibrate(self) -> None:
        """There is nothing to do."""

    def configure(self) -> None:
        """There is nothing to do."""

    def connect(self, calibrate: bool = True) -> None:
        """See the arm, and enable it.

        Raises:
            ValueError: something is not seen, or the safety node refuses.
        """
        c = self.config
        arm = joints.ros("remote_arm").RemoteArm(
            self.spec, namespace=c.namespace, cameras=tuple(self.cameras), compressed=c.compressed,
            stale_s=c.stale_s, apart_s=c.apart_s, frozen_s=c.frozen_s,
            as_="chunk" if c.topic == "chunk" else "teleop",
        )  # fmt: skip
        try:
            arm.hold_s = c.hold_s
            arm.look()
            arm.enable(True)
        except BaseException:
            arm.close()
            raise
        self.arm, self.target = arm, None

    def get_observation(self) -> dict[str, Any]:
        """Return joints in rad or m, and pictures RGB u8 [h, w, 3].

        Raises:
            ValueError: they are not seen any more.
        """
        seen = self._arm().look(GLANCE_S)
        told: dict[str, Any] = joints.told(self.spec.names, seen.proprio)
        return told | dict(zip(self.cameras, seen.images, strict=True))

    def send_action(self, action: dict[str, float]) -> dict[str, float]:
        """Have the arm move to a pose during the next period; return the pose that was sent.

        Raises:
            ValueError: the safety node does not follow any more; says why.
        """
        arm = self._arm()
        if arm.state not in ("holding", "following"):
            raise ValueError(refusal(arm.heard["safety_node"], self.config.namespace))
        measured = arm.eyes.pose()
        assert measured is not None
        wanted = joints.pose(self.spec.names, action)
        target = joints.near(wanted, measured, self.config.max_relative_target)
        # From the last one on: a lone target would be a pose to stop at, 30 times a second.
        arm.send(np.stack([measured if self.target is None else self.target, target]))
        self.target = target
        return joints.told(self.spec.names, target)

    def disconnect(self) -> None:
        """Bring the arm to rest, disarm it, and listen no longer.

        Raises:
            ValueError: the safety node does not answer; silence will stop the arm.
        """
        arm, self.arm = self._arm(), None
        try:
            arm.enable(False)
        finally:
            arm.close()

    def _arm(self) -> Any:
        if self.arm is None:
            raise ValueError(f"{self.name} is not connected; call connect() first")
        return self.arm


def described(config: MnemeRos2Config) -> RobotSpec:
    """Return the arm, with pictures and control steps as the settings say.

    Raises:
        ValueError: there is no such arm, or a setting is out of range.
    """
    if config.topic not in TOPICS:
        raise ValueError(f"topic: got {config.topic!r}, expected {' or '.join(TOPICS)}")
    if (config.width_px > 0) != (config.height_px > 0):
        raise ValueError(
            f"picture size: got {config.width_px} x {config.height_px}, expected both sides or "
            "neither (0)"
        )
    if config.fps < 1:
        raise ValueError(f"fps: got {config.fps}, expected at least 1")
    found: RobotSpec = registry.load("vla.robots", config.robot).SPEC
    cameras = found.cameras
    if config.width_px:
        cameras = tuple(
            dataclasses.replace(c, width_px=config.width_px, height_px=config.height_px)
            for c in cameras
        )
    return dataclasses.replace(found, cameras=cameras, control_hz=float(config.fps))


def refusal(heard: dict[str, Any], namespace: str) -> str:
    """Return why a safety node with these key-values follows nobody, and what to do."""
    by = f" by {heard['stage']}: {heard['why']}" if heard.get("stage") else ""
    there = f" --namespace {namespace}" if namespace else ""
    return (
        f"safety_node: {heard['state']}{by}; mend that, then `vla safety reset{there}` and start "
        "again"
    )
