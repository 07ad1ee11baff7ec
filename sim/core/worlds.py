"""What rules see of n worlds, as arrays: those of one `MjData`, or those of an engine's worlds."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol, runtime_checkable

import mujoco
import numpy as np
from jaxtyping import Bool

from sim.core.rewards import length
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

Rows = Bool[Array, " n"] | bool
"""Which of n worlds: a mask, or True for all of them."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Fields:
    """Arrays of n worlds in the layout of the scene's compiled model, as `MjData` names them."""

    qpos: np.ndarray
    """f64 [n, nq]."""
    qvel: np.ndarray
    """f64 [n, nv]."""
    ctrl: np.ndarray
    """f64 [n, nu]."""
    mocap_pos: np.ndarray
    """f64 [n, m, 3]."""
    mocap_quat: np.ndarray
    """f64 [n, m, 4]."""
    xpos: np.ndarray
    """f64 [n, nbody, 3]."""
    geom_xpos: np.ndarray
    """f64 [n, ngeom, 3]."""
    site_xpos: np.ndarray
    """f64 [n, nsite, 3]."""
    geom_rgba: np.ndarray
    """f32 [n, ngeom, 4]."""


FIELDS = tuple(field.name for field in dataclasses.fields(Fields))


@runtime_checkable
class Simulation(Protocol):
    """What simulates the worlds of the arrays."""

    def contacts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return world [c] and both geoms [c, 2] of every pair that touches."""

    def go_home(self, rows: np.ndarray) -> None:
        """Set the whole physics state of some worlds, i64 [m], to its default, arm at home."""

    def refresh(self, rows: np.ndarray) -> None:
        """Set some worlds, i64 [m], to the state in the arrays and update their poses."""


class Worlds:
    """What rules see of n worlds of one scene: arrays with a leading axis, for any simulator.

    Methods that write change nothing in worlds that stand still; call `refresh` after the last.
    """

    def __init__(
        self, model: mujoco.MjModel, robot: RobotSpec, fields: Fields, simulation: Simulation
    ) -> None:
        """Bind to the arrays of n worlds of a scene, which `simulation` fills."""
        n = len(fields.qpos)
        self.robot = robot
        self.fields = fields
        self.steps = np.zeros(n, np.int64)
        """Control steps since each world's episode began."""
        self.episode: Any = None
        """The task's state of all episodes: its dataclass, every field an array with a leading axis
        n. Rules write to any row in place; rows of worlds that stand still are restored."""
        self.moving = np.ones(n, np.bool_)
        """Worlds that do not stand still."""
        self.painted = False
        """Whether a colour has changed; the simulation sets it back to False."""
        self.joint_qpos = np.array([model.joint(name).qposadr[0] for name in robot.names])
        """Index of each channel's joint in `qpos`."""
        self.joint_qvel = np.array([model.joint(name).dofadr[0] for name in robot.names])
        """Index of each channel's joint in `qvel`."""
        self.actuators = np.array([model.actuator(name).id for name in robot.names])
        """Index of each channel's actuator in `ctrl`."""
        self._model = model
        self._simulation = simulation
        self._written = np.zeros(n, np.bool_)
        self._home = np.array(robot.home)
        self._tool = model.site("tool").id
        self._arm_body = _arm_bodies(model)
        self._elements: dict[tuple[str, str], Any] = {}

    @property
    def tool_m(self) -> np.ndarray:
        """Where the robot's site "tool" is, f64 [n, 3]."""
        return self.fields.site_xpos[:, self._tool]

    def body_pos_m(self, name: str) -> np.ndarray:
        """Return where a body is, f64 [n, 3]."""
        return self.fields.xpos[:, self._find("body", name).id]

    def geom_pos_m(self, name: str) -> np.ndarray:
        """Return where the centre of a geom is, f64 [n, 3]."""
        return self.fields.geom_xpos[:, self._find("geom", name).id]

    def joint_pos(self, name: str) -> np.ndarray:
        """Return the position of a hinge or slide joint, rad or m, f64 [n]."""
        return self.fields.qpos[:, self._find("jnt", name).qposadr[0]]

    def body_speed_m_s(self, name: str) -> np.ndarray:
        """Return how fast a body moves whose free joint has its name, f64 [n]."""
        start = self._find("jnt", name).dofadr[0]
        return length(self.fields.qvel[:, start : start + 3])

    def touching(self, geom: str) -> np.ndarray:
        """Return how many bodies of the arm touch a geom, i64 [n]; two of them hold it."""
        world, pairs = self._simulation.contacts()
        pair, side = np.nonzero(pairs == self._find("geom", geom).id)
        body = self._arm_body[pairs[pair, 1 - side]]
        arm = body >= 0
        if not arm.any():
            return np.zeros(len(self.steps), np.int64)
        touched = np.zeros((len(self.steps), self._model.nbody), np.bool_)
        touched[world[pair[arm]], body[arm]] = True
        return touched.sum(1)

    def hold_home(self, rows: Rows) -> None:
        """Hold the arm at rest exactly at home: a lock without error."""
        at = self._write(rows)[:, None]
        self.fields.qpos[at, self.joint_qpos] = self._home
        self.fields.qvel[at, self.joint_qvel] = 0.0
        self.fields.ctrl[at, self.actuators] = self._home

    def go_home(self, rows: Rows) -> None:
        """Set the whole physics state to its default with the arm at home, at rest, held there."""
        at = self._write(rows)
        if len(at):
            self._simulation.go_home(at)

    def place(self, body: str, rows: Rows, pos_m: np.ndarray, yaw_rad: np.ndarray) -> None:
        """Put a block or a mark at a position f64 [n, 3] and yaw f64 [n], at rest."""
        at, fields = self._write(rows), self.fields
        target = self._find("body", body)
        quat = np.zeros((len(at), 4))
        quat[:, 0], quat[:, 3] = np.cos(yaw_rad[at] / 2), np.sin(yaw_rad[at] / 2)
        mark = self._model.body_mocapid[target.id]
        if mark >= 0:
            fields.mocap_pos[at, mark] = pos_m[at]
            fields.mocap_quat[at, mark] = quat
            return
        joint = self._find("jnt", body)
        start, speed = joint.qposadr[0], joint.dofadr[0]
        fields.qpos[at, start : start + 3] = pos_m[at]
        fields.qpos[at, start + 3 : start + 7] = quat
        fields.qvel[at, speed : speed + 6] = 0.0

    def paint(self, geom: str, rows: Rows, rgb: np.ndarray) -> None:
        """Give a geom a colour f64 [n, 3] in [0, 1]."""
        there = self.fields.geom_rgba[:, self._find("geom", geom).id, :3]
        wanted = rgb.astype(np.float32)
        changed = (there != wanted).any(1) & rows & self.moving
        if changed.any():
            there[changed] = wanted[changed]
            self._written |= changed
            self.painted = True

    def refresh(self) -> None:
        """Update poses in the worlds written to since the last call."""
        rows = self._written.nonzero()[0]
        if len(rows):
            self._written[:] = False
            self._simulation.refresh(rows)

    def _write(self, rows: Rows) -> np.ndarray:
        """Return the indices of the worlds to write to, and mark them."""
        here = rows & self.moving
        self._written |= here
        return here.nonzero()[0]

    def _find(self, kind: str, name: str) -> Any:
        element = self._elements.get((kind, name))
        if element is None:
            element = self._elements[kind, name] = getattr(self._model, kind)(name)
        return element


def _arm_bodies(model: mujoco.MjModel) -> np.ndarray:
    """Return the body of each geom of the arm, from base to fingertips, -1 for other geoms."""
    base = model.body_rootid[model.site_bodyid[model.site("tool").id]]
    return np.where(model.body_rootid.take(model.geom_bodyid) == base, model.geom_bodyid, -1)


def stacked(episode: Any, n: int) -> Any:
    """Return a task's state of one episode, repeated n times along a new leading axis."""
    return _each(lambda value: np.repeat(np.asarray(value)[None], n, axis=0), episode)


def row_of(episodes: Any, row: int) -> Any:
    """Return a copy of one of n episodes' states, without the leading axis."""
    return _each(lambda a: a[row].item() if a.ndim == 1 else a[row].copy(), episodes)


def cut_out(episodes: Any, row: int) -> Any:
    """Return one of n episodes' states as a batch of n = 1 in the same memory."""
    return _each(lambda a: a[row : row + 1], episodes)


def arrays_of(episodes: Any) -> Iterator[np.ndarray]:
    """Yield the arrays of n episodes' states, always in the same order."""
    for field in dataclasses.fields(episodes):
        value = getattr(episodes, field.name)
        if dataclasses.is_dataclass(value):
            yield from arrays_of(value)
        else:
            yield value


def _each(change: Callable[[Any], np.ndarray], episode: Any) -> Any:
    """Return a state with every field changed, those of dataclasses in it too."""
    if not dataclasses.is_dataclass(episode) or isinstance(episode, type):
        return change(episode)
    names = [field.name for field in dataclasses.fields(episode)]
    return dataclasses.replace(episode, **{n: _each(change, getattr(episode, n)) for n in names})
