"""Settings of the simulated arm: robot, rates, and delays and losses of its connections."""

import dataclasses
from pathlib import Path

from robot_bridge.launching import node_settings
from robot_bridge.launching.node_settings import chosen, ranged
from robot_bridge.sim_arm.realtime_clock import LinkModel


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters of `sim_arm`, read once at the start."""

    robot: str = "so101"
    """Robot, a file name under vla/robots, or a YAML file."""
    task: str = "pick_place"
    """Task, a file name under sim/tasks."""
    task_config: str = ""
    """Settings of the task that differ from the defaults, as JSON."""
    physics_hz: int = ranged(100, 1, 200)
    """Ticks of the physics per second; motors get new targets at each."""
    joint_state_hz: int = ranged(100, 1, 200)
    """Joint states per second, at most `physics_hz`."""
    camera_hz: int = ranged(30, 0, 200)
    """Images of each camera per second; 0: no cameras and no OpenGL."""
    camera_width_px: int = ranged(0, 0, 4096)
    """Width of images; 0 for the robot's."""
    camera_height_px: int = ranged(0, 0, 4096)
    """Height of images; 0 for the robot's."""
    compressed: bool = False
    """Whether images are also published as JPEG."""
    joints: tuple[str, ...] = ()
    """Order of joints in forward commands and joint states; the robot's order if empty."""
    driver: str = ""
    """Driver file, or its name under launch/drivers: names of joints, controllers and states. If
    empty, one controller has all joints under the robot's names."""
    joint_latency_s: float = ranged(0.0, 0.0, 10.0)
    """Delay of joint states."""
    joint_jitter_s: float = ranged(0.0, 0.0, 10.0)
    """Upper end of a further random delay of joint states."""
    joint_drop: float = ranged(0.0, 0.0, 1.0)
    """Probability that a joint state is lost."""
    camera_latency_s: tuple[float, ...] = (0.0,)
    """Delay of images: one for all cameras, or one per camera in the robot's order."""
    camera_jitter_s: tuple[float, ...] = (0.0,)
    """Upper end of a further random delay of images, likewise."""
    camera_drop: tuple[float, ...] = (0.0,)
    """Probability that an image is lost, likewise."""
    command_latency_s: float = ranged(0.0, 0.0, 10.0)
    """Delay of commands."""
    command_jitter_s: float = ranged(0.0, 0.0, 10.0)
    """Upper end of a further random delay of commands."""
    command_drop: float = ranged(0.0, 0.0, 1.0)
    """Probability that a command is lost."""
    lag_s: float = ranged(0.0, 0.0, 10.0)
    """Time constant of the motors, a first-order filter; 0: none."""
    interface: str = chosen("both", "both", "trajectory", "forward")
    """Types of controllers that take commands."""
    interpolate_from_desired_state: bool = True
    """Where the way to a trajectory's first point begins, if that lies ahead: at the last
    reference, else at the measured pose. As the parameter of joint_trajectory_controller."""
    waits: bool = False
    """Whether the time of an episode begins with the first command; else with its reset."""
    publish_clock: bool = False
    """Whether simulated time is published on /clock and used for stamps."""
    rate: float = ranged(1.0, 0.05, 20.0)
    """Simulated seconds per second."""
    log_commands: str = ""
    """File (.npz) for all received commands, written at the end; none if empty."""

    def __post_init__(self) -> None:
        node_settings.check(self)
        if self.driver and self.joints:
            raise ValueError(f"driver: {self.driver} has the controllers; leave joints out")
        if self.joint_state_hz > self.physics_hz:
            raise ValueError(
                f"joint_state_hz: got {self.joint_state_hz}, expected at most physics_hz, "
                f"{self.physics_hz}"
            )
        if (self.camera_width_px > 0) != (self.camera_height_px > 0):
            raise ValueError(
                f"camera size: got {self.camera_width_px} x {self.camera_height_px}, expected both "
                "sides or neither (0)"
            )
        path = Path(self.log_commands)
        if self.log_commands and (path.suffix != ".npz" or not path.parent.is_dir()):
            raise ValueError(
                f"log_commands: got {path}, expected a .npz file in an existing folder"
            )

    def commands(self) -> LinkModel:
        """Return the connection of commands, in simulated seconds."""
        return LinkModel(
            latency_s=self.command_latency_s, jitter_s=self.command_jitter_s,
            drop=self.command_drop,
        )  # fmt: skip

    def states(self) -> LinkModel:
        """Return the connection of joint states, in wall-clock seconds."""
        return LinkModel(
            latency_s=self.joint_latency_s / self.rate, jitter_s=self.joint_jitter_s / self.rate,
            drop=self.joint_drop,
        )  # fmt: skip

    def images(self, cameras: int) -> list[LinkModel]:
        """Return the connection of each camera, in wall-clock seconds.

        Raises:
            ValueError: the number of values is neither 1 nor that of the cameras.
        """
        columns = {}
        for name in ("camera_latency_s", "camera_jitter_s", "camera_drop"):
            values = getattr(self, name)
            if len(values) not in (1, cameras):
                raise ValueError(f"{name}: got {len(values)} values, expected 1 or {cameras}")
            columns[name] = list(values) * (cameras if len(values) == 1 else 1)
        return [
            LinkModel(latency_s=latency_s / self.rate, jitter_s=jitter_s / self.rate, drop=drop)
            for latency_s, jitter_s, drop in zip(*columns.values(), strict=True)
        ]
