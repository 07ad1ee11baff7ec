"""Kinematics and collision on the host, world by world, for engines without them."""

import copy

import mujoco
import numpy as np

from sim.core.scene import Scene
from sim.core.worlds import Fields
from sim.engines.engine import GEOMETRY


class HostPoses:
    """A scratch `MjData` that takes the state of each of n worlds in turn."""

    def __init__(self, scene: Scene, fields: Fields, placed: dict[str, np.ndarray]) -> None:
        """Bind to the arrays of n worlds: state is read, poses are written.

        `placed` maps fields of the model that move bodies to their values, one row per world.
        """
        self._model = copy.copy(scene.model)
        self._data = mujoco.MjData(self._model)
        self._fields = fields
        self._placed = placed

    def update(self, rows: np.ndarray) -> None:
        """Write the poses of some worlds, i64 [n], from their joint positions."""
        for row in rows.tolist():
            self._become(row)
            for name in GEOMETRY:
                getattr(self._fields, name)[row] = getattr(self._data, name)

    def contacts(self, rows: np.ndarray) -> np.ndarray:
        """Return world, geom and geom of every pair that touches in some worlds, i32 [c, 3]."""
        touching = [np.empty((0, 3), np.int32)]
        for row in rows.tolist():
            self._become(row)
            mujoco.mj_collision(self._model, self._data)
            pairs = self._data.contact.geom
            touching.append(np.insert(pairs, 0, row, axis=1))
        return np.concatenate(touching)

    def _become(self, row: int) -> None:
        for name, values in self._placed.items():
            getattr(self._model, name)[:] = values[row]
        for name in ("qpos", "mocap_pos", "mocap_quat"):
            getattr(self._data, name)[:] = getattr(self._fields, name)[row]
        mujoco.mj_kinematics(self._model, self._data)
