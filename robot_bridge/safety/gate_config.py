"""Settings, states and stages of the safety gate."""

from dataclasses import dataclass
from typing import Literal

from robot_bridge.launching.node_settings import ranged

State = Literal["disabled", "holding", "tracking", "stopping", "latched_fault"]
"""disabled: no command leaves; the arm is where it was left.
holding: enabled, at rest or coming to rest, waiting for a chunk.
tracking: enabled, following a chunk.
stopping: coming to rest inside the limits, then perhaps going back to where the arm is held; then
disabled or latched_fault.
latched_fault: no command leaves until the latch is cleared and the arm enabled."""
Source = Literal["policy", "teleop"]
STAGES = (
    "names", "finite", "fresh", "position", "velocity", "acceleration", "jerk", "start_deviation",
    "tool_speed", "collision", "command_timeout", "policy_died", "joint_state_timeout",
    "tracking_error", "clock", "deadman", "speed_scaling", "driver_state", "second_publisher",
    "idle", "internal_error", "e-stop",
)  # fmt: skip
"""All stages, in order."""

LEASE_S = 0.3
"""Time in s in which the death of the policy's process is noticed."""
DRIFT = 0.2
"""Share by which a simulation's clock may run slower or faster than real time."""


@dataclass(frozen=True, kw_only=True)
class GateConfig:
    """Thresholds and timeouts of the gate; parameters of `safety_node`."""

    rate_hz: float = ranged(100.0, 20.0, 1000.0)
    """Commands per second."""
    lead_ticks: int = ranged(4, 0, 20)
    """Ticks between a decision and its motion. With 3 or more a trajectory may come to the
    controller so much late, less 2 ticks and one cycle of the controller, without a trace."""
    max_chunk_age_s: float = ranged(0.5, 0.01, 10.0)
    """Largest age in s of the observation behind an accepted chunk."""
    command_timeout_s: float = ranged(0.3, 0.02, 10.0)
    """Silence in s of the policy or device after which the arm stops and latches."""
    joint_state_timeout_s: float = ranged(0.2, 0.01, 10.0)
    """Silence in s of the joint states after which the arm stops and latches."""
    max_start_deviation: float = ranged(0.6, 0.001, 10.0)
    """Largest distance of a chunk from the measured pose, in rad, or a tenth of it in m."""
    max_tracking_error: float = ranged(0.1, 0.001, 10.0)
    """Largest distance of a joint from its command for `tracking_timeout_s`, in rad; or a tenth of
    it in m. Beyond that it may lag by `max_lag_s` of its speed. A gripper may hold something."""
    max_lag_s: float = ranged(0.1, 0.0, 1.0)
    """How late a joint may follow its command."""
    tracking_timeout_s: float = ranged(0.1, 0.0, 2.0)
    """How long a joint may be further from its command before the arm stops and latches."""
    rest_position_tolerance: float = ranged(0.05, 0.0, 0.2)
    """Largest distance of an arm at rest from its command, in rad, or a tenth of it in m."""
    deadman: bool = False
    """Whether the arm moves only while topic `deadman` is true."""
    deadman_timeout_s: float = ranged(0.25, 0.02, 5.0)
    """Silence in s of that topic that counts as letting go."""
    monitored: bool = False
    """Whether a policy is followed only while `speed_scaling` is published; a person always is."""
    speed_scaling_timeout_s: float = ranged(1.0, 0.05, 10.0)
    """Silence in s of that topic after which a monitored arm stands still; another continues."""
    idle_timeout_s: float = ranged(600.0, 0.0, 86400.0)
    """Time in s without anything to follow after which an armed arm is disabled; 0: never."""
