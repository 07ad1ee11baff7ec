"""The smallest engine: plain MuJoCo, one model and one data per world; a reference for tests."""

import mujoco
import numpy as np

from sim.core.render import shared_renderer
from sim.core.scene import Scene
from sim.core.world import MujocoWorld
from sim.engines.engine import GEOMETRY, VARIED, Geometry, Reading, State


class HostEngine:
    """Satisfies `sim.engines.engine.Engine`."""

    def __init__(
        self,
        scene: Scene,
        num_worlds: int,
        *,
        gives: bool = True,
        varies: frozenset[str] = frozenset(VARIED),
    ) -> None:
        """Make worlds; `gives` says whether geometry and contacts come with a reading."""
        self.num_worlds = num_worlds
        self.varies = varies
        self.worlds = [MujocoWorld(scene) for _ in range(num_worlds)]
        """Only their models and data are used."""
        self.gives = gives
        self.closed = False
        self.writes: list[list[int]] = []
        """Rows of every call of `write`."""
        self.drawn = 0
        """Worlds of which there were images."""
        self._image_shape = scene.image_shape
        self._renderer = shared_renderer(scene)
        self._faults = np.zeros(num_worlds, np.bool_)

    def break_world(self, row: int) -> None:
        """Make a world go wrong at once."""
        self.worlds[row].data.qpos[:] = np.nan
        self._faults[row] = True

    def write(self, rows: np.ndarray, state: State, varied: dict[str, np.ndarray]) -> None:
        self.writes.append(rows.tolist())
        for i, row in enumerate(rows):
            model, data = self.worlds[row].model, self.worlds[row].data
            assert set(varied) <= self.varies
            for name, values in varied.items():
                getattr(model, name)[:] = values[i]
            # What MuJoCo takes from the model of masses and is no field of `VARIED`: dof_M0.
            mujoco.mj_setConst(model, data)
            mujoco.mj_resetData(model, data)
            for name in ("qpos", "qvel", "ctrl", "mocap_pos", "mocap_quat"):
                getattr(data, name)[:] = getattr(state, name)[i]
            mujoco.mj_forward(model, data)
            self._faults[row] = False

    def step(self, ctrl: np.ndarray, substeps: int, active: np.ndarray) -> None:
        for row in np.flatnonzero(active & ~self._faults):
            world = self.worlds[row]
            world.data.ctrl[:] = ctrl[row]
            mujoco.mj_step(world.model, world.data, nstep=substeps)
            mujoco.mj_kinematics(world.model, world.data)

    def read(self) -> Reading:
        data = [world.data for world in self.worlds]
        stacked = {name: np.stack([getattr(d, name) for d in data]) for name in ("qpos", "qvel")}
        if not self.gives:
            return Reading(**stacked)
        geometry = Geometry(**{n: np.stack([getattr(d, n) for d in data]) for n in GEOMETRY})
        contacts = [np.insert(d.contact.geom, 0, row, axis=1) for row, d in enumerate(data)]
        return Reading(**stacked, geometry=geometry, contacts=np.concatenate(contacts))

    def faults(self) -> np.ndarray:
        return self._faults.copy()

    def render(self, rows: np.ndarray) -> np.ndarray:
        images = np.zeros((len(rows), *self._image_shape), np.uint8)
        self._renderer.draw([self.worlds[row] for row in rows], list(images))
        self.drawn += len(rows)
        return images

    def close(self) -> None:
        self.closed = True
