"""Follows a plan at a share of its time, with a tool that is slow enough."""

from dataclasses import replace

import numpy as np

from robot_bridge.motion import braking
from robot_bridge.motion.braking import Motion
from robot_bridge.motion.limits import Limits
from robot_bridge.motion.plan import Plan
from robot_bridge.safety.stages import ToolSpeedBound


def follow(
    plan: Plan, at_s: float, share: float, motion: Motion, limits: Limits,
    tool_speed: ToolSpeedBound, dt_s: float,
) -> tuple[np.ndarray, list[str]]:  # fmt: skip
    """Return the acceleration f64 [u] that follows a plan, and the stages that limit it.

    Below full speed the velocity is limited as well; otherwise the arm would catch up with a new
    decision at full speed.

    Args:
        plan: Targets by time.
        at_s: Time in the plan.
        share: Share of its time at which the plan is followed.
        motion: Present motion.
        limits: Limits of the motion.
        tool_speed: Bound on the tool's speed.
        dt_s: A tick.
    """
    target, speed = plan.at(at_s)
    allowed = limits
    if share < 1:
        allowed = replace(limits, velocity=share * limits.velocity)
    slow = tool_speed.slowed(allowed, motion, target, share * speed)
    wanted, active = braking.follow(motion, target, share * speed, slow, dt_s)
    stages = [name for name in active if slow is limits or name != "velocity"]
    return wanted, stages + ["tool_speed"] * (slow is not allowed)
