"""State of an engine's worlds in arrays on the host, as rules see them.

Writes of rules go to the engine in one call per step.
"""

import dataclasses

import mujoco
import numpy as np

from sim.core.randomize import SURFACES
from sim.core.scene import Scene
from sim.core.world import MujocoWorld
from sim.core.worlds import FIELDS, Fields, Worlds
from sim.engines.engine import GEOMETRY, STATE, VARIED, Engine, State
from sim.engines.poses import HostPoses
from vla.contracts.types import Array

PLACED = ("body_pos", "body_quat")
"""Fields of the model with poses of bodies."""


class HostState:
    """Satisfies `sim.core.worlds.Simulation` for the worlds of an engine."""

    def __init__(self, scene: Scene, engine: Engine) -> None:
        """Allocate arrays for the worlds of an engine; `write` fills them."""
        n, model = engine.num_worlds, scene.model
        self.engine = engine
        self._scene = scene
        self._start = MujocoWorld(scene, vary=False)
        self._start.go_home()
        mujoco.mj_kinematics(self._start.model, self._start.data)
        alike = self._start.as_batch.fields
        self.fields = Fields(
            **{name: np.repeat(getattr(alike, name), n, axis=0) for name in FIELDS}
        )
        self._placed = {
            name: np.repeat(getattr(model, name)[None], n, axis=0)
            for name in PLACED
            if name in engine.varies
        }
        self.worlds = Worlds(model, scene.robot, self.fields, self)
        self._host = HostPoses(scene, self.fields, self._placed)
        self._varied = [name for name in VARIED if name in engine.varies]
        self._read_rows = np.zeros(n, np.bool_)
        self._contacts: np.ndarray | None = None
        """Contacts from the engine, i32 [c, 3]; None if they have to be computed here."""

    def write(self, rows: np.ndarray, drawn: "list[EpisodeStart]") -> None:
        """Write drawn starts, one for each of `rows` i64 [n], to the engine."""
        for row, start in zip(rows.tolist(), drawn, strict=True):
            for name, values in start.fields.items():
                getattr(self.fields, name)[row] = values
            for name in self._placed:
                self._placed[name][row] = start.varied[name]
        varied = {name: np.stack([one.varied[name] for one in drawn]) for name in self._varied}
        self.engine.write(rows, self._state(rows), varied)

    def capture(self, world: MujocoWorld) -> "EpisodeStart":
        """Return the start of a world's episode for `write`.

        Raises:
            ValueError: the task has written a field that the engine does not vary.
        """
        model, nominal = world.model, self._scene.model
        objects = np.ones(model.ngeom, np.bool_)
        objects[[model.geom(name).id for name in SURFACES]] = False
        for name, part in (*((name, slice(None)) for name in PLACED), ("geom_rgba", objects)):
            same = np.array_equal(getattr(model, name)[part], getattr(nominal, name)[part])
            if name not in self.engine.varies and not same:
                raise ValueError(
                    f"engine: got one whose worlds all have the same {name}, expected one that "
                    "varies it: this task sets it in each episode; choose another backend"
                )
        return EpisodeStart(
            fields={n: getattr(world.as_batch.fields, n)[0].copy() for n in FIELDS},
            varied={name: getattr(model, name).copy() for name in self._varied},
        )

    def step(self, substeps: int, active: np.ndarray) -> np.ndarray:
        """Hold the targets in `fields.ctrl` for some steps of physics and read the result.

        Returns:
            Active worlds that failed, bool [n]; their arrays do not change.
        """
        self.engine.step(self.fields.ctrl, substeps, active)
        wrong = active & on_host(self.engine.faults())
        self._read(active & ~wrong)
        return wrong

    def contacts(self) -> tuple[np.ndarray, np.ndarray]:
        """Return world [c] and both geoms [c, 2] of every pair that touches."""
        if self._contacts is None:
            self._contacts = self._host.contacts(np.flatnonzero(self._read_rows))
        return self._contacts[:, 0], self._contacts[:, 1:]

    def read_contacts(self) -> None:
        """Let `contacts` answer for all worlds: also those written since the last step, and those
        that stood still in it.
        """
        contacts = self.engine.read().contacts
        self._read_rows = np.ones_like(self._read_rows)
        self._contacts = None if contacts is None else on_host(contacts)

    def go_home(self, rows: np.ndarray) -> None:
        """Set the whole physics state of some worlds, i64 [m], to its default, arm at home."""
        for name in STATE:
            getattr(self.fields, name)[rows] = getattr(self._start.data, name)

    def refresh(self, rows: np.ndarray) -> None:
        """Write some worlds, i64 [m], to the engine, and update poses."""
        varied = {}
        if self.worlds.painted and "geom_rgba" in self.engine.varies:
            varied["geom_rgba"] = self.fields.geom_rgba[rows]
        self.worlds.painted = False
        self.engine.write(rows, self._state(rows), varied)
        self._read(self._read_rows)

    def _state(self, rows: np.ndarray) -> State:
        return State(**{name: getattr(self.fields, name)[rows] for name in STATE})

    def _read(self, rows: np.ndarray) -> None:
        """Read the state of some worlds, bool [n], from the engine."""
        self._read_rows = rows
        reading = self.engine.read()
        self._store("qpos", reading.qpos, rows)
        self._store("qvel", reading.qvel, rows)
        if reading.geometry is None:
            self._host.update(np.flatnonzero(rows))
        else:
            for name in GEOMETRY:
                self._store(name, getattr(reading.geometry, name), rows)
        self._contacts = None if reading.contacts is None else on_host(reading.contacts)

    def _store(self, name: str, values: Array, rows: np.ndarray) -> None:
        here, there = getattr(self.fields, name), on_host(values)
        if rows.all():
            here[:] = there
        else:
            here[rows] = there[rows]


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeStart:
    """One world at the beginning of an episode."""

    fields: dict[str, np.ndarray]
    """Its arrays, by the names in `Fields`."""
    varied: dict[str, np.ndarray]
    """Fields of its model, by the names in `VARIED` that the engine varies."""


def on_host(array: Array) -> np.ndarray:
    """Return an array in the host's memory."""
    return array if isinstance(array, np.ndarray) else array.cpu().numpy()
