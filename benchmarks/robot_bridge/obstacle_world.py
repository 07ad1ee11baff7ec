"""A MuJoCo arm with its motors, over no table, and what may hold it: a stop, a box, an object."""

import mujoco
import numpy as np

from sim.core.scene import build_scene
from sim.vec_env import load_task
from vla.contracts.specs import RobotSpec

CYCLE_S = 0.002
"""Period of the physics."""
STIFF = {"solref": (2 * CYCLE_S, 1.0), "solimp": (0.99, 0.999, 0.001, 0.5, 2.0)}
"""Parameters of a contact that hardly gives."""
BOX_M = (0.02, 0.05, 0.05)
"""Half sides of the box; the first is along the way of the hand."""
FAR_M = 0.15
"""Least distance of the hand from the box at the start: it has to be fast when it comes."""


class World:
    """Poses are f64 [u], in the order of the robot's channels."""

    def __init__(self, robot: RobotSpec) -> None:
        spec = build_scene(robot, load_task("reach").build(robot))
        spec.geom("table").contype = spec.geom("table").conaffinity = 0
        box = spec.worldbody.add_body(name="box", mocap=True)
        box.add_geom(
            type=mujoco.mjtGeom.mjGEOM_BOX, size=BOX_M, contype=1, conaffinity=3, priority=2,
            **STIFF,
        )  # fmt: skip
        self.model = model = spec.compile()
        model.opt.timestep = CYCLE_S
        self.data = mujoco.MjData(model)
        self.joints = np.array([model.joint(name).id for name in robot.names])
        self.places = model.jnt_qposadr[self.joints]
        self.motors = np.array([model.actuator(name).id for name in robot.names])
        self.strength = model.actuator_forcerange[self.motors, 1]
        self.ranges = model.jnt_range.copy()
        self.box = model.body("box").id
        self.mocap = model.body_mocapid[self.box]
        model.jnt_solref[self.joints] = STIFF["solref"]
        model.jnt_solimp[self.joints] = STIFF["solimp"]

    @property
    def measured(self) -> np.ndarray:
        """Present pose."""
        return self.data.qpos[self.places].copy()

    @property
    def forces(self) -> np.ndarray:
        """Forces f64 [u] of the motors, shares of what each has at most."""
        return np.abs(self.data.actuator_force[self.motors]) / self.strength

    def begin(self, pose: np.ndarray) -> None:
        """Rest at a pose, held by nothing."""
        mujoco.mj_resetData(self.model, self.data)
        self.free()
        self.data.qpos[self.places] = self.data.ctrl[self.motors] = pose
        mujoco.mj_forward(self.model, self.data)

    def free(self) -> None:
        """Take stops and box away."""
        self.model.jnt_range[:] = self.ranges
        self.stopped: int | None = None
        self.data.mocap_pos[self.mocap] = (0.0, 0.0, -10.0)

    def stop(self, joint: int, at: float, upper: bool) -> None:
        """Let a joint go no further than a position, up or down; that is an obstacle."""
        self.stopped = joint
        self.bound(joint, at, upper)

    def bound(self, joint: int, at: float, upper: bool) -> None:
        """Let a joint go no further than a position; that is none, as an object in the gripper."""
        self.model.jnt_range[self.joints[joint], int(upper)] = at

    def put_box(self, pose: np.ndarray) -> bool:
        """Put the box where the hand comes in a pose; return whether it is far from it now."""
        begin = self.measured
        before, after = self._tool(begin), self._tool(pose)
        way = after - self._tool(pose + 0.05 * (begin - pose))
        across = (1, 0, 0) if abs(way[2]) > np.linalg.norm(way[:2]) else (0, 0, 1)
        side = np.cross(way, across)
        axes = [v / max(np.linalg.norm(v), 1e-12) for v in (way, side, np.cross(way, side))]
        mujoco.mju_mat2Quat(self.data.mocap_quat[self.mocap], np.stack(axes, axis=1).ravel())
        self.data.mocap_pos[self.mocap] = after + BOX_M[0] * axes[0]
        self._tool(begin)
        mujoco.mj_forward(self.model, self.data)
        return bool(np.linalg.norm(after - before) > FAR_M) and not self.touches

    def _tool(self, pose: np.ndarray) -> np.ndarray:
        """Return where the tool is in a pose, and put the arm there."""
        self.data.qpos[self.places] = pose
        mujoco.mj_kinematics(self.model, self.data)
        return self.data.site("tool").xpos.copy()

    @property
    def touches(self) -> bool:
        """Whether an obstacle holds the arm."""
        if self.stopped is None:
            return bool((self.model.geom_bodyid[self.data.contact.geom] == self.box).any())
        low, high = self.model.jnt_range[self.joints[self.stopped]]
        return not low <= self.data.qpos[self.places[self.stopped]] <= high

    def advance(self, reference: np.ndarray) -> None:
        """Move for a cycle towards a reference."""
        self.data.ctrl[self.motors] = reference
        mujoco.mj_step(self.model, self.data)
