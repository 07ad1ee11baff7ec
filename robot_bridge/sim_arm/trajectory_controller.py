"""What `joint_trajectory_controller` makes of its messages, after ros2_controllers.

It samples the latest trajectory once per cycle: straight lines between points with positions alone,
cubic polynomials if both have velocities, of fifth degree if both have accelerations as well.
Before the first point it comes from the state it had when the message came. Newer versions need
`allow_trajectory_replacement: false`: how they join trajectories otherwise is not emulated. This
module does not import ROS, and all times are seconds of one clock.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np


class State(NamedTuple):
    """Position, velocity and acceleration of all joints, f64 [u] each."""

    p: np.ndarray
    v: np.ndarray
    a: np.ndarray


def still(pose: np.ndarray) -> State:
    """Return the state of joints at rest at a pose f64 [u]."""
    return State(np.array(pose, np.float64), np.zeros(len(pose)), np.zeros(len(pose)))


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """Points of a message."""

    times_s: np.ndarray
    """f64 [k], increasing, from the stamp on."""
    positions: np.ndarray
    """f64 [k, u]."""
    velocities: np.ndarray | None = None
    """f64 [k, u]; None if the points have none."""
    accelerations: np.ndarray | None = None
    """f64 [k, u]; None if the points have none."""
    stamp_s: float | None = None
    """Time from which `times_s` count; None for the first cycle that samples it."""

    def columns(self) -> list[np.ndarray]:
        """Return positions, velocities and accelerations, those that there are."""
        every = (self.positions, self.velocities, self.accelerations)
        return [column for column in every if column is not None]

    def state(self, i: int) -> State:
        """Return a point; what it lacks is 0."""
        zero = np.zeros(self.positions.shape[1])
        v = zero if self.velocities is None else self.velocities[i]
        a = zero if self.accelerations is None else self.accelerations[i]
        return State(self.positions[i], v, a)


class TrajectoryController:
    """Reference of all joints, one cycle after the other.

    Args:
        pose: Pose f64 [u] that is held until a trajectory comes.
        interpolate_from_desired_state: As the controller's parameter: the way to a first point that
            lies ahead begins at the last reference, not at the measured pose.
    """

    def __init__(self, pose: np.ndarray, *, interpolate_from_desired_state: bool = False) -> None:
        self.from_desired = interpolate_from_desired_state
        self.hold(pose, 0.0)

    def hold(self, pose: np.ndarray, now_s: float) -> None:
        """Drop the trajectory and hold a pose f64 [u]."""
        self.reference, self._sampled_s = still(pose), now_s
        self._old: Trajectory | None = None
        self._new: Trajectory | None = None
        self._before = (now_s, self.reference)

    def receive(self, trajectory: Trajectory) -> None:
        """Take a trajectory from the next cycle on."""
        self._new = trajectory

    def update(self, now_s: float, measured: np.ndarray | None = None) -> State:
        """Return the reference of the cycle at a time.

        Args:
            now_s: Time of the cycle.
            measured: Measured pose f64 [u]; the last reference if None.
        """
        if self._new is not None:
            self._begin(self._new, now_s, measured)
            self._new = None
        if self._old is not None:
            self.reference = self._sample(self._old, now_s)
        self._sampled_s = now_s
        return self.reference

    def _begin(self, new: Trajectory, now_s: float, measured: np.ndarray | None) -> None:
        if self.from_desired or measured is None:
            self._before = (self._sampled_s, self.reference)
        else:
            self._before = (now_s, still(measured))
        self._old = replace(new, stamp_s=now_s if new.stamp_s is None else new.stamp_s)

    def _sample(self, path: Trajectory, at_s: float) -> State:
        assert path.stamp_s is not None
        times_s = path.stamp_s + path.times_s
        has_v, has_a = path.velocities is not None, path.accelerations is not None
        if at_s < times_s[0]:
            begin_s, begin = self._before
            return interpolate(begin_s, begin, times_s[0], path.state(0), at_s, has_v, has_a)
        i = int(np.searchsorted(times_s, at_s, side="right")) - 1
        if i == len(times_s) - 1:
            return path.state(i)
        a, b = path.state(i), path.state(i + 1)
        return interpolate(times_s[i], a, times_s[i + 1], b, at_s, has_v, has_a)


def interpolate(
    begin_s: float, begin: State, end_s: float, end: State, at_s: float, has_v: bool, has_a: bool
) -> State:
    """Return the state between two points, on the polynomial that what they carry determines.

    Without velocities that is a line, without accelerations one of third degree, else of fifth.
    """
    length_s, t = end_s - begin_s, min(max(at_s - begin_s, 0.0), end_s - begin_s)
    if length_s <= 0:
        return end
    apart = end.p - begin.p
    zero = np.zeros_like(apart)
    c2, c3, c4, c5 = zero, zero, zero, zero
    if not has_v:
        c1 = apart / length_s
    elif not has_a:
        c1 = begin.v
        c2 = (3 * apart / length_s - 2 * begin.v - end.v) / length_s
        c3 = (-2 * apart / length_s + begin.v + end.v) / length_s**2
    else:
        c1, c2 = begin.v, begin.a / 2
        p = apart / length_s
        c3 = (20 * p - (8 * end.v + 12 * begin.v) + (end.a - 3 * begin.a) * length_s) / (
            2 * length_s**2
        )
        c4 = (-30 * p + (14 * end.v + 16 * begin.v) + (3 * begin.a - 2 * end.a) * length_s) / (
            2 * length_s**3
        )
        c5 = (12 * p - 6 * (end.v + begin.v) + (end.a - begin.a) * length_s) / (2 * length_s**4)
    return State(
        begin.p + t * (c1 + t * (c2 + t * (c3 + t * (c4 + t * c5)))),
        c1 + t * (2 * c2 + t * (3 * c3 + t * (4 * c4 + t * 5 * c5))),
        2 * c2 + t * (6 * c3 + t * (12 * c4 + t * 20 * c5)),
    )
