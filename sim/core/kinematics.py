"""Inverse kinematics: joint positions for a pose of the tool."""

import functools
from dataclasses import dataclass

import mink
import mujoco
import numpy as np

from sim.core.scene import ASSETS
from vla.contracts.specs import RobotSpec

POSITION_COST = 1.0
# An arm of five joints must be free to tilt its hand; one of six or more should not.
ANGLE_COST = 0.03
ANGLE_COST_DEXTEROUS = 0.3
POSTURE_COST = 1e-3
# Without it full steps oscillate near a stretched arm.
DAMPING = 1e-4
MAX_ITERATIONS = 30
MAX_STEP_RAD = 0.4
MOVE_ITERATIONS = 6
MOVE_DAMPING = 1e-6
TURN_M = 0.01
"""Metres that a radian of error counts for in `moved`."""


@dataclass(frozen=True, eq=False)
class Kinematics:
    """An arm without a scene, and the optimization problem of its tool's pose."""

    configuration: mink.Configuration
    """Scratch configuration; overwritten by every solve."""
    tool: mink.FrameTask
    """Where the tool should be."""
    angle_cost: float
    """Weight of a radian of tilt or yaw against a metre."""
    posture: mink.PostureTask
    """Determines what the tool leaves open, and holds the joints of the hand."""
    joint_qpos: np.ndarray
    """Index of each channel's joint in the configuration's q."""
    joint_qvel: np.ndarray
    """Index of each channel's joint among the degrees of freedom."""
    site: int
    """Id of the tool's site."""


@functools.lru_cache(maxsize=4)
def kinematics(robot: RobotSpec) -> Kinematics:
    """Return the kinematics of a robot, compiled once per process."""
    model = mujoco.MjModel.from_xml_path(str(ASSETS / robot.mjcf))
    joint_qpos = np.array([model.joint(name).qposadr[0] for name in robot.names])
    joint_qvel = np.array([model.joint(name).dofadr[0] for name in robot.names])
    posture_cost = np.full(model.nv, 10.0)
    arm = [c.name for c in robot.channels if c.name != robot.gripper.channel]
    posture_cost[[model.joint(name).dofadr[0] for name in arm]] = POSTURE_COST
    posture = mink.PostureTask(model, cost=posture_cost)
    return Kinematics(
        configuration=mink.Configuration(model),
        tool=mink.FrameTask("tool", "site", POSITION_COST, 0.0, lm_damping=1e-6),
        angle_cost=ANGLE_COST if len(arm) < 6 else ANGLE_COST_DEXTEROUS,
        posture=posture,
        joint_qpos=joint_qpos, joint_qvel=joint_qvel, site=model.site("tool").id,
    )  # fmt: skip


def solve(
    robot: RobotSpec, start: np.ndarray, pos_m: np.ndarray, yaw_rad: float | None = None
) -> np.ndarray:
    """Return channel positions that put the tool at `pos_m`, hand pointing down as far as it can.

    Levenberg-Marquardt with joint limits, by mink. Position counts most: an arm that cannot point
    down there, or has too few joints for `yaw_rad`, gives up the angle.

    Args:
        robot: The arm.
        start: Channel positions to start from, shape (u,); the gripper's is returned unchanged.
        pos_m: Goal of the tool in the world frame, metres.
        yaw_rad: Angle from world y to the opening direction about z; None leaves it open.
    """
    arm = kinematics(robot)
    model = arm.configuration.model
    q = model.qpos0.copy()
    q[arm.joint_qpos] = np.clip(start, robot.low, robot.high)
    arm.posture.set_target(q)
    cost = arm.angle_cost
    arm.tool.set_orientation_cost([cost, cost, 0.0 if yaw_rad is None else cost])
    pose = mink.SE3.from_rotation_and_translation(_pointing_down(yaw_rad or 0.0), pos_m)
    arm.tool.set_target(pose)
    arm.configuration.update(q)
    for _ in range(MAX_ITERATIONS):
        step = mink.solve_ik(
            arm.configuration, [arm.tool, arm.posture], 1.0, solver="daqp", damping=DAMPING
        )
        # A linear model of the arm is good for a few tenths of a radian only.
        step *= min(1.0, MAX_STEP_RAD / max(float(np.abs(step).max()), 1e-9))
        arm.configuration.integrate_inplace(step, 1.0)
        if np.abs(step).max() < 1e-3:
            break
    return arm.configuration.q[arm.joint_qpos].copy()


def _pointing_down(yaw_rad: float) -> mink.SO3:
    # Columns are the tool's axes in the world: z down, y along the opening direction.
    cos, sin = np.cos(yaw_rad), np.sin(yaw_rad)
    return mink.SO3.from_matrix(np.array([[-cos, -sin, 0.0], [-sin, cos, 0.0], [0.0, 0.0, -1.0]]))


def moved(
    robot: RobotSpec, start: np.ndarray, by_m: np.ndarray, turn_rad: float = 0.0
) -> np.ndarray:
    """Return channel positions with the tool moved and turned from where it is, the hand unchanged.

    Damped least squares (Nakamura and Hanafusa 1986), for small ways. Position counts most: an arm
    of few joints gives up what it must of how the hand was held.

    Args:
        robot: The arm.
        start: Channel positions, shape (u,); the gripper's is returned as it is.
        by_m: Way of the tool in the world frame, metres, shape (3,).
        turn_rad: Turn of the hand about the world's z.
    """
    arm = kinematics(robot)
    model, data = arm.configuration.model, arm.configuration.data
    joints = [i for i, name in enumerate(robot.names) if name != robot.gripper.channel]
    q, solution = model.qpos0.copy(), np.clip(start, robot.low, robot.high)
    q[arm.joint_qpos] = solution
    arm.configuration.update(q)
    low, high = np.array(robot.low)[joints], np.array(robot.high)[joints]
    goal_m = data.site_xpos[arm.site] + by_m
    goal = mink.SO3.from_z_radians(turn_rad) @ _tool_rotation(arm)
    jacobian, weights = np.zeros((6, model.nv)), np.repeat([1.0, TURN_M], 3)[:, None]
    free = np.ones(len(joints), np.bool_)  # a joint at its limit leaves the way to the others
    for _ in range(MOVE_ITERATIONS):
        turn = (goal @ _tool_rotation(arm).inverse()).log()
        error = np.concatenate([goal_m - data.site_xpos[arm.site], TURN_M * turn])
        mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], arm.site)
        j = jacobian[:, arm.joint_qvel[joints]] * weights * free
        step = j.T @ np.linalg.solve(j @ j.T + MOVE_DAMPING * np.eye(6), error)
        step *= min(1.0, MAX_STEP_RAD / max(float(np.abs(step).max()), 1e-9))
        wanted = solution[joints] + step
        free &= (wanted >= low) & (wanted <= high)
        solution[joints] = np.clip(wanted, low, high)
        q[arm.joint_qpos] = solution
        arm.configuration.update(q)
    return solution


def _tool_rotation(arm: Kinematics) -> mink.SO3:
    """Return the tool's rotation in the world."""
    return mink.SO3.from_matrix(arm.configuration.data.site_xmat[arm.site].reshape(3, 3))
