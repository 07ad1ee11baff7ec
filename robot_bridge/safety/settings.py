"""Parameters of the safety node."""

from dataclasses import dataclass

from robot_bridge.launching.node_settings import check, chosen, ranged
from robot_bridge.launching.realtime import RealtimeOptions
from robot_bridge.safety.gate_config import GateConfig

LEAST_LEAD = 3


@dataclass(frozen=True, kw_only=True)
class Settings(GateConfig, RealtimeOptions):
    """Parameters of `safety_node`."""

    robot: str = "so101"
    """Robot, a file name under vla/robots, or a YAML file."""
    limits: str = ""
    """File with acceleration and jerk of every joint; required."""
    max_velocity_scaling_factor: float = ranged(1.0, 0.01, 1.0)
    """Share of the limits' velocity, acceleration and jerk; 0.1 for first motions."""
    controller_type: str = chosen("trajectory", "trajectory", "forward")
    """Type of the controller: joint_trajectory_controller or forward_command_controller."""
    joints: tuple[str, ...] = ()
    """Order of joints of a forward command; the robot's order if empty."""
    driver: str = ""
    """Driver file, or its name under launch/drivers: names of joints, controllers and states. If
    empty, one controller has all joints under the robot's names."""
    collision: bool = False
    """Whether the arm stops before it collides with itself, its table or the sides of its workspace
    by its model; needs MuJoCo."""
    margin: float = ranged(0.005, 0.001, 0.05)
    """Distance in m that is kept; links that are closer at home are not checked."""
    max_tool_speed: float = ranged(0.0, 0.0, 10.0)
    """Largest speed in m/s of the site "tool" between the fingertips, such as 0.25 with people
    near; 0: none. Needs MuJoCo and the arm's model."""
    log: str = ""
    """File (.npz), written at the end, with arrivals of chunks and commands; none if empty."""

    def __post_init__(self) -> None:
        check(self)
        if not self.limits:
            raise ValueError(
                "limits: not given; name a file with acceleration and jerk of every joint, such as "
                "those under launch/params"
            )
        if self.driver and (self.joints or self.controller_type != "trajectory"):
            raise ValueError(
                f"driver: {self.driver} has the controllers; leave joints and controller_type out"
            )
        if self.controller_type == "trajectory" and self.lead_ticks < LEAST_LEAD:
            raise ValueError(
                f"lead_ticks: got {self.lead_ticks}, expected at least {LEAST_LEAD}: the motion "
                "between two ticks depends on so many"
            )
