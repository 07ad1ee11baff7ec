"""Newton 1.8 as an engine: batched worlds of our MJCF, solved by its SolverMuJoCo, on CPU or GPU.

Marks and other bodies fixed to the world become fixed joints there; the joints' frames, which
differ between worlds, place them. Images come from its ray tracer, SensorTiledCamera.
"""

from typing import Any, Dict, List, Sequence

import newton
import numpy as np
import warp as wp
from _engine import EngineAdapter, free_to_root, root_to_free, times, to_wxyz, to_xyzw, turn

VARIES = frozenset(
    ("body_pos", "body_quat", "geom_friction", "body_mass", "body_inertia", "body_subtreemass",
     "body_invweight0", "dof_invweight0")
)  # fmt: skip
"""The solver derives the last three from masses."""
APPEARANCE = frozenset(("geom_rgba", "cam_pos", "cam_quat"))
"""Fields that differ between worlds as well if Newton renders."""


def open_adapter(options: Dict[str, Any]) -> EngineAdapter:
    """Return the adapter of a scene; see `sim.engines.hosted.ExternalEngineConfig`."""
    wp.config.quiet = True
    return EngineAdapter(options, Newton(options))


class Newton:
    """A model of all worlds, its solver, and a copy of their state."""

    def __init__(self, options: Dict[str, Any]) -> None:
        self._options = options
        self._worlds = options["worlds"]
        self.draws = bool(options["draws"])
        self.varies = VARIES | APPEARANCE if self.draws else VARIES
        single = newton.ModelBuilder()
        newton.solvers.SolverMuJoCo.register_custom_attributes(single)
        single.rigid_gap = 0.0
        # All geoms are visible; if some are only visible, Newton hides the colliding ones.
        single.add_mjcf(
            options["mjcf"], ctrl_direct=True, parse_sites=False, force_show_colliders=True
        )
        self._map(single)
        everything = newton.ModelBuilder()
        everything.replicate(single, self._worlds)
        self._model = everything.finalize(device=options["device"] or None)
        solver = newton.solvers.SolverMuJoCo
        self._solver = solver(self._model, separate_worlds=True, njmax=options["njmax"],
                              nconmax=options["nconmax"])  # fmt: skip
        self._observables = self._solver.observables({solver.ObservableKind.OVERFLOW})
        self._before, self._after = self._model.state(), self._model.state()
        self._control = self._model.control()
        self._q = self._per_world(self._model.joint_q)
        self._qd = self._per_world(self._model.joint_qd)
        self._frames = self._per_world(self._model.joint_X_p)
        self._mu = self._per_world(self._model.shape_material_mu)
        self._mass = self._per_world(self._model.body_mass)
        self._inertia = self._per_world(self._model.body_inertia)
        self._overran = np.zeros(self._worlds, bool)
        self._cameras = Cameras(options, self._model) if self.draws else None

    def _map(self, single: Any) -> None:
        """Map joints, bodies and geoms of the scene to those of one Newton world."""
        options = self._options
        joints = _by_name(single.joint_label)
        self._joints = []
        for joint in options["joints"]:
            at = joints[joint["name"]]
            self._joints.append((joint, single.joint_q_start[at], single.joint_qd_start[at]))
        frames = {name: joints[name + "_joint"] for name in options["mocap"]}
        self._marks = [frames[name] for name in options["mocap"]]
        # Bodies fixed to the world without a joint: body id -> joint.
        self._fixed = {
            i: joints[body["name"] + "_joint"]
            for i, body in enumerate(options["bodies"])
            if i and body["parent"] == "world" and not body["joints"]
            and body["name"] not in options["mocap"]
        }  # fmt: skip
        shapes, bodies = _by_name(single.shape_label), _by_name(single.body_label)
        self._shapes = {i: shapes[g["name"]] for i, g in enumerate(options["geoms"])
                        if g["name"] in shapes}  # fmt: skip
        self._free = {
            next(i for i, b in enumerate(options["bodies"]) if b["name"] == joint["body"]):
            bodies[joint["body"]]
            for joint in options["joints"] if joint["type"] == "free"
        }  # fmt: skip

    def _per_world(self, array: Any) -> np.ndarray:
        """Return a copy of an array of the model, one row for each world."""
        values = array.numpy().copy()
        return values.reshape(self._worlds, -1, *values.shape[1:])

    def write(self, rows: np.ndarray, arrays: Dict[str, np.ndarray], varied: Sequence[str]) -> None:
        """Set worlds to the state in rows of the arrays, with varied fields of the model."""
        for joint, q, qd in self._joints:
            self._write_joint(joint, q, qd, rows, arrays)
        for i, at in enumerate(self._marks):
            self._frames[rows, at, :3] = arrays["mocap_pos"][rows, i]
            self._frames[rows, at, 3:] = to_xyzw(arrays["mocap_quat"][rows, i])
        self._vary(rows, arrays, varied)
        if self._cameras:
            self._cameras.vary(rows, arrays, varied)
        self._model.joint_X_p.assign(self._frames.reshape(-1, 7))
        self._solver.notify_model_changed(newton.ModelFlags.JOINT_PROPERTIES)
        mask = np.zeros(self._worlds + 1, bool)  # the last entry is for the global world
        mask[rows] = True
        # The solver's warm start may hold NaN from the last episode.
        self._solver.reset(
            self._before, wp.array(mask, dtype=wp.bool, device=self._model.device), 0
        )
        self._push()

    def _write_joint(
        self, joint: Dict[str, Any], q: int, qd: int, rows: np.ndarray,
        arrays: Dict[str, np.ndarray],
    ) -> None:  # fmt: skip
        qpos, qvel, a, d = arrays["qpos"], arrays["qvel"], joint["qpos"], joint["dof"]
        if joint["type"] != "free":
            self._q[rows, q] = qpos[rows, a]
            self._qd[rows, qd] = qvel[rows, d]
            return
        root = free_to_root(qpos[rows, a : a + 7], qvel[rows, d : d + 6])
        self._q[rows, q : q + 3] = root[:, :3]
        self._q[rows, q + 3 : q + 7] = to_xyzw(root[:, 3:7])
        self._qd[rows, qd : qd + 6] = root[:, 7:]

    def _vary(self, rows: np.ndarray, arrays: Dict[str, np.ndarray], varied: Sequence[str]) -> None:
        model, flags = self._model, newton.ModelFlags
        for i, at in self._fixed.items():
            if "body_pos" in varied:
                self._frames[rows, at, :3] = arrays["varied_body_pos"][rows, i]
            if "body_quat" in varied:
                self._frames[rows, at, 3:] = to_xyzw(arrays["varied_body_quat"][rows, i])
        if "geom_friction" in varied:
            for i, at in self._shapes.items():
                self._mu[rows, at] = arrays["varied_geom_friction"][rows, i, 0]
            model.shape_material_mu.assign(self._mu.reshape(-1))
            self._solver.notify_model_changed(flags.SHAPE_PROPERTIES)
        if "body_mass" in varied and self._free:
            for i, at in self._free.items():
                mass = arrays["varied_body_mass"][rows, i]
                # Inertia scales with the mass.
                self._inertia[rows, at] *= (mass / self._mass[rows, at])[:, None, None]
                self._mass[rows, at] = mass
            model.body_mass.assign(self._mass.reshape(-1))
            model.body_inv_mass.assign(_inverse(self._mass.reshape(-1)))
            model.body_inertia.assign(self._inertia.reshape(-1, 3, 3))
            inverse = [
                np.linalg.inv(i) if np.any(i) else i for i in self._inertia.reshape(-1, 3, 3)
            ]
            model.body_inv_inertia.assign(np.array(inverse, np.float32))
            self._solver.notify_model_changed(flags.BODY_INERTIAL_PROPERTIES)

    def _push(self) -> None:
        """Write the copy of the state to Newton, and update the bodies' poses."""
        self._before.joint_q.assign(self._q.reshape(-1))
        self._before.joint_qd.assign(self._qd.reshape(-1))
        state = self._before
        newton.eval_fk(self._model, state.joint_q, state.joint_qd, state)

    def step(self, arrays: Dict[str, np.ndarray], substeps: int, active: np.ndarray) -> None:
        """Hold position targets for some steps; worlds that are not active are restored."""
        self._control.mujoco.ctrl.assign(arrays["ctrl"].astype(np.float32).reshape(-1))
        overran = wp.zeros(self._worlds, dtype=wp.int32, device=self._model.device)
        for _ in range(substeps):
            self._solver.step(
                self._before, self._after, self._control, None, self._options["timestep_s"],
                observables=self._observables,
            )  # fmt: skip
            self._before, self._after = self._after, self._before
            wp.launch(
                _collect, dim=self._worlds, inputs=[self._observables.overflow], outputs=[overran],
                device=self._model.device,
            )  # fmt: skip
        self._overran = (overran.numpy() != 0) & active
        q = self._before.joint_q.numpy().reshape(self._worlds, -1)
        qd = self._before.joint_qd.numpy().reshape(self._worlds, -1)
        self._q[active], self._qd[active] = q[active], qd[active]
        if not active.all():
            self._push()

    def read_state(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Write the state of all worlds to arrays in MuJoCo's layout."""
        for joint, q, qd in self._joints:
            a, d = joint["qpos"], joint["dof"]
            if joint["type"] != "free":
                qpos[:, a] = self._q[:, q]
                qvel[:, d] = self._qd[:, qd]
                continue
            place = self._q[:, q : q + 7].astype(np.float64)
            spin = self._qd[:, qd : qd + 6].astype(np.float64)
            root = np.concatenate([place[:, :3], to_wxyz(place[:, 3:]), spin], axis=1)
            qpos[:, a : a + 7], qvel[:, d : d + 6] = root_to_free(root)

    def overran(self) -> np.ndarray:
        """Return the worlds with too many contacts or constraints in the last step."""
        return self._overran

    def render(self, rows: np.ndarray, images: np.ndarray) -> None:
        """Render all worlds, and write the images of some."""
        assert self._cameras is not None
        images[rows] = self._cameras.render(self._before)[rows]

    def close(self) -> None:
        """Do nothing: the process holds all resources."""


class Cameras:
    """Newton's ray tracer with the cameras of the scene."""

    def __init__(self, options: Dict[str, Any], model: Any) -> None:
        self._options = options
        self._model = model
        self._worlds = options["worlds"]
        count, height, width, _ = options["image"]
        self._sensor = newton.sensors.SensorTiledCamera(model)
        light = np.array(options["light_dir"], np.float32)
        self._sensor.utils.create_default_light(
            enable_shadows=False, direction=wp.vec3f(*(light / np.linalg.norm(light)).tolist())
        )
        fovs = [float(np.radians(camera["fovy_deg"])) for camera in options["cameras"]]
        self._rays = self._sensor.utils.compute_camera_rays_pinhole(width, height, camera_fovs=fovs)
        self._colour = self._sensor.utils.create_color_image_output(width, height, count)
        labels = _by_name(model.body_label[: len(model.body_label) // self._worlds])
        # The camera's body, or -1 for one fixed to the world.
        self._bodies = [labels.get(camera["body"], -1) for camera in options["cameras"]]
        shape = (self._worlds, len(fovs))
        self._pos = np.broadcast_to([c["pos"] for c in options["cameras"]], (*shape, 3)).copy()
        self._quat = np.broadcast_to([c["quat"] for c in options["cameras"]], (*shape, 4)).copy()
        shapes = _by_name(model.shape_label[: len(model.shape_label) // self._worlds])
        self._shapes = {i: shapes[g["name"]] for i, g in enumerate(options["geoms"])
                        if g["name"] in shapes}  # fmt: skip
        self._rgb = model.shape_color.numpy().copy().reshape(self._worlds, -1, 3)

    def vary(self, rows: np.ndarray, arrays: Dict[str, np.ndarray], varied: Sequence[str]) -> None:
        """Set colours and camera poses of worlds."""
        if "geom_rgba" in varied:
            for i, at in self._shapes.items():
                self._rgb[rows, at] = arrays["varied_geom_rgba"][rows, i, :3]
            self._model.shape_color.assign(self._rgb.reshape(-1, 3))
        ids = [camera["id"] for camera in self._options["cameras"]]
        if "cam_pos" in varied:
            self._pos[rows] = arrays["varied_cam_pos"][rows][:, ids]
        if "cam_quat" in varied:
            self._quat[rows] = arrays["varied_cam_quat"][rows][:, ids]

    def render(self, state: Any) -> np.ndarray:
        """Return images of all worlds, u8 (e, v, h, w, 3)."""
        bodies = state.body_q.numpy().reshape(self._worlds, -1, 7).astype(np.float64)
        poses = np.empty((len(self._bodies), self._worlds, 7), np.float32)
        for view, body in enumerate(self._bodies):
            pos, quat = self._pos[:, view], self._quat[:, view]
            if body >= 0:
                carrier = to_wxyz(bodies[:, body, 3:])
                pos = bodies[:, body, :3] + turn(carrier, pos)
                quat = times(carrier, quat)
            poses[view] = np.concatenate([pos, to_xyzw(quat)], axis=1)
        self._model.bvh_refit_shapes(state)
        transforms: Any = wp.array(poses, dtype=wp.transformf, device=self._model.device)
        self._sensor.update(state, transforms, self._rays, color_image=self._colour)
        packed = np.ascontiguousarray(self._colour.numpy())
        return packed.view(np.uint8).reshape(*packed.shape, 4)[..., :3]


@wp.kernel
def _collect(latest: wp.array(dtype=wp.int32), seen: wp.array(dtype=wp.int32)) -> None:  # type: ignore[valid-type]
    i = wp.tid()
    seen[i] = seen[i] | latest[i]


def _by_name(labels: List[str]) -> Dict[str, int]:
    """Return the last part of each label, a path -> its index."""
    return {label.rsplit("/", 1)[-1]: i for i, label in enumerate(labels)}


def _inverse(values: np.ndarray) -> np.ndarray:
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0.0)
