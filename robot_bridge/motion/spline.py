"""A commanded path in continuous time: the uniform cubic B-spline of its ticks.

A controller runs faster than the gate and fills in what lies between two points. Given position,
velocity and acceleration of both, `joint_trajectory_controller` takes the polynomial of fifth
degree through them, given two of these the cubic one. With the ticks as control points of a uniform
cubic B-spline, both are that spline, since it is one cubic polynomial from tick to tick. Its
velocity, acceleration and jerk are weighted means of the differences between ticks (C. de Boor, A
Practical Guide to Splines, chapter 10): so what the gate proves of ticks holds at every moment, at
any rate of the controller. This module does not import ROS.
"""

from typing import NamedTuple

import numpy as np


class Knots(NamedTuple):
    """Points of a trajectory, f64 [k, u] each."""

    positions: np.ndarray
    velocities: np.ndarray
    accelerations: np.ndarray


def knots(path: np.ndarray, dt_s: float) -> Knots:
    """Return the spline's points at the ticks of a path f64 [k + 2, u], without its two ends."""
    before, at, after = path[:-2], path[1:-1], path[2:]
    return Knots(
        positions=(before + 4 * at + after) / 6,
        velocities=(after - before) / (2 * dt_s),
        accelerations=(before - 2 * at + after) / dt_s**2,
    )
