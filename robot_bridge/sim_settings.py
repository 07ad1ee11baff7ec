"""Settings of the simulated arm: what it is, how fast, and how badly its wires behave."""

import dataclasses
from pathlib import Path

from robot_bridge import settings
from robot_bridge.realtime import Line
from robot_bridge.settings import chosen, ranged


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters that are read once, at the start."""

    robot: str = "so101"
    """Name of a file in vla/robots."""
    task: str = "pick_place"
    """Name of a file in sim/tasks."""
    task_config: str = ""
    """Settings of the task as JSON, as far as they differ from the defaults."""
    physics_hz: int = ranged(100, 1, 200)
    """Ticks of physics in a second, at which motors get new targets."""
    joint_state_hz: int = ranged(100, 1, 200)
    """Joint states in a second, no more than ticks."""
    camera_hz: int = ranged(30, 0, 200)
    """Pictures of each camera in a second; 0: no cameras, and no OpenGL."""
    camera_width_px: int = ranged(0, 0, 4096)
    """Width of pictures; 0: as the robot's description says."""
    camera_height_px: int = ranged(0, 0, 4096)
    """Height of pictures; 0: as the robot's description says."""
    compressed: bool = False
    """Whether pictures come as JPEG as well."""
    joints: tuple[str, ...] = ()
    """Order of the joints in forward commands and joint states; empty: the robot's own."""
    joint_latency_s: float = ranged(0.0, 0.0, 10.0)
    """Delay of joint states."""
    joint_jitter_s: float = ranged(0.0, 0.0, 10.0)
    """Upper end of a further random delay of joint states."""
    joint_drop: float = ranged(0.0, 0.0, 1.0)
    """Probability that a joint state is lost."""
    camera_latency_s: tuple[float, ...] = (0.0,)
    """Delay of pictures: one for all cameras, or one for each in the robot's order."""
    camera_jitter_s: tuple[float, ...] = (0.0,)
    """Upper end of a further random delay of pictures, likewise."""
    camera_drop: tuple[float, ...] = (0.0,)
    """Probability that a picture is lost, likewise."""
    command_latency_s: float = ranged(0.0, 0.0, 10.0)
    """Delay of commands behind the controller's input."""
    command_jitter_s: float = ranged(0.0, 0.0, 10.0)
    """Upper end of a further random delay of commands."""
    command_drop: float = ranged(0.0, 0.0, 1.0)
    """Probability that a command is lost."""
    lag_s: float = ranged(0.0, 0.0, 10.0)
    """Time constant with which motors follow their setpoints, a first-order filter; 0: none."""
    interface: str = chosen("both", "both", "trajectory", "forward")
    """Controllers that take commands."""
    waits: bool = False
    """Whether the time of an episode begins with the first command; else with its reset."""
    publish_clock: bool = False
    """Whether simulated time is published on /clock, and stamps are of it."""
    rate: float = ranged(1.0, 0.05, 20.0)
    """Simulated seconds in a second of the clock on the wall."""
    log_commands: str = ""
    """File (.npz) for every command that came, written at the end; empty: none."""

    def __post_init__(self) -> None:
        settings.check(self)
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

    def commands(self) -> Line:
        """Return how commands get through, in simulated seconds."""
        return Line(
            latency_s=self.command_latency_s, jitter_s=self.command_jitter_s,
            drop=self.command_drop,
        )  # fmt: skip

    def states(self) -> Line:
        """Return how joint states get through, in seconds of the clock on the wall."""
        return Line(
            latency_s=self.joint_latency_s / self.rate, jitter_s=self.joint_jitter_s / self.rate,
            drop=self.joint_drop,
        )  # fmt: skip

    def pictures(self, cameras: int) -> list[Line]:
        """Return how each camera's pictures get through, in seconds of the clock on the wall.

        Raises:
            ValueError: there are neither one value nor as many as cameras.
        """
        columns = {}
        for name in ("camera_latency_s", "camera_jitter_s", "camera_drop"):
            values = getattr(self, name)
            if len(values) not in (1, cameras):
                raise ValueError(f"{name}: got {len(values)} values, expected 1 or {cameras}")
            columns[name] = list(values) * (cameras if len(values) == 1 else 1)
        return [
            Line(latency_s=latency_s / self.rate, jitter_s=jitter_s / self.rate, drop=drop)
            for latency_s, jitter_s, drop in zip(*columns.values(), strict=True)
        ]
