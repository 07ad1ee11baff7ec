"""Isaac Gym Preview 4 as an engine, through `gymapi` and `gymtorch`: one sim, one actor per thing.

The tensor interface takes one write per tensor between two steps of physics, so writes are
collected and sent once, before physics. Its importer has no coupled joints, so they are driven.
Quaternions are xyzw there, and poses in the frame of their environment.
"""

import importlib
import os
from typing import Any, Dict, List, Sequence

import numpy as np
from _engine import EngineAdapter, drives, times, to_wxyz, to_xyzw
from _parts import WorldStates, arm, volume_m3
from isaacgym import gymapi, gymtorch  # before torch, or it refuses to load

# The torch of this interpreter; the project does not depend on it.
torch = importlib.import_module("torch")

SPACING_M = 5.0
"""Half the width of an environment."""
ARM_BITS, FIXED_BITS, ALL_BITS = 1, 2, 0x7FFFFFFF
"""Two shapes collide unless their filters share a bit."""
FORWARD = np.array([0.5, -0.5, 0.5, 0.5])
"""Rotation (wxyz) from a camera along -z with y up to one along x with z up, as here."""
_opened: List[bool] = []


def open_adapter(options: Dict[str, Any]) -> EngineAdapter:
    """Return the adapter of a scene.

    Args:
        options: Those of `sim.engines.describe_scene`, "device" and "draws".

    Raises:
        ValueError: it has a sim already, or cannot hold the scene.
    """
    if _opened:
        raise ValueError("isaac_gym: this process already has a sim, and it can hold only one")
    _opened.append(True)
    return EngineAdapter(options, IsaacGym(options))


class IsaacGym:
    """A sim with all worlds, and a copy of their state."""

    varies = frozenset(("geom_rgba",))

    def __init__(self, options: Dict[str, Any]) -> None:
        self._options = options
        self._worlds = options["worlds"]
        self.draws = bool(options["draws"])
        self._gpu = options["device"] != "cpu"
        self._arm = arm(options)
        self._gym = gymapi.acquire_gym()
        number = int(options["device"].split(":")[1]) if ":" in options["device"] else 0
        # Off-screen images need a graphics device as well.
        graphics = number if self.draws else -1
        self._sim = self._gym.create_sim(number, graphics, gymapi.SIM_PHYSX, self._parameters())
        if self._sim is None:
            raise ValueError("isaac_gym: create_sim failed; see its output")
        self._envs: List[Any] = []
        self._actors: List[List[Any]] = []
        self._cameras: List[List[Any]] = []
        self._fill()
        self._gym.prepare_sim(self._sim)
        self._acquire_tensors()

    def _parameters(self) -> Any:
        params = gymapi.SimParams()
        params.dt = self._options["timestep_s"]
        params.substeps = 1
        params.up_axis = gymapi.UP_AXIS_Z
        params.gravity = gymapi.Vec3(*self._options["gravity"])
        params.use_gpu_pipeline = self._gpu
        params.physx.use_gpu = self._gpu
        params.physx.solver_type = 1
        params.physx.num_position_iterations = 8
        params.physx.num_velocity_iterations = 1
        params.physx.contact_offset = 0.002
        params.physx.rest_offset = 0.0
        return params

    # --- the scene ------------------------------------------------------------------------------

    def _fill(self) -> None:
        gym, sim = self._gym, self._sim
        folder, file = os.path.split(self._arm["file"])
        options = gymapi.AssetOptions()
        options.fix_base_link = True
        options.disable_gravity = True
        options.default_dof_drive_mode = int(gymapi.DOF_MODE_POS)
        robot = gym.load_asset(sim, folder, file, options)
        self._states = WorldStates(self._options, list(gym.get_asset_dof_names(robot)))
        self._bodies = self._states.bodies
        assets = [self._asset(body) for body in self._bodies]
        per_row = int(np.ceil(np.sqrt(self._worlds)))
        for i in range(self._worlds):
            low = gymapi.Vec3(-SPACING_M, -SPACING_M, 0.0)
            high = gymapi.Vec3(SPACING_M, SPACING_M, SPACING_M)
            env = gym.create_env(sim, low, high, per_row)
            self._envs.append(env)
            self._actors.append(self._make_actors(env, i, robot, assets))
            self._cameras.append(self._make_cameras(env, self._actors[-1][0]) if self.draws else [])

    def _asset(self, body: Dict[str, Any]) -> Any:
        options = gymapi.AssetOptions()
        options.density = body["mass"] / volume_m3(body)
        options.fix_base_link = body["kind"] == "fixed"
        # A mark stays where it is placed.
        options.disable_gravity = body["kind"] != "free"
        x, y, z = (2.0 * size for size in body["size"])
        if body["shape"] == "box":
            return self._gym.create_box(self._sim, x, y, z, options)
        if body["shape"] == "sphere":
            return self._gym.create_sphere(self._sim, body["size"][0], options)
        if not body["touches"]:
            # There are no cylinders; a flat disc without contacts is nearly a box.
            return self._gym.create_box(self._sim, x, x, y, options)
        raise ValueError(
            "geom of {!r}: got a cylinder with contacts, expected a box or a sphere: Isaac "
            "Gym has no other simple shapes".format(body["name"])
        )

    def _make_actors(self, env: Any, i: int, robot: Any, assets: List[Any]) -> List[Any]:
        """Create the actors of an environment, the arm first; return their handles."""
        gym = self._gym
        pose = _pose(self._arm["pos"], self._arm["quat"])
        handles = [gym.create_actor(env, robot, pose, "arm", i, ARM_BITS, 0)]
        properties = gym.get_asset_dof_properties(robot)
        driven = drives(self._options)
        for k, joint in enumerate(self._states.joints):
            drive = driven.get(joint["name"], {})
            properties["driveMode"][k] = gymapi.DOF_MODE_POS
            properties["stiffness"][k] = drive.get("stiffness", 0.0)
            properties["damping"][k] = drive.get("damping", joint["damping"])
            properties["effort"][k] = drive.get("force", 0.0)
            properties["armature"][k] = joint["armature"]
        gym.set_actor_dof_properties(env, handles[0], properties)
        self._set_friction(env, handles[0], max(
            g["friction"][0] for k, g in enumerate(self._options["geoms"])
            if k in self._arm["geoms"]
        ))  # fmt: skip
        bit = 4
        for body, asset in zip(self._bodies, assets):
            bits = FIXED_BITS if body["kind"] == "fixed" else ALL_BITS
            if body["touches"] and body["kind"] != "fixed":
                bits, bit = bit, bit * 2
            elif not body["touches"]:
                bits = ALL_BITS
            pose = _pose(body["pos"], body["quat"])
            handle = gym.create_actor(env, asset, pose, body["name"], i, bits, 0)
            colour = gymapi.Vec3(*body["rgba"][:3])
            gym.set_rigid_body_color(env, handle, 0, gymapi.MESH_VISUAL, colour)
            self._set_friction(env, handle, body["friction"])
            handles.append(handle)
        return handles

    def _set_friction(self, env: Any, handle: Any, friction: float) -> None:
        shapes = self._gym.get_actor_rigid_shape_properties(env, handle)
        for shape in shapes:
            shape.friction = friction
        self._gym.set_actor_rigid_shape_properties(env, handle, shapes)

    def _make_cameras(self, env: Any, robot: Any) -> List[Any]:
        gym, handles = self._gym, []
        _, height, width, _ = self._options["image"]
        for camera in self._options["cameras"]:
            properties = gymapi.CameraProperties()
            properties.width, properties.height = width, height
            # Degrees, and its vertical angle is the horizontal one times height over width.
            properties.horizontal_fov = camera["fovy_deg"] * width / height
            properties.near_plane = 0.01
            properties.enable_tensors = self._gpu
            handle = gym.create_camera_sensor(env, properties)
            pose = _pose(camera["pos"], times(np.array(camera["quat"]), FORWARD))
            if camera["body"] == "world":
                gym.set_camera_transform(handle, env, pose)
            else:
                body = gym.find_actor_rigid_body_handle(env, robot, camera["body"])
                gym.attach_camera_to_body(handle, env, body, pose, gymapi.FOLLOW_TRANSFORM)
            handles.append(handle)
        return handles

    # --- states ---------------------------------------------------------------------------------

    def _acquire_tensors(self) -> None:
        gym, sim = self._gym, self._sim
        self._dof_tensor = gymtorch.wrap_tensor(gym.acquire_dof_state_tensor(sim))
        self._root_tensor = gymtorch.wrap_tensor(gym.acquire_actor_root_state_tensor(sim))
        self._device = self._dof_tensor.device
        gym.refresh_actor_root_state_tensor(sim)
        self._indices = np.array(
            [[gym.get_actor_index(env, actor, gymapi.DOMAIN_SIM) for actor in actors]
             for env, actors in zip(self._envs, self._actors)], np.int32,
        )  # fmt: skip
        self._overran = np.zeros(self._worlds, bool)

    def write(self, rows: np.ndarray, arrays: Dict[str, np.ndarray], varied: Sequence[str]) -> None:
        """Store the state of worlds, and set their colours."""
        self._states.write(rows, arrays)
        if "geom_rgba" not in varied:
            return
        for row in rows:
            # Actor 0 is the arm, whose colours do not vary.
            for k, body in enumerate(self._bodies, 1):
                rgb = arrays["varied_geom_rgba"][row, body["geom"], :3]
                self._gym.set_rigid_body_color(
                    self._envs[row], self._actors[row][k], 0, gymapi.MESH_VISUAL,
                    gymapi.Vec3(*(float(part) for part in rgb)),
                )  # fmt: skip

    def _flush(self) -> None:
        """Send the writes since the last step of physics, in one call per tensor."""
        states, gym, sim = self._states, self._gym, self._sim
        if not states.dirty.any():
            return
        joints = np.stack([states.position, states.velocity], axis=-1)
        self._dof_tensor.copy_(self._tensor(joints.reshape(-1, 2).astype(np.float32)))
        arms = self._tensor(self._indices[states.dirty, 0])
        gym.set_dof_state_tensor_indexed(
            sim, gymtorch.unwrap_tensor(self._dof_tensor), gymtorch.unwrap_tensor(arms), len(arms)
        )
        moved = self._indices[states.dirty][:, [k + 1 for k in states.movable]].reshape(-1)
        if len(moved):
            roots = self._root_tensor.cpu().numpy().reshape(self._worlds, -1, 13).copy()
            roots[:, 1:] = states.root
            roots[:, 1:, 3:7] = to_xyzw(states.root[..., 3:7])
            self._root_tensor.copy_(self._tensor(roots.reshape(-1, 13)))
            which = self._tensor(moved)
            gym.set_actor_root_state_tensor_indexed(
                sim, gymtorch.unwrap_tensor(self._root_tensor), gymtorch.unwrap_tensor(which),
                len(moved),
            )  # fmt: skip
        states.dirty[:] = False

    def step(self, arrays: Dict[str, np.ndarray], substeps: int, active: np.ndarray) -> None:
        """Hold position targets for some steps; worlds that are not active are restored."""
        states, gym, sim = self._states, self._gym, self._sim
        states.set_targets(arrays["ctrl"])
        self._flush()
        held = self._tensor(states.target.reshape(-1).astype(np.float32))
        gym.set_dof_position_target_tensor(sim, gymtorch.unwrap_tensor(held))
        for _ in range(substeps):
            self._simulate()
        gym.refresh_dof_state_tensor(sim)
        gym.refresh_actor_root_state_tensor(sim)
        joints = self._dof_tensor.cpu().numpy().reshape(self._worlds, -1, 2)
        roots = self._root_tensor.cpu().numpy().reshape(self._worlds, -1, 13)[:, 1:]
        roots = roots.astype(np.float64)
        roots[..., 3:7] = to_wxyz(roots[..., 3:7])
        states.update(active, joints[..., 0], joints[..., 1], roots)

    def _simulate(self) -> None:
        self._gym.simulate(self._sim)
        # The GPU's results are fetched where they are used.
        if not self._gpu:
            self._gym.fetch_results(self._sim, True)

    def read_state(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Write the state of all worlds to arrays in MuJoCo's layout."""
        self._states.read_state(qpos, qvel)

    def overran(self) -> np.ndarray:
        """Return no world: PhysX does not report overflows."""
        return self._overran

    def render(self, rows: np.ndarray, images: np.ndarray) -> None:
        """Write images of some worlds."""
        gym, sim = self._gym, self._sim
        if self._states.dirty.any():
            # Writes show only after physics: one step, which the next write undoes.
            self._flush()
            self._simulate()
            self._states.dirty[:] = True
        gym.fetch_results(sim, True)
        gym.step_graphics(sim)
        gym.render_all_camera_sensors(sim)
        read = gym.get_camera_image_gpu_tensor if self._gpu else gym.get_camera_image
        if self._gpu:
            gym.start_access_image_tensors(sim)
        for row in rows:
            for view, camera in enumerate(self._cameras[row]):
                image = read(sim, self._envs[row], camera, gymapi.IMAGE_COLOR)
                if self._gpu:
                    image = gymtorch.wrap_tensor(image).cpu().numpy()
                images[row, view] = np.reshape(image, (*images.shape[2:4], 4))[..., :3]
        if self._gpu:
            gym.end_access_image_tensors(sim)

    def _tensor(self, values: np.ndarray) -> Any:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def close(self) -> None:
        """Destroy the sim."""
        self._gym.destroy_sim(self._sim)


def _pose(pos: Sequence[float], quat: Sequence[float]) -> Any:
    """Return a transform from a position and a quaternion, wxyz."""
    pose = gymapi.Transform()
    pose.p = gymapi.Vec3(*(float(part) for part in pos))
    pose.r = gymapi.Quat(*(float(part) for part in to_xyzw(np.asarray(quat))))
    return pose
