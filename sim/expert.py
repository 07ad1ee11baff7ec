"""How scripted experts move an arm: inverse kinematics and one-action-per-step motions; no tasks.

A motion looks at the measured state in every control step and heads straight for its goal, so that
the action is a function of what can be seen and can be imitated without memory.
"""

import functools
from collections.abc import Iterator
from dataclasses import dataclass

import mink
import mujoco
import numpy as np

from sim.scene import ASSETS
from sim.task import World
from vla.contracts.specs import RobotSpec

POSITION_COST = 1.0
# An arm of five joints must be free to tilt its hand; one of six or more should not.
ANGLE_COST = 0.03
ANGLE_COST_DEXTEROUS = 0.3
POSTURE_COST = 1e-3
# Without it full steps swing to and fro about a stretched arm.
DAMPING = 1e-4
MAX_ITERATIONS = 30
MAX_STEP_RAD = 0.4


@dataclass(frozen=True, eq=False)
class Kinematics:
    """An arm alone in the world, and the optimisation problem of putting its tool somewhere."""

    configuration: mink.Configuration
    """Scratch configuration; overwritten by every solve."""
    tool: mink.FrameTask
    """Where the tool should be."""
    angle_cost: float
    """Weight of a radian of tilt or yaw against a metre."""
    posture: mink.PostureTask
    """Settles what the tool leaves open, and holds the joints of the hand."""
    joint_qpos: np.ndarray
    """Index of each channel's joint in the configuration's q."""


@functools.lru_cache(maxsize=4)
def kinematics(robot: RobotSpec) -> Kinematics:
    """Return the kinematics of a robot, compiled once per process."""
    model = mujoco.MjModel.from_xml_path(str(ASSETS / robot.mjcf))
    joint_qpos = np.array([model.joint(name).qposadr[0] for name in robot.names])
    posture_cost = np.full(model.nv, 10.0)
    arm = [c.name for c in robot.channels if c.name != robot.gripper.channel]
    posture_cost[[model.joint(name).dofadr[0] for name in arm]] = POSTURE_COST
    posture = mink.PostureTask(model, cost=posture_cost)
    return Kinematics(
        configuration=mink.Configuration(model),
        tool=mink.FrameTask("tool", "site", POSITION_COST, 0.0, lm_damping=1e-6),
        angle_cost=ANGLE_COST if len(arm) < 6 else ANGLE_COST_DEXTEROUS,
        posture=posture,
        joint_qpos=joint_qpos,
    )


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


class Motion:
    """Makes actions for one episode of a world, from the measured state of each control step."""

    def __init__(self, world: World, *, speed_m_s: float | None = None) -> None:
        """Bind to a world.

        Args:
            world: The world to act on; read whenever an action is asked for.
            speed_m_s: Speed of the tool far from its goal; None takes an arm's reach in 1.2 s.
        """
        self.world = world
        robot = world.robot
        self.period_s = 1.0 / robot.control_hz
        self.speed_m_s = robot.reach_m[1] / 1.2 if speed_m_s is None else speed_m_s
        self.gripper = robot.names.index(robot.gripper.channel)
        self.opening = robot.home[self.gripper]
        velocity = np.array([c.velocity for c in robot.channels])
        acceleration = np.array([c.acceleration for c in robot.channels])
        # Setting out from rest, or stopping, changes the speed by stride / period in one period.
        self.stride = np.minimum(velocity, acceleration * self.period_s) * self.period_s

    @property
    def tool_m(self) -> np.ndarray:
        """Position of the tool in the world frame, metres, shape (3,)."""
        return self.world.data.site_xpos[self.world.tool_site].copy()

    @property
    def measured(self) -> np.ndarray:
        """Measured channel positions, shape (u,)."""
        return self.world.data.qpos[self.world.joint_qpos].copy()

    def solve(self, pos_m: np.ndarray, yaw_rad: float | None = None) -> np.ndarray:
        """Return channel positions with the tool at `pos_m` and the hand at the current opening."""
        goal = solve(self.world.robot, self.measured, pos_m, yaw_rad)
        goal[self.gripper] = self.opening
        return goal

    def toward(
        self,
        pos_m: np.ndarray,
        yaw_rad: float | None = None,
        *,
        clearance_m: float = 0.0,
        speed_m_s: float | None = None,
    ) -> np.ndarray:
        """Return the one action that heads for `pos_m`: straight, slowing down near it.

        Args:
            pos_m: Goal of the tool, world frame, metres.
            yaw_rad: As in `solve`.
            clearance_m: Height to keep above the goal until the tool is over it.
            speed_m_s: Speed far from the goal; None takes the motion's own.
        """
        tool = self.tool_m
        goal = np.array(pos_m, np.float64)
        aside = float(np.linalg.norm(goal[:2] - tool[:2]))
        # A funnel: down only as far as the tool is over the goal, in one smooth path.
        goal[2] += clearance_m * float(np.clip((aside - 0.006) / 0.03, 0.0, 1.0))
        offset = goal - tool
        distance = float(np.linalg.norm(offset))
        full = (self.speed_m_s if speed_m_s is None else speed_m_s) * self.period_s
        step = min(full, max(0.7 * distance, 0.012))
        if step < distance:
            goal = tool + offset * (step / distance)
        return self._limited(self.solve(goal, yaw_rad))

    def _limited(self, goal: np.ndarray) -> np.ndarray:
        """Return what of the way to `goal` can be done in one control step."""
        measured = self.measured
        robot = self.world.robot
        way = goal - measured
        # Slow down together what moves the tool, or its path bends; the last joint only turns
        # the hand about itself.
        arm = [i for i in range(len(way)) if i != self.gripper][:-1]
        way[arm] *= min(1.0, 1.0 / float(np.max(np.abs(way[arm]) / self.stride[arm] + 1e-9)))
        near = measured + np.clip(way, -self.stride, self.stride)
        return np.clip(near, robot.low, robot.high)

    def move(
        self,
        pos_m: np.ndarray,
        yaw_rad: float | None = None,
        *,
        clearance_m: float = 0.0,
        speed_m_s: float | None = None,
        tolerance_m: float = 0.006,
        max_steps: int = 40,
    ) -> Iterator[np.ndarray]:
        """Yield actions until the tool is within `tolerance_m` of `pos_m`, `max_steps` at most."""
        for _ in range(max_steps):
            if np.linalg.norm(self.tool_m - pos_m) < tolerance_m:
                return
            yield self.toward(pos_m, yaw_rad, clearance_m=clearance_m, speed_m_s=speed_m_s)

    def grip(self, opening: float, max_steps: int = 12) -> Iterator[np.ndarray]:
        """Yield actions that open or close the hand, until it is there or a grasp stops it.

        The arm stays where it is; later motions keep the hand at `opening` (channel units).
        """
        self.opening = opening
        hold, still = self.measured, 0
        for _ in range(max_steps):
            before = self.measured[self.gripper]
            hold[self.gripper] = opening
            yield self._limited(hold)
            moved = abs(self.measured[self.gripper] - before)
            still = still + 1 if moved < 0.05 * self.stride[self.gripper] else 0
            if still >= 2:
                return

    def wait(self, steps: int) -> Iterator[np.ndarray]:
        """Yield `steps` actions that hold the arm where it is now."""
        hold = self.measured
        hold[self.gripper] = self.opening
        for _ in range(steps):
            yield self._limited(hold)

    def press(
        self, pos_m: np.ndarray, *, clearance_m: float = 0.05, depth_m: float = 0.01
    ) -> Iterator[np.ndarray]:
        """Yield actions that come down on `pos_m`, hand closed, and push `depth_m` into it."""
        self.opening = self.world.robot.gripper.closed
        yield from self.move(pos_m, clearance_m=clearance_m)
        below = np.asarray(pos_m) - np.array([0.0, 0.0, depth_m])
        yield from self.move(below, tolerance_m=0.3 * depth_m, max_steps=4)


def grasp_yaw(pos_m: np.ndarray, object_yaw_rad: float) -> float:
    """Return the yaw that closes on two faces of a box and turns the wrist least, radians.

    With the wrist as it is at home the opening direction is at right angles to the arm's plane,
    so its yaw is the azimuth of `pos_m`; the faces of a box repeat every quarter turn.
    """
    azimuth = float(np.arctan2(pos_m[1], pos_m[0]))
    quarter = np.pi / 2
    return azimuth + (object_yaw_rad - azimuth + quarter / 2) % quarter - quarter / 2
