"""The worlds of an engine as rules see them, kept in arrays on the host; no episodes and no rules.

What rules write goes to the engine in one call per step.
"""

import dataclasses

import mujoco
import numpy as np

from sim.engines.engine import VARIED, Engine, State
from sim.engines.poses import HostPoses
from sim.randomize import SURFACES
from sim.scene import Scene
from sim.world import MujocoWorld
from sim.worlds import ArrayWorlds, Fields
from vla.contracts.types import Array

PLACED = ("body_pos", "body_quat")
"""Fields of the model that say where bodies are."""


class Stage:
    """Satisfies `sim.worlds.Keeper` for the worlds of an engine."""

    def __init__(self, scene: Scene, engine: Engine) -> None:
        """Make arrays for the worlds of an engine; nothing is in them before `put_`."""
        n, model = engine.num_worlds, scene.model
        self.engine = engine
        self._scene = scene
        self._start = MujocoWorld(scene, vary=False)
        self._start.go_home_()
        mujoco.mj_kinematics(self._start.model, self._start.data)
        alike = self._start.alone.fields
        self.fields = Fields(
            **{name: np.repeat(getattr(alike, name), n, axis=0) for name in _names(Fields)}
        )
        self._placed = {
            name: np.repeat(getattr(model, name)[None], n, axis=0)
            for name in PLACED
            if name in engine.varies
        }
        self.worlds = ArrayWorlds(scene, self.fields, self)
        self._host = HostPoses(scene, self.fields, self._placed)
        self._varied = [name for name in VARIED if name in engine.varies]
        self._read_rows = np.zeros(n, np.bool_)
        self._told: np.ndarray | None = None
        """Contacts by the engine's own account, i32 [c, 3]; None if they are to be found here."""

    def put_(self, rows: np.ndarray, drawn: "list[Drawn]") -> None:
        """Write worlds as they were drawn, one for each of `rows` i64 [n], to the engine."""
        for row, one in zip(rows.tolist(), drawn, strict=True):
            for name, values in one.fields.items():
                getattr(self.fields, name)[row] = values
            for name in self._placed:
                self._placed[name][row] = one.varied[name]
        varied = {name: np.stack([one.varied[name] for one in drawn]) for name in self._varied}
        self.engine.write(rows, self._state(rows), varied)

    def draw(self, world: MujocoWorld) -> "Drawn":
        """Return what `put_` needs of a world whose episode has just begun.

        Raises:
            ValueError: the task has written something that differs in no world of the engine.
        """
        model, nominal = world.model, self._scene.model
        kept = np.ones(model.ngeom, np.bool_)
        kept[[model.geom(name).id for name in SURFACES]] = False
        for name, part in (*((name, slice(None)) for name in PLACED), ("geom_rgba", kept)):
            same = np.array_equal(getattr(model, name)[part], getattr(nominal, name)[part])
            if name not in self.engine.varies and not same:
                raise ValueError(
                    f"engine: got one whose worlds all have the same {name}, expected one that "
                    "varies it: this task sets it in each episode; choose another backend"
                )
        return Drawn(
            fields={n: getattr(world.alone.fields, n)[0].copy() for n in _names(Fields)},
            varied={name: getattr(model, name).copy() for name in self._varied},
        )

    def step_(self, substeps: int, active: np.ndarray) -> np.ndarray:
        """Hold the targets in `fields.ctrl` for some steps of physics and take note of the result.

        Returns:
            Which of the worlds that are active, bool [n], went wrong; their arrays stay as they
            were.
        """
        self.engine.step(self.fields.ctrl, substeps, active)
        wrong = active & on_host(self.engine.faults())
        self._read(active & ~wrong)
        return wrong

    def contacts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return world [c] and both geoms [c, 2] of every pair that touches."""
        if self._told is None:
            self._told = self._host.contacts(np.flatnonzero(self._read_rows))
        return self._told[:, 0], self._told[:, 1:]

    def go_home_(self, rows: np.ndarray) -> None:
        """Set the whole physics state of some worlds, i64 [m], to its default, arm at home."""
        for name in _names(State):
            getattr(self.fields, name)[rows] = getattr(self._start.data, name)

    def refresh_(self, rows: np.ndarray) -> None:
        """Write some worlds, i64 [m], to the engine, and bring poses up to date."""
        varied = {}
        if self.worlds.painted and "geom_rgba" in self.engine.varies:
            varied["geom_rgba"] = self.fields.geom_rgba[rows]
        self.worlds.painted = False
        self.engine.write(rows, self._state(rows), varied)
        self._read(self._read_rows)

    def _state(self, rows: np.ndarray) -> State:
        return State(**{name: getattr(self.fields, name)[rows] for name in _names(State)})

    def _read(self, rows: np.ndarray) -> None:
        """Take note of where some worlds are, bool [n]."""
        self._read_rows = rows
        reading = self.engine.read()
        self._note("qpos", reading.qpos, rows)
        self._note("qvel", reading.qvel, rows)
        if reading.geometry is None:
            self._host.fill_(np.flatnonzero(rows))
        else:
            for name in ("xpos", "geom_xpos", "site_xpos"):
                self._note(name, getattr(reading.geometry, name), rows)
        self._told = None if reading.contacts is None else on_host(reading.contacts)

    def _note(self, name: str, values: Array, rows: np.ndarray) -> None:
        here, there = getattr(self.fields, name), on_host(values)
        if rows.all():
            here[:] = there
        else:
            here[rows] = there[rows]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """One world at the beginning of an episode."""

    fields: dict[str, np.ndarray]
    """Its arrays, by the names in `Fields`."""
    varied: dict[str, np.ndarray]
    """Fields of its model, by the names in `VARIED` that the engine varies."""


def on_host(array: Array) -> np.ndarray:
    """Return an array in the host's memory, where it may be already."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()


def _names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]
