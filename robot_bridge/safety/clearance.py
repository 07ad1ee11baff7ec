"""Distances of an arm in a pose from itself, its table and its workspace's sides, and how fast each
can change, from the collision shapes of its model (MJCF). This module does not import ROS.

Each checked pair is one row, in this order:

- two shapes of two links. Left out are links that are rigidly joined or neighbours at a joint,
  pairs that the model excludes, pairs that only the gripper moves against each other (fingers are
  there to touch), and pairs that touch at home;
- a shape of a link that moves, and the table;
- a shape of the hand, and a side of the workspace.

A shape counts if its contype or conaffinity is not 0. Their values do not matter, since a
simulation may leave out that an arm touches itself.
"""

import mujoco
import numpy as np

from robot_bridge.motion.workspace import Workspace
from robot_bridge.safety.arm_model import ArmModel
from vla.contracts.specs import RobotSpec

FAR_M = 1.0
"""Largest distance that is measured."""
SHIFTS_M = 1e-6 * np.array([[1, 2, -3], [-1, 3, 2], [3, -1, -2], [-2, -3, 1]])
"""Shifts of a shape whose distance is in doubt."""
EDGES = ("-x", "-y", "-z", "+x", "+y", "+z")
"""Sides of a workspace."""


class Clearance(ArmModel):
    """Distances of one arm; not thread-safe."""

    rates: np.ndarray
    """f64 [p, u], m per unit of a channel: largest rate of each distance in any pose."""
    left_out: tuple[str, ...]
    """Pairs of links with shapes that are not checked because they touch at home."""

    def __init__(self, robot: RobotSpec, workspace: Workspace | None, touch_m: float) -> None:
        """Read the model and choose the pairs that are checked.

        A pair closer than `touch_m` at home counts as touching.

        Raises:
            ValueError: the model is missing or cannot be read, lacks a channel, has a joint whose
                position no channel determines, or has no collision shapes.
        """
        super().__init__(robot)
        self._affects = _affects(self._model)
        m = self._model
        shapes = np.flatnonzero((m.geom_contype | m.geom_conaffinity) != 0)
        moves = self._affects[m.geom_bodyid].any(1)
        if not moves[shapes].any():
            raise ValueError(
                f"{self._where}: no link has a shape that collides; give its geoms contype or "
                "conaffinity"
            )
        self._pairs = self._checked_pairs(shapes, robot.gripper.channel, robot.names)
        self._set(np.array(robot.home, np.float64))
        touching = self._apart() < touch_m
        self.left_out = tuple(
            dict.fromkeys(
                self._words(a, b) for (a, b), t in zip(self._pairs, touching, strict=True) if t
            )
        )
        self._pairs = [p for p, t in zip(self._pairs, touching, strict=True) if not t]
        self._bound(shapes[moves[shapes]], robot, workspace or Workspace())
        self.rates = self._rates()

    def at(self, pose: np.ndarray) -> np.ndarray:
        """Return the distance f64 [p] in metres of every row in a pose f64 [u]; below 0 they touch.

        Distances of pairs are at most `FAR_M`.
        """
        self._set(pose)
        return np.concatenate([self._apart(), self._inside()])

    def describe(self, row: int) -> str:
        """Return a description of the contact of a row."""
        if row < len(self._pairs):
            return self._words(*self._pairs[row])
        row -= len(self._pairs)
        name, side = self._name(self._near[row]), self._sides[row]
        if side is None:
            return f"{name} would touch the table"
        return f"{name} would leave the workspace at {EDGES[side]}"

    # --- checked pairs ------------------------------------------------------------------------

    def _checked_pairs(
        self, shapes: np.ndarray, gripper: str, names: tuple[str, ...]
    ) -> list[tuple[int, int]]:
        """Return the pairs of shapes that are checked."""
        m = self._model
        only = np.zeros(len(names), np.bool_)
        only[names.index(gripper)] = True
        excluded = {(int(s) >> 16, int(s) & 0xFFFF) for s in m.exclude_signature}
        pairs = []
        for i, a in enumerate(shapes):
            for b in shapes[i + 1 :]:
                bodies = int(m.geom_bodyid[a]), int(m.geom_bodyid[b])
                between = self._affects[bodies[0]] ^ self._affects[bodies[1]]
                neighbours = len(set(m.jnt_bodyid[between])) <= 1
                hand = not (self._share[between].any(0) & ~only).any()
                if not (neighbours or hand or {bodies, bodies[::-1]} & excluded):
                    pairs.append((int(a), int(b)))
        return pairs

    def _bound(self, shapes: np.ndarray, robot: RobotSpec, workspace: Workspace) -> None:
        """Choose the shapes that are checked against the table and the sides of the workspace."""
        m = self._model
        tool = self._tool()
        arm = np.array([name != robot.gripper.channel for name in robot.names])
        by = (self._affects.astype(np.float64) @ self._share > 0) & arm
        hand = [g for g in shapes if (by[m.geom_bodyid[g]] == by[m.site_bodyid[tool]]).all()]
        ends = [-x for x in workspace.low] + list(workspace.high)
        rows: list[tuple[int, int | None, float]] = []
        if np.isfinite(workspace.table):
            rows += [(int(g), None, -workspace.table) for g in shapes]
        rows += [(int(g), k, end) for g in hand for k, end in enumerate(ends) if np.isfinite(end)]
        self._near = [g for g, _, _ in rows]
        self._sides = [side for _, side, _ in rows]
        self._ends = np.array([end for _, _, end in rows], np.float64)
        sides = np.array([2 if side is None else side for side in self._sides], np.intp)
        self._axis, self._sign = sides % 3, np.where(sides < 3, -1.0, 1.0)
        self._shapes, self._which = np.unique(np.array(self._near, np.intp), return_inverse=True)
        self._centre, self._flat, self._round = _extents(m, self._shapes)

    def _words(self, a: int, b: int) -> str:
        return f"{self._name(b)} would touch {self._name(a)}"

    def _name(self, shape: int) -> str:
        """Return the name of a shape's link, or of the shape itself if it has no link."""
        body = int(self._model.geom_bodyid[shape])
        name = self._model.body(body).name if body else self._model.geom(shape).name
        return name or f"body {body}"

    # --- distances ------------------------------------------------------------------------------

    def _apart(self) -> np.ndarray:
        """Return the distance f64 [pairs] of each pair."""
        m, d, apart = self._model, self._data, mujoco.mj_geomDistance
        distances = np.array([apart(m, d, a, b, FAR_M, None) for a, b in self._pairs], np.float64)
        for row in np.flatnonzero(distances == 0.0):
            distances[row] = self._recheck(*self._pairs[row])
        return distances

    def _recheck(self, a: int, b: int) -> float:
        """Return the distance of two shapes that was measured as exactly 0.

        MuJoCo 3.8 returns 0 for some boxes that are far apart (google-deepmind/mujoco issue 3383),
        but not after one of them is moved by some micrometres.
        """
        place = self._data.geom_xpos[a]
        before, distance = place.copy(), 0.0
        for shift in SHIFTS_M:
            place[:] = before + shift
            distance = mujoco.mj_geomDistance(self._model, self._data, a, b, FAR_M, None)
            if distance != 0.0:
                break
        place[:] = before
        return distance

    def _inside(self) -> np.ndarray:
        """Return the distance f64 [rows] of each shape from its bound."""
        if not len(self._near):
            return self._ends
        turned = self._data.geom_xmat[self._shapes].reshape(-1, 3, 3)
        centre = self._data.geom_xpos[self._shapes] + _times(turned, self._centre)
        half = _times(np.abs(turned), self._flat) + np.sqrt(_times(turned**2, self._round**2))
        centre, half = centre[self._which, self._axis], half[self._which, self._axis]
        return self._ends - self._sign * centre - half

    def _rates(self) -> np.ndarray:
        """Return `rates`.

        A hinge moves a point by its turn times the point's distance from it. The nearest points of
        two shapes lie on one line, along which both would move alike, so the shape nearer to the
        hinge counts. Nothing moves along a hinge's axis, and the axis is constant where nothing
        else moves the hinge.
        """
        m = self._model
        reach, turns = _reach(m), self._affects[m.geom_bodyid].T  # [joint, geom]
        rates = np.zeros((len(self._pairs) + len(self._near), m.njnt))
        slides = m.jnt_type == int(mujoco.mjtJoint.mjJNT_SLIDE)
        for row, (a, b) in enumerate(self._pairs):
            fast = np.where(slides, 1.0, np.minimum(reach[:, a], reach[:, b]))
            rates[row] = fast * (turns[:, a] ^ turns[:, b])
        alone = self._affects[m.jnt_bodyid].sum(1) == 1
        across = np.sqrt(np.maximum(0.0, 1.0 - self._data.xaxis**2))  # [joint, axis]
        for i, (shape, axis) in enumerate(zip(self._near, self._axis, strict=True)):
            lever = np.where(alone, reach[:, shape] * across[:, axis], reach[:, shape])
            rates[len(self._pairs) + i] = np.where(slides, 1.0, lever) * turns[:, shape]
        by_channel: np.ndarray = rates @ self._share
        return by_channel


def _affects(model: mujoco.MjModel) -> np.ndarray:
    """Return which joints move a body, bool [body, joint]."""
    affects = np.zeros((model.nbody, model.njnt), np.bool_)
    for body in range(1, model.nbody):  # parents come first
        affects[body] = affects[model.body_parentid[body]] | (model.jnt_bodyid == body)
    return affects


def _reach(model: mujoco.MjModel) -> np.ndarray:
    """Return the largest distance f64 [joint, geom] of a shape's points from a joint in any pose.

    That is the length of the chain of bodies between them, stretched out.
    """
    joints = np.linalg.norm(model.jnt_pos, axis=1)
    slides = model.jnt_type == int(mujoco.mjtJoint.mjJNT_SLIDE)
    travel = np.where(
        slides, np.abs(model.jnt_range - model.qpos0[model.jnt_qposadr, None]).max(1), 0
    )
    link = np.linalg.norm(model.body_pos, axis=1)
    np.add.at(link, model.jnt_bodyid, 2 * joints + travel)
    reach = np.zeros((model.njnt, model.ngeom))
    planes = model.geom_rbound == 0  # unbounded
    size = np.linalg.norm(model.geom_pos, axis=1) + np.where(planes, np.inf, model.geom_rbound)
    for j, start in enumerate(model.jnt_bodyid):
        above = _ancestors(model, int(start))
        same = model.jnt_bodyid == start
        for g, end in enumerate(model.geom_bodyid):
            between = above ^ _ancestors(model, int(end))
            reach[j, g] = (
                sum(link[list(between)]) + size[g] + np.sum(2 * joints[same] + travel[same])
            )
    return reach


def _ancestors(model: mujoco.MjModel, body: int) -> set[int]:
    """Return a body and its ancestors, without the world."""
    bodies = set()
    while body:
        bodies.add(body)
        body = int(model.body_parentid[body])
    return bodies


def _extents(model: mujoco.MjModel, shapes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return centre, box and ellipsoid f64 [g, 3] of shapes, in their own frames.

    The extent of a shape in any direction is that of its box plus that of its ellipsoid: exact for
    all kinds but meshes, which have the box around them.
    """
    centre, flat, rounded = np.zeros((3, len(shapes), 3))
    kinds = mujoco.mjtGeom
    for i, g in enumerate(shapes):
        size, kind = model.geom_size[g], kinds(model.geom_type[g])
        if kind == kinds.mjGEOM_BOX:
            flat[i] = size
        elif kind == kinds.mjGEOM_SPHERE:
            rounded[i] = size[0]
        elif kind == kinds.mjGEOM_ELLIPSOID:
            rounded[i] = size
        elif kind in (kinds.mjGEOM_CAPSULE, kinds.mjGEOM_CYLINDER):
            flat[i, 2] = size[1]
            rounded[i] = size[0]
            rounded[i, 2] *= kind == kinds.mjGEOM_CAPSULE
        else:
            centre[i], flat[i] = model.geom_aabb[g, :3], model.geom_aabb[g, 3:]
    return centre, flat, rounded


def _times(turned: np.ndarray, vectors: np.ndarray) -> np.ndarray:
    """Return matrices f64 [g, 3, 3] times vectors f64 [g, 3]."""
    return (turned @ vectors[..., None])[..., 0]
