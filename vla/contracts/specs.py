"""Descriptions of robots and environments: channels with units and limits, cameras, rates."""

from dataclasses import dataclass, field
from typing import Literal

MAX_IMAGE_PX = 1 << 25
"""Most pixels of an image, 33 megapixels: what declares more is refused before it is decoded."""

Unit = Literal["rad", "m", "1"]
"""Radians, metres, or a normalised command of the simulator's own controller."""


@dataclass(frozen=True, kw_only=True)
class Channel:
    """One actuated joint: its name in MJCF and ROS, its unit and its limits."""

    name: str
    """Joint name; the MJCF actuator of the same name takes position targets."""
    unit: Unit
    """Unit of position; velocity is unit/s, acceleration unit/s^2, jerk unit/s^3."""
    low: float
    """Lower position limit."""
    high: float
    """Upper position limit."""
    velocity: float
    """Largest absolute velocity."""
    acceleration: float
    """Largest absolute acceleration."""
    jerk: float
    """Largest absolute jerk."""
    source: str
    """Source of the limits: data sheet, URDF or our choice, in a few words."""


@dataclass(frozen=True, kw_only=True)
class Gripper:
    """Which channel opens and closes the hand."""

    channel: str
    """Name of the gripper channel."""
    open: float
    """Channel position when wide open."""
    closed: float
    """Channel position when fully closed."""


@dataclass(frozen=True, kw_only=True)
class CameraSpec:
    """One camera: pose and image size."""

    name: str
    """Name of the camera in MJCF, in data sets (`observation.images.NAME`) and in ROS topics."""
    body: str
    """Body it is fixed to: "world" or a body of the robot."""
    pos_m: tuple[float, float, float]
    """Position in the frame of `body`."""
    target_m: tuple[float, float, float]
    """Point it looks at, in the frame of `body`."""
    fovy_deg: float
    """Vertical field of view."""
    width_px: int = 96
    """Image width."""
    height_px: int = 96
    """Image height."""

    def __post_init__(self) -> None:
        height, width = self.height_px, self.width_px
        if not (min(height, width) >= 1 and height * width <= MAX_IMAGE_PX):
            raise ValueError(
                f"camera {self.name!r}: got images of {height} x {width}, expected 1 to "
                f"{MAX_IMAGE_PX:,} pixels"
            )


@dataclass(frozen=True, kw_only=True)
class RobotSpec:
    """An arm: everything that simulation, policy, safety and ROS must agree on."""

    name: str
    """Registry key: the file name under `vla/robots`."""
    channels: tuple[Channel, ...]
    """Actuated joints in the order of actions and proprioception."""
    gripper: Gripper
    """The hand."""
    home: tuple[float, ...]
    """Rest pose, one position per channel."""
    cameras: tuple[CameraSpec, ...]
    """Cameras in view order."""
    control_hz: float
    """Rate at which actions are applied."""
    mjcf: str
    """Model file: a name under `sim/assets` or an absolute path to a user's own MJCF; "" where its
    simulator brings its own. It has a site "tool" between the fingertips: z points out of the hand,
    y along the opening direction, and one position actuator per channel."""
    reach_m: tuple[float, float] = field(default=(0.12, 0.34))
    """Smallest and largest horizontal distance from the base at which tasks place objects."""

    @property
    def names(self) -> tuple[str, ...]:
        """Channel names in order."""
        return tuple(c.name for c in self.channels)

    @property
    def low(self) -> tuple[float, ...]:
        """Lower position limits in channel order."""
        return tuple(c.low for c in self.channels)

    @property
    def high(self) -> tuple[float, ...]:
        """Upper position limits in channel order."""
        return tuple(c.high for c in self.channels)


@dataclass(frozen=True, kw_only=True)
class EnvSpec:
    """Description of a `VecEnv`: task, arm, instructions and time limit."""

    task: str
    """Registry key of the task."""
    robot: RobotSpec
    """The arm."""
    instructions: tuple[str, ...]
    """Every instruction an episode may carry."""
    max_episode_steps: int
    """Control steps after which an episode is truncated."""
