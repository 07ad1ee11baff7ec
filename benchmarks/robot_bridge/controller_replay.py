"""Plays recorded messages into an emulated controller, and checks its reference against limits."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from robot_bridge.motion.limits import Limits
from robot_bridge.sim_arm.trajectory_controller import Trajectory, TrajectoryController

RATES_HZ = (500.0, 1000.0)
"""Rates of controllers: that of UR, and that of Franka."""
RESOLUTION = 1e-13
"""Rounding of a reference, in its unit; differences of order n have 2^n of it."""
ROUNDING = 1e-6
"""Tolerated excess over a limit: stamps are whole nanoseconds."""
LATE_SHARE = 0.05
"""Share of messages that come a cycle late, on top of their own delay."""


def reference(
    messages: Sequence[tuple[float, Trajectory]], pose: np.ndarray, rate_hz: float, end_s: float,
    **options: bool,
) -> np.ndarray:  # fmt: skip
    """Return the reference f64 [n, u] of every cycle from time 0 on.

    Args:
        messages: Arrival times and trajectories, in the order of arrival.
        pose: Pose f64 [u] at the beginning.
        rate_hz: Cycles per second.
        end_s: Time of the last cycle.
        options: Of `TrajectoryController`.
    """
    controller, waiting = TrajectoryController(pose, **options), list(messages)[::-1]
    path = []
    for cycle in range(int(end_s * rate_hz)):
        now_s = cycle / rate_hz
        while waiting and waiting[-1][0] <= now_s:
            controller.receive(waiting.pop()[1])
        path.append(controller.update(now_s).p)
    return np.array(path)


def shares(
    path: np.ndarray, rate_hz: float, limits: Limits, stop_s: float = np.inf
) -> dict[str, float]:
    """Return the largest share of each limit on a path f64 [n, u], by finite differences.

    For position it is how far the path is beyond its range, in its unit; at most 0 if it is not.
    From `stop_s` on the limits are those of a stop.
    """
    beyond = np.maximum(limits.low - path, path - limits.high)
    found = {"position": float(beyond.max())}
    for order, name in enumerate(("velocity", "acceleration", "jerk"), 1):
        path = np.diff(path, axis=0) * rate_hz
        size = np.maximum(np.abs(path) - RESOLUTION * (2 * rate_hz) ** order, 0)
        stops = np.arange(len(path))[:, None] + order > stop_s * rate_hz
        most = np.where(stops, getattr(limits.of_stop, name), getattr(limits, name))
        found[name] = float((size / most).max(initial=0))
    return found


def judge(
    messages: Sequence[tuple[float, Trajectory]],
    limits: Limits,
    seed: int,
    end_s: float,
    stop_s: float = np.inf,
) -> tuple[dict[str, float], np.ndarray]:
    """Return the largest shares of all rates and options, and the slower reference f64 [n, u].

    One message in twenty comes a cycle late. From `stop_s` on the limits are those of a stop.
    """
    worst: dict[str, float] = {}
    paths = []
    for rate_hz in RATES_HZ:
        late = np.random.default_rng(seed).random(len(messages)) < LATE_SHARE
        arrivals = np.maximum.accumulate([t for t, _ in messages] + late / rate_hz)
        delayed = list(zip(arrivals, (path for _, path in messages), strict=True))
        for from_desired in (False, True):
            path = reference(
                delayed, messages[0][1].positions[0], rate_hz, end_s,
                interpolate_from_desired_state=from_desired,
            )  # fmt: skip
            for name, share in shares(path, rate_hz, limits, stop_s).items():
                worst[name] = max(worst.get(name, -np.inf), share)
            paths.append(path)
    return worst, paths[0]


def by_ticks(
    messages: Sequence[tuple[float, Trajectory]], dt_s: float
) -> list[tuple[float, Trajectory]]:
    """Return messages as a clock without faults would have stamped them, each in time.

    Their own stamps tell how many ticks lie between two of them.
    """
    stamps = np.array([path.stamp_s for _, path in messages])
    ticks = np.maximum(np.round(np.diff(stamps) / dt_s), 1)
    times_s = dt_s * np.concatenate([[1], 1 + np.cumsum(ticks)])
    return [
        (float(t), replace(path, stamp_s=float(t) - dt_s))
        for t, (_, path) in zip(times_s, messages, strict=True)
    ]


def latest_s(messages: Sequence[tuple[float, Trajectory]], dt_s: float) -> float:
    """Return by how much a message came late at most; each begins a tick before it is due."""
    return max(t - (path.stamp_s or 0.0) - dt_s for t, path in messages)
