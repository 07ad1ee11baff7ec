"""Isaac Lab as an engine, 2.3 and 3.x: our scene in its InteractiveScene, stepped by us.

`sim.engines.batch` resets, so no terminal observation is lost. The releases differ in the order of
quaternions (wxyz, then xyzw), the type of data (tensors, then arrays with `.torch`) and the methods
that write (`write_..._to_sim`, then `write_..._to_sim_index`). Nothing of the simulator may be
imported before its app runs.
"""

import importlib
import sys
from typing import Any, Dict, List, Sequence

import numpy as np
from _engine import EngineAdapter, drives, times, to_wxyz, to_xyzw, turn
from _parts import WorldStates, arm
from isaaclab.app import AppLauncher

SPACING_M = 5.0
"""Distance between worlds."""
FOCAL_MM = 24.0
FRAMES = 2
"""Frames per image: the ray tracer shows writes one frame late."""
IMPORTED = ("geom_rgba", "cam_pos", "cam_quat")
_opened: List[bool] = []


def open_adapter(options: Dict[str, Any]) -> EngineAdapter:
    """Return the adapter of a scene.

    Args:
        options: Those of `sim.engines.describe_scene`, "device" and "draws".

    Raises:
        ValueError: it has an app already, or cannot hold the scene.
    """
    if _opened:
        raise ValueError("isaac_lab: this process already has an app, and it can hold only one")
    arm(options)
    _opened.append(True)
    # The app reads the command line.
    del sys.argv[1:]
    AppLauncher(headless=True, enable_cameras=bool(options["draws"]), device=options["device"])
    return EngineAdapter(options, IsaacLab(options))


class Release2:
    """Interface of releases 2.x."""

    ids_dtype = "int64"
    arm_file = {"fix_base": True}

    def __init__(self, sim_utils: Any, sensors: Any) -> None:
        self.Rigid = sim_utils.RigidBodyPropertiesCfg
        self.Collision = sim_utils.CollisionPropertiesCfg
        self.Camera = sensors.TiledCameraCfg

    def encode_quat(self, quat: np.ndarray) -> np.ndarray:
        """Return quaternions in its order from wxyz."""
        return quat

    def decode_quat(self, quat: np.ndarray) -> np.ndarray:
        """Return quaternions wxyz from its order."""
        return quat

    def write_joints(self, asset: Any, position: Any, velocity: Any, ids: Any) -> None:
        """Write joints of some worlds."""
        asset.write_joint_state_to_sim(position, velocity, env_ids=ids)

    def write_root(self, asset: Any, pose: Any, velocity: Any, ids: Any) -> None:
        """Write pose, and velocity unless None, of a body in some worlds."""
        asset.write_root_pose_to_sim(pose, env_ids=ids)
        if velocity is not None:
            asset.write_root_velocity_to_sim(velocity, env_ids=ids)

    def aim(self, asset: Any, target: Any) -> None:
        """Set position targets of all worlds."""
        asset.set_joint_position_target(target)


class Release3:
    """Interface of releases 3.x."""

    ids_dtype = "int32"
    arm_file: Dict[str, Any] = {}
    """A file without a free joint is fixed."""

    def __init__(self, sim_utils: Any, sensors: Any) -> None:
        self.Rigid = sim_utils.PhysxRigidBodyPropertiesCfg
        self.Collision = sim_utils.CollisionBaseCfg
        self.Camera = sensors.CameraCfg

    def encode_quat(self, quat: np.ndarray) -> np.ndarray:
        """Return quaternions in its order from wxyz."""
        return to_xyzw(quat)

    def decode_quat(self, quat: np.ndarray) -> np.ndarray:
        """Return quaternions wxyz from its order."""
        return to_wxyz(quat)

    def write_joints(self, asset: Any, position: Any, velocity: Any, ids: Any) -> None:
        """Write joints of some worlds."""
        asset.write_joint_position_to_sim_index(position=position, env_ids=ids)
        asset.write_joint_velocity_to_sim_index(velocity=velocity, env_ids=ids)

    def write_root(self, asset: Any, pose: Any, velocity: Any, ids: Any) -> None:
        """Write pose, and velocity unless None, of a body in some worlds."""
        asset.write_root_pose_to_sim_index(root_pose=pose, env_ids=ids)
        if velocity is not None:
            asset.write_root_velocity_to_sim_index(root_velocity=velocity, env_ids=ids)

    def aim(self, asset: Any, target: Any) -> None:
        """Set position targets of all worlds."""
        asset.set_joint_position_target_index(target=target)


class IsaacLab:
    """A simulation context, a scene with all worlds, and a copy of their state."""

    def __init__(self, options: Dict[str, Any]) -> None:
        """Make simulation and scene; the app runs already."""
        import isaaclab.sim as sim_utils
        from isaaclab import actuators, assets, scene, sensors

        third = hasattr(assets.RigidObject, "write_root_pose_to_sim_index")
        self._release: Any = (Release3 if third else Release2)(sim_utils, sensors)
        self._options = options
        self._worlds = options["worlds"]
        self.draws = bool(options["draws"])
        self.varies = frozenset(IMPORTED) if self.draws else frozenset()
        self._sim_utils = sim_utils
        self._sim = sim_utils.SimulationContext(
            sim_utils.SimulationCfg(
                dt=options["timestep_s"], device=options["device"],
                gravity=tuple(options["gravity"]),
            )
        )  # fmt: skip
        cfg = scene.InteractiveSceneCfg(
            num_envs=self._worlds, env_spacing=SPACING_M, replicate_physics=True
        )
        # The simulator's order of joints is known only after the import.
        bodies = WorldStates(options, [j["name"] for j in options["joints"] if j["type"] != "free"])
        cfg.arm = self._arm(assets, actuators)
        cfg.light = assets.AssetBaseCfg(
            prim_path="/World/light", spawn=sim_utils.DomeLightCfg(intensity=2000.0)
        )
        for k, body in enumerate(bodies.bodies):
            setattr(cfg, "body_%d" % k, self._object(assets, k, body))
        if self.draws:
            for view, camera in enumerate(options["cameras"]):
                setattr(cfg, "camera_%d" % view, self._camera(view, camera))
        self._scene = scene.InteractiveScene(cfg)
        self._sim.reset()
        self._arm_asset = self._scene["arm"]
        self._states = WorldStates(options, list(self._arm_asset.joint_names))
        self._origins = self._scene.env_origins.cpu().numpy().astype(np.float64)
        count = len(options["cameras"])
        self._camera_pos = np.zeros((self._worlds, count, 3)) + [
            c["pos"] for c in options["cameras"]
        ]
        self._camera_quat = np.zeros((self._worlds, count, 4)) + [
            c["quat"] for c in options["cameras"]
        ]

    # --- the scene ------------------------------------------------------------------------------

    def _arm(self, assets: Any, actuators: Any) -> Any:
        part, driven = arm(self._options), drives(self._options)
        utils, encode = self._sim_utils, self._release.encode_quat
        return assets.ArticulationCfg(
            prim_path="{ENV_REGEX_NS}/arm",
            spawn=utils.MjcfFileCfg(
                asset_path=part["file"],
                self_collision=False,
                rigid_props=self._release.Rigid(disable_gravity=True),
                articulation_props=utils.ArticulationRootPropertiesCfg(
                    enabled_self_collisions=False, fix_root_link=True
                ),
                **self._release.arm_file,
            ),
            init_state=assets.ArticulationCfg.InitialStateCfg(
                pos=tuple(part["pos"]), rot=tuple(encode(np.array(part["quat"])).tolist())
            ),
            actuators={
                "all": actuators.ImplicitActuatorCfg(
                    joint_names_expr=list(driven),
                    stiffness={name: drive["stiffness"] for name, drive in driven.items()},
                    damping={name: drive["damping"] for name, drive in driven.items()},
                    effort_limit_sim={name: drive["force"] for name, drive in driven.items()},
                    armature={name: drive["armature"] for name, drive in driven.items()},
                )
            },
        )

    def _object(self, assets: Any, k: int, body: Dict[str, Any]) -> Any:
        utils, size = self._sim_utils, body["size"]
        common = {
            "collision_props": self._release.Collision(collision_enabled=body["touches"]),
            "visual_material": utils.PreviewSurfaceCfg(diffuse_color=tuple(body["rgba"][:3])),
            "physics_material": utils.RigidBodyMaterialCfg(
                static_friction=body["friction"], dynamic_friction=body["friction"]
            ),
        }
        if body["kind"] != "fixed":
            mark = body["kind"] == "mark"
            common["rigid_props"] = self._release.Rigid(kinematic_enabled=mark)
            common["mass_props"] = utils.MassPropertiesCfg(mass=body["mass"])
        if body["shape"] == "box":
            spawn = utils.CuboidCfg(size=tuple(2.0 * part for part in size), **common)
        elif body["shape"] == "sphere":
            spawn = utils.SphereCfg(radius=size[0], **common)
        else:
            spawn = utils.CylinderCfg(radius=size[0], height=2.0 * size[1], **common)
        kind = assets.AssetBaseCfg if body["kind"] == "fixed" else assets.RigidObjectCfg
        rot = self._release.encode_quat(np.array(body["quat"])).tolist()
        return kind(
            prim_path="{ENV_REGEX_NS}/body_%d" % k,
            spawn=spawn,
            init_state=kind.InitialStateCfg(pos=tuple(body["pos"]), rot=tuple(rot)),
        )

    def _camera(self, view: int, camera: Dict[str, Any]) -> Any:
        _, height, width, _ = self._options["image"]
        across = np.tan(np.radians(camera["fovy_deg"]) / 2.0) * width / height
        return self._release.Camera(
            prim_path="{ENV_REGEX_NS}/camera_%d" % view,
            data_types=["rgb"],
            width=width,
            height=height,
            spawn=self._sim_utils.PinholeCameraCfg(
                focal_length=FOCAL_MM,
                horizontal_aperture=float(2.0 * FOCAL_MM * across),
                clipping_range=(0.01, 100.0),
            ),
        )

    # --- states ---------------------------------------------------------------------------------

    def write(self, rows: np.ndarray, arrays: Dict[str, np.ndarray], varied: Sequence[str]) -> None:
        """Store the state of worlds; set their colours and camera poses."""
        self._states.write(rows, arrays)
        ids = [camera["id"] for camera in self._options["cameras"]]
        if "cam_pos" in varied:
            self._camera_pos[rows] = arrays["varied_cam_pos"][rows][:, ids]
        if "cam_quat" in varied:
            self._camera_quat[rows] = arrays["varied_cam_quat"][rows][:, ids]
        if "geom_rgba" in varied:
            for row in rows:
                self._paint(row, arrays["varied_geom_rgba"][row])

    def _paint(self, row: int, rgba: np.ndarray) -> None:
        from pxr import Gf

        stage = self._sim_utils.get_current_stage()
        for k, body in enumerate(self._states.bodies):
            path = "/World/envs/env_%d/body_%d/geometry/material/Shader" % (row, k)
            colour = Gf.Vec3f(*(float(part) for part in rgba[body["geom"], :3]))
            stage.GetPrimAtPath(path).GetAttribute("inputs:diffuseColor").Set(colour)

    def _flush(self) -> None:
        """Send the writes since the last step of physics."""
        states = self._states
        rows = np.flatnonzero(states.dirty)
        if not len(rows):
            return
        ids = self._tensor(rows.astype(self._release.ids_dtype))
        self._release.write_joints(
            self._arm_asset, self._floats(states.position[rows]),
            self._floats(states.velocity[rows]), ids,
        )  # fmt: skip
        for k in states.movable:
            root = states.root[rows, k]
            pose = np.concatenate(
                [root[:, :3] + self._origins[rows], self._release.encode_quat(root[:, 3:7])], axis=1
            )
            asset = self._scene["body_%d" % k]
            # A kinematic body has no velocity to set.
            free = states.bodies[k]["kind"] == "free"
            speed = self._floats(root[:, 7:]) if free else None
            self._release.write_root(asset, self._floats(pose), speed, ids)
        states.dirty[:] = False

    def step(self, arrays: Dict[str, np.ndarray], substeps: int, active: np.ndarray) -> None:
        """Hold position targets for some steps; worlds that are not active are restored."""
        states = self._states
        states.set_targets(arrays["ctrl"])
        self._flush()
        self._release.aim(self._arm_asset, self._floats(states.target))
        for _ in range(substeps):
            self._scene.write_data_to_sim()
            self._sim.step(render=False)
            self._scene.update(self._options["timestep_s"])
        root = states.root.copy()
        for k in states.movable:
            if states.bodies[k]["kind"] == "free":
                data = self._scene["body_%d" % k].data
                pose, speed = _numpy(data.root_link_pose_w), _numpy(data.root_link_vel_w)
                root[:, k, :3] = pose[:, :3] - self._origins
                root[:, k, 3:7] = self._release.decode_quat(pose[:, 3:7])
                root[:, k, 7:] = speed
        data = self._arm_asset.data
        states.update(active, _numpy(data.joint_pos), _numpy(data.joint_vel), root)

    def read_state(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Write the state of all worlds to arrays in MuJoCo's layout."""
        self._states.read_state(qpos, qvel)

    def overran(self) -> np.ndarray:
        """Return no world: PhysX does not report overflows."""
        return np.zeros(self._worlds, bool)

    def render(self, rows: np.ndarray, images: np.ndarray) -> None:
        """Write images of some worlds."""
        self._flush()
        self._sim.forward()
        self._place_cameras()
        for _ in range(FRAMES):
            self._sim.render()
        for view in range(len(self._options["cameras"])):
            camera = self._scene["camera_%d" % view]
            camera.update(0.0, force_recompute=True)
            image = _numpy(camera.data.output["rgb"])
            images[rows, view] = image[rows][..., :3]

    def _place_cameras(self) -> None:
        """Set the poses of cameras; those on the arm move with it."""
        poses = _numpy(self._arm_asset.data.body_link_pose_w).astype(np.float64)
        names = list(self._arm_asset.body_names)
        for view, camera in enumerate(self._options["cameras"]):
            pos, quat = self._camera_pos[:, view], self._camera_quat[:, view]
            if camera["body"] == "world":
                pos = pos + self._origins
            else:
                carrier = poses[:, names.index(camera["body"])]
                turned = self._release.decode_quat(carrier[:, 3:])
                pos, quat = carrier[:, :3] + turn(turned, pos), times(turned, quat)
            self._scene["camera_%d" % view].set_world_poses(
                self._floats(pos),
                self._floats(self._release.encode_quat(quat)),
                convention="opengl",
            )

    def _floats(self, values: np.ndarray) -> Any:
        return self._tensor(np.asarray(values, np.float32))

    def _tensor(self, values: np.ndarray) -> Any:
        # The torch of this interpreter; the project does not depend on it.
        torch = importlib.import_module("torch")
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._options["device"])

    def close(self) -> None:
        """Clear the simulation; closing the app would end the process."""
        self._sim.clear_instance()


def _numpy(data: Any) -> np.ndarray:
    """Return data of either release as numpy: a tensor, or an array with `.torch`."""
    return np.asarray(getattr(data, "torch", data).cpu().numpy())
