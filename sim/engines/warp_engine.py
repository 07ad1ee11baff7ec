"""mujoco_warp as an engine: thousands of worlds in one process, on a GPU or, slower, on a CPU.

Physics and rays are mujoco_warp's, float32. Rules, episodes and randomness are `batch.py`'s.
"""

from typing import Any

import numpy as np

from sim.core.scene import Scene
from sim.engines import warp_kernels as kernels
from sim.engines.engine import GEOMETRY, STATE, VARIED, Geometry, Reading, State
from sim.engines.warp_camera import WarpCamera, as_rows
from sim.engines.warp_start import mjw, wp
from vla.contracts.types import Array

MOVING = ("qpos", "qvel", "qacc_warmstart")
"""State that a step of physics changes."""
NO_LIMIT = 2**30


class WarpEngine:
    """Satisfies `sim.engines.engine.Engine`."""

    varies = frozenset(VARIED)

    def __init__(
        self,
        scene: Scene,
        num_worlds: int,
        *,
        device: str = "cpu",
        contacts_per_world: int,
        constraints_per_world: int,
    ) -> None:
        """Make worlds; `write` each before the first step.

        Args:
            scene: The scene; only read.
            num_worlds: E.
            device: "cpu" or "cuda:0".
            contacts_per_world: Contacts that a world may have; one with more is at fault.
            constraints_per_world: Rows of constraints that it may have: 4 to 6 per contact, and
                those of joints.

        Raises:
            ValueError: a number is out of range, or mujoco_warp cannot simulate the scene.
        """
        room = {"num_worlds": num_worlds, "contacts_per_world": contacts_per_world,
                "constraints_per_world": constraints_per_world}  # fmt: skip
        for name, value in room.items():
            if value < 1:
                raise ValueError(f"{name}: got {value}, expected at least 1")
        self.scene = scene
        self.num_worlds = num_worlds
        self.device = wp.get_device(device)
        self._share = contacts_per_world
        with wp.ScopedDevice(self.device):
            self._make(contacts_per_world, constraints_per_world)
        self._contacts = np.zeros((0, 3), np.int32)
        self._stale = np.zeros(num_worlds, np.bool_)
        self._graphs: dict[int, Any] = {}
        self._camera: WarpCamera | None = None

    def _make(self, contacts: int, constraints: int) -> None:
        nominal, worlds = self.scene.model, self.num_worlds
        try:
            self._model = mjw.put_model(nominal)
        except NotImplementedError as error:
            raise ValueError(f"mujoco_warp cannot simulate this scene: {error}") from error
        self._data = mjw.make_data(nominal, worlds, nconmax=contacts, njmax=constraints)
        self._light_diffuse = wp.array(
            np.tile(nominal.light_diffuse, (worlds, 1, 1)), dtype=wp.vec3
        )
        self._varied = {"light_diffuse": self._light_diffuse}
        for name in VARIED:
            if name == "light_diffuse":  # mujoco_warp has none
                continue
            array = getattr(self._model, name)
            values = getattr(nominal, name)
            tiled = np.tile(values, (worlds, *(1,) * values.ndim))
            self._varied[name] = wp.array(tiled, dtype=array.dtype, shape=(worlds, len(values)))
            setattr(self._model, name, self._varied[name])
        root, weld = nominal.body_rootid, nominal.body_weldid
        fixed = (weld == 0) & (nominal.body_mocapid[root] == -1)
        self._fixed_geoms = wp.array(np.flatnonzero(fixed[nominal.geom_bodyid]), dtype=int)
        self._saved = {name: wp.zeros_like(getattr(self._data, name)) for name in MOVING}
        self._active = wp.zeros(worlds, dtype=bool)
        self._fault = wp.zeros(worlds, dtype=bool)
        self._counts = wp.zeros(worlds, dtype=int)
        self._nominal = wp.array(nominal.qpos0[None], dtype=float)

    def write(self, rows: np.ndarray, state: State, varied: dict[str, Array]) -> None:
        """Set some worlds, i64 [n], to `state`; see `sim.engines.engine.Engine`."""
        if not len(rows):
            return
        with wp.ScopedDevice(self.device):
            chosen = wp.array(rows, dtype=int)
            data = self._data
            for name in STATE:
                _put(chosen, getattr(state, name), getattr(data, name))
            _put(chosen, np.zeros((len(rows), self._model.nv)), data.qacc_warmstart)
            for name, values in varied.items():
                _put(chosen, values, self._varied[name])
            written = np.zeros(self.num_worlds, np.bool_)
            written[rows] = True
            self._merge_contacts()
            self._active.assign(written)
            self._fault.assign(self.faults() & ~written)
            self._find_lost()
            self._place()
            wp.launch(
                kernels.place_fixed_geoms,
                dim=(self.num_worlds, self._fixed_geoms.shape[0]),
                inputs=[self._fixed_geoms, self._model.geom_bodyid, self._model.geom_pos,
                        self._model.geom_quat, data.xpos, data.xmat],
                outputs=[data.geom_xpos, data.geom_xmat],
            )  # fmt: skip
            mjw.collision(self._model, data)
            self._find_full(NO_LIMIT)  # the rows that lie there are those of the last step
        self._stale |= written

    def step(self, ctrl: np.ndarray, substeps: int, active: np.ndarray) -> None:
        """Hold targets f64 [e, nu] for some steps of physics in active worlds, bool [e]."""
        with wp.ScopedDevice(self.device):
            self._merge_contacts()
            self._data.ctrl.assign(np.asarray(ctrl, np.float32))
            self._active.assign(np.asarray(active, np.bool_))
            graph = self._graphs.get(substeps)
            if graph is not None:
                wp.capture_launch(graph)
            else:
                self._advance(substeps)
                if self.device.is_cuda:
                    # Not before: the first time compiles, which must not happen in a capture.
                    self._graphs[substeps] = self._capture(substeps)
        self._stale |= active

    def _capture(self, substeps: int) -> Any:
        with wp.ScopedCapture() as capture:
            self._advance(substeps)
        return capture.graph

    def _advance(self, substeps: int) -> None:
        data = self._data
        for name, saved in self._saved.items():
            wp.copy(saved, getattr(data, name))
        for _ in range(substeps):
            mjw.step(self._model, data)
            self._find_full(data.njmax)
            self._find_lost()
        for name, saved in self._saved.items():
            array = getattr(data, name)
            wp.launch(
                kernels.hold_still, dim=array.shape, inputs=[self._active, saved], outputs=[array]
            )
        self._place()

    def _find_full(self, constraints: int) -> None:
        """Mark active worlds with too many contacts or constraint rows."""
        data = self._data
        self._counts.zero_()
        wp.launch(
            kernels.count_contacts,
            dim=data.naconmax,
            inputs=[data.nacon, data.naconmax, data.contact.worldid],
            outputs=[self._counts],
        )
        wp.launch(
            kernels.find_full,
            dim=self.num_worlds,
            inputs=[self._active, data.nefc, constraints, data.nacon, data.ncollision,
                    data.naconmax, self._counts, self._share],
            outputs=[self._fault],
        )  # fmt: skip

    def _find_lost(self) -> None:
        """Mark active worlds whose state is not finite."""
        data = self._data
        wp.launch(
            kernels.find_lost,
            dim=self.num_worlds,
            inputs=[self._active, self._nominal],
            outputs=[data.qpos, data.qvel, data.qacc_warmstart, self._fault],
        )

    def _place(self) -> None:
        """Update the poses of bodies, cameras and lights."""
        mjw.kinematics(self._model, self._data)
        mjw.camlight(self._model, self._data)

    def read(self) -> Reading:
        """Return the state of all worlds."""
        self._merge_contacts()
        data = self._data
        placed = {name: getattr(data, name).numpy().astype(np.float64) for name in GEOMETRY}
        return Reading(
            qpos=data.qpos.numpy().astype(np.float64),
            qvel=data.qvel.numpy().astype(np.float64),
            geometry=Geometry(**placed),
            contacts=self._contacts,
        )

    def _merge_contacts(self) -> None:
        """Take the contacts of worlds that moved or were written; others keep theirs."""
        if not self._stale.any():
            return
        contact, count = self._data.contact, self._data.naconmax
        count = min(int(self._data.nacon.numpy()[0]), count)
        worlds = contact.worldid[:count].numpy() if count else np.zeros(0, np.int32)
        pairs = contact.geom[:count].numpy() if count else np.zeros((0, 2), np.int32)
        current = np.column_stack([worlds, pairs])[self._stale[worlds]]
        others = self._contacts[~self._stale[self._contacts[:, 0]]]
        self._contacts = np.concatenate([others, current]).astype(np.int32)
        self._stale[:] = False

    def faults(self) -> np.ndarray:
        """Return the worlds that failed since their last write, bool [e]."""
        return self._fault.numpy().astype(np.bool_)

    def render(self, rows: np.ndarray) -> Array:
        """Return images of some worlds, i64 [n]; see `sim.engines.engine.Engine`."""
        with wp.ScopedDevice(self.device):
            if self._camera is None:
                self._camera = WarpCamera(self.scene, self._model, self._data, self._light_diffuse)
            return self._camera.draw(rows)

    def close(self) -> None:
        """Free memory."""
        self._graphs.clear()
        self._camera = None


def _put(rows: Any, values: Array, out: Any) -> None:
    """Write values (n, ...) to rows of a warp array (e, ...)."""
    target = as_rows(out)
    flat = np.asarray(values, np.float32).reshape(rows.shape[0], -1)
    if not flat.shape[1]:
        return
    source = wp.array(flat, dtype=float)
    wp.launch(kernels.put_rows, dim=flat.shape, inputs=[rows, source], outputs=[target])
