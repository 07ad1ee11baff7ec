"""Isaac Gym Preview 4 as an engine, through `gymapi` and `gymtorch`: one sim, one actor per thing.

The tensor interface takes one write per tensor between two steps of physics, so writes are kept
here and go over once, before physics. Joints that follow others are driven to where those are to
go: its importer knows no such constraint. Everything there is xyzw and in the frame of its
environment.
"""

import importlib
import os
from typing import Any, Dict, List, Sequence

import numpy as np
from _engine import EngineHost, drives, times, to_wxyz, to_xyzw
from _parts import Standing, arm, volume_m3
from isaacgym import gymapi, gymtorch  # before torch, or it refuses to load

# That of its own interpreter: nothing of ours depends on it.
torch = importlib.import_module("torch")

SPACING_M = 5.0
"""Half the width of an environment."""
ARM_BITS, FIXED_BITS, ALL_BITS = 1, 2, 0x7FFFFFFF
"""Two things touch unless their filters share a bit."""
FORWARD = np.array([0.5, -0.5, 0.5, 0.5])
"""Turns a camera that looks along its -z with y up (wxyz) into one along x with z up, as here."""
_opened: List[bool] = []


def open_host(options: Dict[str, Any]) -> EngineHost:
    """Return the host of a scene.

    Args:
        options: Those of `sim.engines.describe_scene`, "device" and "draws".

    Raises:
        ValueError: it has a sim already, or cannot hold the scene.
    """
    if _opened:
        raise ValueError("isaac_gym: this process has a sim already, and it can hold one")
    _opened.append(True)
    return EngineHost(options, IsaacGym(options))


class IsaacGym:
    """A sim with all worlds, and a copy of where they stand on this side."""

    varies = frozenset(("geom_rgba",))

    def __init__(self, options: Dict[str, Any]) -> None:
        """Make the sim, its assets and its actors."""
        self._options = options
        self._worlds = options["worlds"]
        self.draws = bool(options["draws"])
        self._gpu = options["device"] != "cpu"
        self._arm = arm(options)
        self._gym = gymapi.acquire_gym()
        number = int(options["device"].split(":")[1]) if ":" in options["device"] else 0
        # Without a graphics device there are no pictures, even off screen.
        graphics = number if self.draws else -1
        self._sim = self._gym.create_sim(number, graphics, gymapi.SIM_PHYSX, self._parameters())
        if self._sim is None:
            raise ValueError("isaac_gym: create_sim failed; what it printed says why")
        self._envs: List[Any] = []
        self._actors: List[List[Any]] = []
        self._cameras: List[List[Any]] = []
        self._fill()
        self._gym.prepare_sim(self._sim)
        self._take_tensors()

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
        self._standing = Standing(self._options, list(gym.get_asset_dof_names(robot)))
        self._bodies = self._standing.bodies
        assets = [self._asset(body) for body in self._bodies]
        per_row = int(np.ceil(np.sqrt(self._worlds)))
        for i in range(self._worlds):
            low = gymapi.Vec3(-SPACING_M, -SPACING_M, 0.0)
            high = gymapi.Vec3(SPACING_M, SPACING_M, SPACING_M)
            env = gym.create_env(sim, low, high, per_row)
            self._envs.append(env)
            self._actors.append(self._people(env, i, robot, assets))
            self._cameras.append(self._eyes(env, self._actors[-1][0]) if self.draws else [])

    def _asset(self, body: Dict[str, Any]) -> Any:
        options = gymapi.AssetOptions()
        options.density = body["mass"] / volume_m3(body)
        options.fix_base_link = body["kind"] == "fixed"
        # A mark hangs where it is put: it may move, but nothing moves it.
        options.disable_gravity = body["kind"] != "free"
        x, y, z = (2.0 * size for size in body["size"])
        if body["shape"] == "box":
            return self._gym.create_box(self._sim, x, y, z, options)
        if body["shape"] == "sphere":
            return self._gym.create_sphere(self._sim, body["size"][0], options)
        if not body["touches"]:
            # It has no cylinders; a flat disc that is only seen is nearly a box.
            return self._gym.create_box(self._sim, x, x, y, options)
        raise ValueError(
            "geom of {!r}: got a cylinder that can be touched, expected a box or a sphere: Isaac "
            "Gym has no other simple shapes".format(body["name"])
        )

    def _people(self, env: Any, i: int, robot: Any, assets: List[Any]) -> List[Any]:
        """Put the arm and everything else into an environment; return their handles."""
        gym = self._gym
        pose = _pose(self._arm["pos"], self._arm["quat"])
        handles = [gym.create_actor(env, robot, pose, "arm", i, ARM_BITS, 0)]
        properties = gym.get_asset_dof_properties(robot)
        driven = drives(self._options)
        for k, joint in enumerate(self._standing.joints):
            drive = driven.get(joint["name"], {})
            properties["driveMode"][k] = gymapi.DOF_MODE_POS
            properties["stiffness"][k] = drive.get("stiffness", 0.0)
            properties["damping"][k] = drive.get("damping", joint["damping"])
            properties["effort"][k] = drive.get("force", 0.0)
            properties["armature"][k] = joint["armature"]
        gym.set_actor_dof_properties(env, handles[0], properties)
        self._rub(env, handles[0], max(
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
            self._rub(env, handle, body["friction"])
            handles.append(handle)
        return handles

    def _rub(self, env: Any, handle: Any, friction: float) -> None:
        shapes = self._gym.get_actor_rigid_shape_properties(env, handle)
        for shape in shapes:
            shape.friction = friction
        self._gym.set_actor_rigid_shape_properties(env, handle, shapes)

    def _eyes(self, env: Any, robot: Any) -> List[Any]:
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

    # --- where things stand ---------------------------------------------------------------------

    def _take_tensors(self) -> None:
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
        """Take note of where worlds are to stand, and paint them."""
        self._standing.write(rows, arrays)
        if "geom_rgba" not in varied:
            return
        for row in rows:
            # Actor 0 is the arm, which keeps its colours.
            for k, body in enumerate(self._bodies, 1):
                rgb = arrays["varied_geom_rgba"][row, body["geom"], :3]
                self._gym.set_rigid_body_color(
                    self._envs[row], self._actors[row][k], 0, gymapi.MESH_VISUAL,
                    gymapi.Vec3(*(float(part) for part in rgb)),
                )  # fmt: skip

    def _flush(self) -> None:
        """Hand over what was written since physics went on last, in one call per tensor."""
        standing, gym, sim = self._standing, self._gym, self._sim
        if not standing.dirty.any():
            return
        joints = np.stack([standing.position, standing.velocity], axis=-1)
        self._dof_tensor.copy_(self._tensor(joints.reshape(-1, 2).astype(np.float32)))
        arms = self._tensor(self._indices[standing.dirty, 0])
        gym.set_dof_state_tensor_indexed(
            sim, gymtorch.unwrap_tensor(self._dof_tensor), gymtorch.unwrap_tensor(arms), len(arms)
        )
        moved = self._indices[standing.dirty][:, [k + 1 for k in standing.movable]].reshape(-1)
        if len(moved):
            roots = self._root_tensor.cpu().numpy().reshape(self._worlds, -1, 13).copy()
            roots[:, 1:] = standing.root
            roots[:, 1:, 3:7] = to_xyzw(standing.root[..., 3:7])
            self._root_tensor.copy_(self._tensor(roots.reshape(-1, 13)))
            which = self._tensor(moved)
            gym.set_actor_root_state_tensor_indexed(
                sim, gymtorch.unwrap_tensor(self._root_tensor), gymtorch.unwrap_tensor(which),
                len(moved),
            )  # fmt: skip
        standing.dirty[:] = False

    def step(self, arrays: Dict[str, np.ndarray], substeps: int, active: np.ndarray) -> None:
        """Hold position targets for some steps; worlds that are not active are put back after."""
        standing, gym, sim = self._standing, self._gym, self._sim
        standing.aim(arrays["ctrl"])
        self._flush()
        held = self._tensor(standing.target.reshape(-1).astype(np.float32))
        gym.set_dof_position_target_tensor(sim, gymtorch.unwrap_tensor(held))
        for _ in range(substeps):
            self._simulate()
        gym.refresh_dof_state_tensor(sim)
        gym.refresh_actor_root_state_tensor(sim)
        joints = self._dof_tensor.cpu().numpy().reshape(self._worlds, -1, 2)
        roots = self._root_tensor.cpu().numpy().reshape(self._worlds, -1, 13)[:, 1:]
        roots = roots.astype(np.float64)
        roots[..., 3:7] = to_wxyz(roots[..., 3:7])
        standing.take(active, joints[..., 0], joints[..., 1], roots)

    def _simulate(self) -> None:
        self._gym.simulate(self._sim)
        # The GPU's results are waited for where they are used.
        if not self._gpu:
            self._gym.fetch_results(self._sim, True)

    def read_(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Write where all worlds stand into arrays of MuJoCo's layout."""
        self._standing.read_(qpos, qvel)

    def overran(self) -> np.ndarray:
        """Return which worlds ran out of room: PhysX tells nobody, so none."""
        return self._overran

    def render_(self, rows: np.ndarray, images: np.ndarray) -> None:
        """Write pictures of some worlds."""
        gym, sim = self._gym, self._sim
        if self._standing.dirty.any():
            # What was written shows only after physics: one step of it, undone before the next.
            self._flush()
            self._simulate()
            self._standing.dirty[:] = True
        gym.fetch_results(sim, True)
        gym.step_graphics(sim)
        gym.render_all_camera_sensors(sim)
        if not self._gpu:
            self._copy_(rows, images)
            return
        gym.start_access_image_tensors(sim)
        for row in rows:
            for view, camera in enumerate(self._cameras[row]):
                picture = gymtorch.wrap_tensor(gym.get_camera_image_gpu_tensor(
                    sim, self._envs[row], camera, gymapi.IMAGE_COLOR
                ))  # fmt: skip
                images[row, view] = picture.cpu().numpy()[..., :3]
        gym.end_access_image_tensors(sim)

    def _copy_(self, rows: np.ndarray, images: np.ndarray) -> None:
        height, width = images.shape[2:4]
        for row in rows:
            for view, camera in enumerate(self._cameras[row]):
                flat = self._gym.get_camera_image(
                    self._sim, self._envs[row], camera, gymapi.IMAGE_COLOR
                )
                images[row, view] = np.reshape(flat, (height, width, 4))[..., :3]

    def _tensor(self, values: np.ndarray) -> Any:
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._device)

    def close(self) -> None:
        """Take the sim down."""
        self._gym.destroy_sim(self._sim)


def _pose(pos: Sequence[float], quat: Sequence[float]) -> Any:
    """Return a transform from a position and a quaternion, wxyz."""
    pose = gymapi.Transform()
    pose.p = gymapi.Vec3(*(float(part) for part in pos))
    pose.r = gymapi.Quat(*(float(part) for part in to_xyzw(np.asarray(quat))))
    return pose
