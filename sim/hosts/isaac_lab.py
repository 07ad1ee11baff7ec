"""Isaac Lab as an engine, 2.3 and 3.x: our scene in its InteractiveScene, stepped by us.

Episodes and resets are ours, so no terminal observation is lost. Between the releases differ the
order of quaternions (wxyz, then xyzw), what data are (tensors, then arrays with `.torch`) and how
things are written (`write_..._to_sim`, then `write_..._to_sim_index`). Nothing of the simulator may
be imported before its app runs.
"""

import importlib
import sys
from typing import Any, Dict, List, Sequence

import numpy as np
from _engine import EngineHost, drives, times, to_wxyz, to_xyzw, turn
from _parts import Standing, arm
from isaaclab.app import AppLauncher

SPACING_M = 5.0
"""From world to world."""
FOCAL_MM = 24.0
FRAMES = 2
"""Frames drawn for a picture: the ray tracer shows what was written one frame late."""
IMPORTED = ("geom_rgba", "cam_pos", "cam_quat")
_opened: List[bool] = []


def open_host(options: Dict[str, Any]) -> EngineHost:
    """Return the host of a scene.

    Args:
        options: Those of `sim.engines.describe_scene`, "device" and "draws".

    Raises:
        ValueError: it has an app already, or cannot hold the scene.
    """
    if _opened:
        raise ValueError("isaac_lab: this process has an app already, and it can hold one")
    arm(options)
    _opened.append(True)
    # The app reads the command line, and ours says nothing that it knows.
    del sys.argv[1:]
    AppLauncher(headless=True, enable_cameras=bool(options["draws"]), device=options["device"])
    return EngineHost(options, IsaacLab(options))


class Second:
    """How releases 2.x are spoken to."""

    ids_dtype = "int64"
    arm_file = {"fix_base": True}

    def __init__(self, sim_utils: Any, sensors: Any) -> None:
        """Take the names that differ."""
        self.Rigid = sim_utils.RigidBodyPropertiesCfg
        self.Collision = sim_utils.CollisionPropertiesCfg
        self.Camera = sensors.TiledCameraCfg

    def out(self, quat: np.ndarray) -> np.ndarray:
        """Return quaternions in its order from wxyz."""
        return quat

    def back(self, quat: np.ndarray) -> np.ndarray:
        """Return quaternions wxyz from its order."""
        return quat

    def write_joints(self, asset: Any, position: Any, velocity: Any, ids: Any) -> None:
        """Write joints of some worlds."""
        asset.write_joint_state_to_sim(position, velocity, env_ids=ids)

    def write_root(self, asset: Any, pose: Any, velocity: Any, ids: Any) -> None:
        """Write where a thing is in some worlds, and how it moves unless that is None."""
        asset.write_root_pose_to_sim(pose, env_ids=ids)
        if velocity is not None:
            asset.write_root_velocity_to_sim(velocity, env_ids=ids)

    def aim(self, asset: Any, target: Any) -> None:
        """Set position targets of all worlds."""
        asset.set_joint_position_target(target)


class Third:
    """How releases 3.x are spoken to."""

    ids_dtype = "int32"
    arm_file: Dict[str, Any] = {}
    """What has no free joint in its file is fixed."""

    def __init__(self, sim_utils: Any, sensors: Any) -> None:
        """Take the names that differ."""
        self.Rigid = sim_utils.PhysxRigidBodyPropertiesCfg
        self.Collision = sim_utils.CollisionBaseCfg
        self.Camera = sensors.CameraCfg

    def out(self, quat: np.ndarray) -> np.ndarray:
        """Return quaternions in its order from wxyz."""
        return to_xyzw(quat)

    def back(self, quat: np.ndarray) -> np.ndarray:
        """Return quaternions wxyz from its order."""
        return to_wxyz(quat)

    def write_joints(self, asset: Any, position: Any, velocity: Any, ids: Any) -> None:
        """Write joints of some worlds."""
        asset.write_joint_position_to_sim_index(position=position, env_ids=ids)
        asset.write_joint_velocity_to_sim_index(velocity=velocity, env_ids=ids)

    def write_root(self, asset: Any, pose: Any, velocity: Any, ids: Any) -> None:
        """Write where a thing is in some worlds, and how it moves unless that is None."""
        asset.write_root_pose_to_sim_index(root_pose=pose, env_ids=ids)
        if velocity is not None:
            asset.write_root_velocity_to_sim_index(root_velocity=velocity, env_ids=ids)

    def aim(self, asset: Any, target: Any) -> None:
        """Set position targets of all worlds."""
        asset.set_joint_position_target_index(target=target)


class IsaacLab:
    """A simulation context, a scene with all worlds, and a copy of where they stand here."""

    def __init__(self, options: Dict[str, Any]) -> None:
        """Make simulation and scene; the app runs already."""
        import isaaclab.sim as sim_utils
        from isaaclab import actuators, assets, scene, sensors

        third = hasattr(assets.RigidObject, "write_root_pose_to_sim_index")
        self._release: Any = (Third if third else Second)(sim_utils, sensors)
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
        # The standing of things needs the arm's joints, which are known once it is imported.
        things = Standing(options, [j["name"] for j in options["joints"] if j["type"] != "free"])
        cfg.arm = self._arm(assets, actuators)
        cfg.light = assets.AssetBaseCfg(
            prim_path="/World/light", spawn=sim_utils.DomeLightCfg(intensity=2000.0)
        )
        for k, body in enumerate(things.bodies):
            setattr(cfg, "body_%d" % k, self._thing(assets, k, body))
        if self.draws:
            for view, camera in enumerate(options["cameras"]):
                setattr(cfg, "camera_%d" % view, self._eye(view, camera))
        self._scene = scene.InteractiveScene(cfg)
        self._sim.reset()
        self._arm_asset = self._scene["arm"]
        self._standing = Standing(options, list(self._arm_asset.joint_names))
        self._origins = self._scene.env_origins.cpu().numpy().astype(np.float64)
        count = len(options["cameras"])
        self._eye_pos = np.zeros((self._worlds, count, 3)) + [c["pos"] for c in options["cameras"]]
        self._eye_quat = np.zeros((self._worlds, count, 4)) + [
            c["quat"] for c in options["cameras"]
        ]

    # --- the scene ------------------------------------------------------------------------------

    def _arm(self, assets: Any, actuators: Any) -> Any:
        part, driven = arm(self._options), drives(self._options)
        utils, out = self._sim_utils, self._release.out
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
                pos=tuple(part["pos"]), rot=tuple(out(np.array(part["quat"])).tolist())
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

    def _thing(self, assets: Any, k: int, body: Dict[str, Any]) -> Any:
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
        rot = self._release.out(np.array(body["quat"])).tolist()
        return kind(
            prim_path="{ENV_REGEX_NS}/body_%d" % k,
            spawn=spawn,
            init_state=kind.InitialStateCfg(pos=tuple(body["pos"]), rot=tuple(rot)),
        )

    def _eye(self, view: int, camera: Dict[str, Any]) -> Any:
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

    # --- where things stand ---------------------------------------------------------------------

    def write(self, rows: np.ndarray, arrays: Dict[str, np.ndarray], varied: Sequence[str]) -> None:
        """Take note of where worlds are to stand; paint them and move their cameras."""
        self._standing.write(rows, arrays)
        ids = [camera["id"] for camera in self._options["cameras"]]
        if "cam_pos" in varied:
            self._eye_pos[rows] = arrays["varied_cam_pos"][rows][:, ids]
        if "cam_quat" in varied:
            self._eye_quat[rows] = arrays["varied_cam_quat"][rows][:, ids]
        if "geom_rgba" in varied:
            for row in rows:
                self._paint(row, arrays["varied_geom_rgba"][row])

    def _paint(self, row: int, rgba: np.ndarray) -> None:
        from pxr import Gf

        stage = self._sim_utils.get_current_stage()
        for k, body in enumerate(self._standing.bodies):
            path = "/World/envs/env_%d/body_%d/geometry/material/Shader" % (row, k)
            colour = Gf.Vec3f(*(float(part) for part in rgba[body["geom"], :3]))
            stage.GetPrimAtPath(path).GetAttribute("inputs:diffuseColor").Set(colour)

    def _flush(self) -> None:
        """Hand over what was written since physics went on last."""
        standing = self._standing
        rows = np.flatnonzero(standing.dirty)
        if not len(rows):
            return
        ids = self._tensor(rows.astype(self._release.ids_dtype))
        self._release.write_joints(
            self._arm_asset, self._floats(standing.position[rows]),
            self._floats(standing.velocity[rows]), ids,
        )  # fmt: skip
        for k in standing.movable:
            root = standing.root[rows, k]
            pose = np.concatenate(
                [root[:, :3] + self._origins[rows], self._release.out(root[:, 3:7])], axis=1
            )
            asset = self._scene["body_%d" % k]
            # What is moved by hand has no velocity to set.
            free = standing.bodies[k]["kind"] == "free"
            speed = self._floats(root[:, 7:]) if free else None
            self._release.write_root(asset, self._floats(pose), speed, ids)
        standing.dirty[:] = False

    def step(self, arrays: Dict[str, np.ndarray], substeps: int, active: np.ndarray) -> None:
        """Hold position targets for some steps; worlds that are not active are put back after."""
        standing = self._standing
        standing.aim(arrays["ctrl"])
        self._flush()
        self._release.aim(self._arm_asset, self._floats(standing.target))
        for _ in range(substeps):
            self._scene.write_data_to_sim()
            self._sim.step(render=False)
            self._scene.update(self._options["timestep_s"])
        root = standing.root.copy()
        for k in standing.movable:
            if standing.bodies[k]["kind"] == "free":
                data = self._scene["body_%d" % k].data
                pose, speed = _numpy(data.root_link_pose_w), _numpy(data.root_link_vel_w)
                root[:, k, :3] = pose[:, :3] - self._origins
                root[:, k, 3:7] = self._release.back(pose[:, 3:7])
                root[:, k, 7:] = speed
        data = self._arm_asset.data
        standing.take(active, _numpy(data.joint_pos), _numpy(data.joint_vel), root)

    def read_(self, qpos: np.ndarray, qvel: np.ndarray) -> None:
        """Write where all worlds stand into arrays of MuJoCo's layout."""
        self._standing.read_(qpos, qvel)

    def overran(self) -> np.ndarray:
        """Return which worlds ran out of room: PhysX tells nobody, so none."""
        return np.zeros(self._worlds, bool)

    def render_(self, rows: np.ndarray, images: np.ndarray) -> None:
        """Write pictures of some worlds."""
        self._flush()
        self._sim.forward()
        self._aim_eyes()
        for _ in range(FRAMES):
            self._sim.render()
        for view in range(len(self._options["cameras"])):
            camera = self._scene["camera_%d" % view]
            camera.update(0.0, force_recompute=True)
            picture = _numpy(camera.data.output["rgb"])
            images[rows, view] = picture[rows][..., :3]

    def _aim_eyes(self) -> None:
        """Put cameras where they are to be: those on the arm go with it."""
        poses = _numpy(self._arm_asset.data.body_link_pose_w).astype(np.float64)
        names = list(self._arm_asset.body_names)
        for view, camera in enumerate(self._options["cameras"]):
            pos, quat = self._eye_pos[:, view], self._eye_quat[:, view]
            if camera["body"] == "world":
                pos = pos + self._origins
            else:
                carrier = poses[:, names.index(camera["body"])]
                turned = self._release.back(carrier[:, 3:])
                pos, quat = carrier[:, :3] + turn(turned, pos), times(turned, quat)
            self._scene["camera_%d" % view].set_world_poses(
                self._floats(pos), self._floats(self._release.out(quat)), convention="opengl"
            )

    def _floats(self, values: np.ndarray) -> Any:
        return self._tensor(np.asarray(values, np.float32))

    def _tensor(self, values: np.ndarray) -> Any:
        # That of its own interpreter: nothing of ours depends on it.
        torch = importlib.import_module("torch")
        return torch.from_numpy(np.ascontiguousarray(values)).to(self._options["device"])

    def close(self) -> None:
        """Take the simulation down; the app ends with the process, and would end it early."""
        self._sim.clear_instance()


def _numpy(data: Any) -> np.ndarray:
    """Return data of either release: a tensor, or an array that has one."""
    return np.asarray(getattr(data, "torch", data).cpu().numpy())
