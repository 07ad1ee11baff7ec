"""The recorded part of `isaacgym.gymapi`, over plain MuJoCo; wrong use raises."""

import dataclasses
import sys
from typing import Any

import numpy as np
from stage_of_mujoco import Stage

if "torch" in sys.modules:
    raise ImportError("PyTorch was imported before isaacgym modules; import isaacgym first")

SIM_PHYSX, UP_AXIS_Z, DOF_MODE_POS, MESH_VISUAL = "SIM_PHYSX", "UP_AXIS_Z", 1, "MESH_VISUAL"
DOMAIN_SIM, IMAGE_COLOR, FOLLOW_TRANSFORM = "DOMAIN_SIM", "IMAGE_COLOR", "FOLLOW_TRANSFORM"
DOF_FIELDS = [("hasLimits", "?"), ("lower", "f4"), ("upper", "f4"), ("driveMode", "i4"),
              ("velocity", "f4"), ("effort", "f4"), ("stiffness", "f4"), ("damping", "f4"),
              ("friction", "f4"), ("armature", "f4")]  # fmt: skip


class Tensor:
    def __init__(self, held: Any) -> None:
        self.held = held


@dataclasses.dataclass
class Vec3:
    x: float = 0.0
    y: float = 0.0
    z: float = 0.0


@dataclasses.dataclass
class Quat:
    x: float = 0.0
    y: float = 0.0
    z: float = 0.0
    w: float = 1.0


class _Strict:
    """Has the attributes it was made with and no others."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not hasattr(type(self), name):
            raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")
        object.__setattr__(self, name, value)


class Transform(_Strict):
    p, r = Vec3(), Quat()


class PhysXParams(_Strict):
    use_gpu, solver_type = False, 0
    num_position_iterations, num_velocity_iterations = 4, 1
    contact_offset, rest_offset = 0.02, 0.01


class SimParams(_Strict):
    dt, substeps, up_axis, gravity, use_gpu_pipeline = 1 / 60, 2, "UP_AXIS_Y", Vec3(), False
    physx: Any = None

    def __init__(self) -> None:
        self.physx = PhysXParams()


class AssetOptions(_Strict):
    fix_base_link, disable_gravity, density = False, False, 1000.0
    default_dof_drive_mode = 0


class CameraProperties(_Strict):
    width, height, horizontal_fov, near_plane, enable_tensors = 1600, 900, 90.0, 0.001, False


class RigidShapeProperties(_Strict):
    friction = 1.0


@dataclasses.dataclass
class _Actor:
    asset: dict
    pose: Transform
    name: str
    bits: int
    friction: float = 1.0
    rgb: tuple[float, ...] = (0.5, 0.5, 0.5)


@dataclasses.dataclass
class _Env:
    index: int
    actors: list[_Actor] = dataclasses.field(default_factory=list)
    cameras: list[dict] = dataclasses.field(default_factory=list)


class _Sim:
    def __init__(self, params: SimParams) -> None:
        gravity = params.gravity
        if params.up_axis != UP_AXIS_Z or gravity.z >= 0.0:
            raise RuntimeError("create_sim: our scenes have z up")
        self.params = params
        self.stage = Stage(params.dt, (gravity.x, gravity.y, gravity.z))
        self.envs: list[_Env] = []
        self.prepared = False
        self.written: set[str] = set()
        self.reading = False


def _wxyz(quat: Quat) -> tuple[float, ...]:
    length = (quat.x**2 + quat.y**2 + quat.z**2 + quat.w**2) ** 0.5
    if abs(length - 1.0) > 1e-4:
        raise ValueError(f"quaternion: got length {length}, expected 1")
    return (quat.w, quat.x, quat.y, quat.z)


def _seen_by(pose: Transform) -> np.ndarray:
    """Return the orientation (wxyz) in MuJoCo's sense of a camera that looks along its x."""
    import mujoco

    turned = np.empty(9)
    mujoco.mju_quat2Mat(turned, np.array(_wxyz(pose.r)))
    forward, up = turned.reshape(3, 3)[:, 0], turned.reshape(3, 3)[:, 2]
    axes = np.stack([np.cross(up, -forward), up, -forward], axis=1)
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, axes.reshape(9))
    return quat


_sims: list[_Sim] = []


class Gym:
    # --- the scene --------------------------------------------------------------------------

    def create_sim(self, compute_device: int, graphics_device: int, type: Any, params: Any) -> Any:  # noqa: A002
        if _sims:
            raise RuntimeError("create_sim: a process holds one sim")
        if type != SIM_PHYSX:
            raise RuntimeError("create_sim: tensors need SIM_PHYSX")
        sim = _Sim(params)
        sim.draws = graphics_device >= 0
        _sims.append(sim)
        return sim

    def load_asset(self, sim: Any, rootpath: str, filename: str, options: Any) -> Any:
        file = f"{rootpath}/{filename}"
        # Not the order of the file: whoever relies on it is wrong.
        names = sim.stage.joint_names(file)[::-1]
        return {
            "file": file,
            "dofs": names,
            "options": options,
            "bodies": sim.stage.body_names(file),
        }

    def create_box(self, sim: Any, width: float, height: float, depth: float, options: Any) -> Any:
        size = (width / 2, height / 2, depth / 2)
        mass = options.density * width * height * depth
        return {"shape": "box", "size": size, "mass": mass, "options": options}

    def create_sphere(self, sim: Any, radius: float, options: Any) -> Any:
        mass = options.density * 4 / 3 * np.pi * radius**3
        return {"shape": "sphere", "size": (radius, 0, 0), "mass": mass, "options": options}

    def get_asset_dof_names(self, asset: Any) -> list[str]:
        return list(asset["dofs"])

    def get_asset_dof_properties(self, asset: Any) -> np.ndarray:
        return np.zeros(len(asset["dofs"]), DOF_FIELDS)

    def create_env(self, sim: Any, lower: Vec3, upper: Vec3, num_per_row: int) -> Any:
        sim.envs.append(_Env(len(sim.envs)))
        return sim.envs[-1]

    def create_actor(
        self, env: Any, asset: Any, pose: Any, name: str, group: int, filter: int, segmentation: int  # noqa: A002
    ) -> int:  # fmt: skip
        if group != env.index:
            raise ValueError(f"create_actor: group {group} of environment {env.index} meets others")
        env.actors.append(_Actor(asset, pose, name, filter))
        return len(env.actors) - 1

    def set_actor_dof_properties(self, env: Any, actor: int, props: np.ndarray) -> bool:
        env.actors[actor].asset["props"] = props.copy()
        return True

    def get_actor_rigid_shape_properties(self, env: Any, actor: int) -> list[Any]:
        return [RigidShapeProperties()]

    def set_actor_rigid_shape_properties(self, env: Any, actor: int, props: list[Any]) -> bool:
        env.actors[actor].friction = props[0].friction
        return True

    def set_rigid_body_color(self, env: Any, actor: int, body: int, mesh: Any, color: Vec3) -> None:
        if mesh != MESH_VISUAL or not isinstance(color, Vec3):
            raise TypeError("set_rigid_body_color: expected MESH_VISUAL and a Vec3")
        rgb = (color.x, color.y, color.z)
        env.actors[actor].rgb = rgb
        if _sims[0].prepared:
            _sims[0].stage.paint(env.index, env.actors[actor].name, rgb)

    def get_actor_index(self, env: Any, actor: int, domain: Any) -> int:
        assert domain == DOMAIN_SIM
        return env.index * len(env.actors) + actor

    def find_actor_rigid_body_handle(self, env: Any, actor: int, name: str) -> int:
        names = env.actors[actor].asset["bodies"]
        return names.index(name) if name in names else -1

    # --- cameras ----------------------------------------------------------------------------

    def create_camera_sensor(self, env: Any, props: Any) -> int:
        if not _sims[0].draws:
            return -1
        fovy = props.horizontal_fov * props.height / props.width
        env.cameras.append({"fovy": fovy, "size": (props.height, props.width), "body": "",
                            "tensors": props.enable_tensors})  # fmt: skip
        return len(env.cameras) - 1

    def set_camera_transform(self, camera: int, env: Any, transform: Any) -> None:
        pose = (transform.p.x, transform.p.y, transform.p.z)
        env.cameras[camera].update(pos=pose, quat=_seen_by(transform))

    def attach_camera_to_body(
        self, camera: int, env: Any, body: int, transform: Any, mode: Any
    ) -> None:
        if body < 0 or mode != FOLLOW_TRANSFORM:
            raise ValueError("attach_camera_to_body: no such body or mode")
        self.set_camera_transform(camera, env, transform)
        env.cameras[camera]["body"] = env.actors[0].asset["bodies"][body]

    def step_graphics(self, sim: Any) -> None:
        sim.graphics = True

    def render_all_camera_sensors(self, sim: Any) -> None:
        if not getattr(sim, "graphics", False):
            raise RuntimeError("render_all_camera_sensors: step_graphics comes first")
        if sim.written:
            raise RuntimeError("pictures show what was written only after simulate")

    def start_access_image_tensors(self, sim: Any) -> None:
        sim.reading = True

    def end_access_image_tensors(self, sim: Any) -> None:
        sim.reading = False

    def get_camera_image_gpu_tensor(self, sim: Any, env: Any, camera: int, image: Any) -> Any:
        import torch

        if not sim.reading or not env.cameras[camera]["tensors"]:
            raise RuntimeError("no access to image tensors")
        return Tensor(torch.from_numpy(self._picture(sim, env, camera)))

    def get_camera_image(self, sim: Any, env: Any, camera: int, image: Any) -> np.ndarray:
        picture = self._picture(sim, env, camera)
        return picture.reshape(len(picture), -1)

    def _picture(self, sim: Any, env: Any, camera: int) -> np.ndarray:
        rgb = sim.stage.picture(env.index, camera, *env.cameras[camera]["size"])
        return np.concatenate([rgb, np.full((*rgb.shape[:2], 1), 255, np.uint8)], axis=2)

    # --- physics ----------------------------------------------------------------------------

    def prepare_sim(self, sim: Any) -> bool:
        import torch

        stage, first = sim.stage, sim.envs[0]
        arm = first.actors[0]
        stage.arm_file, stage.arm_bits, stage.arm_friction = (
            arm.asset["file"],
            arm.bits,
            arm.friction,
        )
        stage.arm_weightless = arm.asset["options"].disable_gravity
        if not arm.asset["options"].fix_base_link:
            raise RuntimeError("the arm is not fixed: it falls")
        props = arm.asset["props"]
        stage.drives = {
            name: {"stiffness": float(p["stiffness"]), "damping": float(p["damping"]),
                   "force": float(p["effort"]), "armature": float(p["armature"])}
            for name, p in zip(arm.asset["dofs"], props, strict=True)
        }  # fmt: skip
        for actor in first.actors[1:]:
            options = actor.asset["options"]
            stage.shapes.append({
                "name": actor.name, "shape": actor.asset["shape"], "size": actor.asset["size"],
                "mass": actor.asset["mass"], "fixed": options.fix_base_link,
                "weightless": options.disable_gravity, "bits": actor.bits, "rgb": actor.rgb,
                "friction": actor.friction, "quat": _wxyz(actor.pose.r),
                "pos": (actor.pose.p.x, actor.pose.p.y, actor.pose.p.z),
            })  # fmt: skip
        stage.cameras = first.cameras
        stage.compile(len(sim.envs))
        self._names = [actor.name for actor in first.actors]
        self._dofs = arm.asset["dofs"]
        self._root = torch.zeros(len(sim.envs) * len(self._names), 13)
        self._dof = torch.zeros(len(sim.envs) * len(self._dofs), 2)
        sim.prepared = True
        return True

    def acquire_dof_state_tensor(self, sim: Any) -> Any:
        self._check(sim)
        return Tensor(self._dof)

    def acquire_actor_root_state_tensor(self, sim: Any) -> Any:
        self._check(sim)
        return Tensor(self._root)

    def _check(self, sim: Any) -> None:
        if not sim.prepared:
            raise RuntimeError("tensors: prepare_sim comes first")

    def refresh_dof_state_tensor(self, sim: Any) -> bool:
        for i in range(len(self._dof)):
            world, k = divmod(i, len(self._dofs))
            self._dof[i, 0], self._dof[i, 1] = sim.stage.joint(world, self._dofs[k])
        return True

    def refresh_actor_root_state_tensor(self, sim: Any) -> bool:
        import torch

        for i in range(len(self._root)):
            world, k = divmod(i, len(self._names))
            name = self._names[k] if k else sim.stage.model.body(1).name
            root = sim.stage.root(world, name)
            root[3:7] = root[[4, 5, 6, 3]]
            self._root[i] = torch.from_numpy(root)
        return True

    def set_dof_position_target_tensor(self, sim: Any, tensor: Any) -> bool:
        targets = _floats(tensor, len(self._dof))
        for i, target in enumerate(targets.reshape(-1).tolist()):
            world, k = divmod(i, len(self._dofs))
            sim.stage.target(world, self._dofs[k], target)
        return True

    def set_dof_state_tensor_indexed(self, sim: Any, state: Any, indices: Any, count: int) -> bool:
        values = _floats(state, len(self._dof) * 2).reshape(-1, 2)
        for actor in self._once(sim, "dof", indices, count):
            world, which = divmod(actor, len(self._names))
            if which:
                raise ValueError(f"actor {actor} has no joints")
            for k, name in enumerate(self._dofs):
                sim.stage.set_joint(world, name, *values[world * len(self._dofs) + k].tolist())
        return True

    def set_actor_root_state_tensor_indexed(
        self, sim: Any, state: Any, indices: Any, count: int
    ) -> bool:
        values = _floats(state, len(self._root) * 13).reshape(-1, 13)
        for actor in self._once(sim, "root", indices, count):
            world, which = divmod(actor, len(self._names))
            root = values[actor].numpy().astype(np.float64)
            root[3:7] = root[[6, 3, 4, 5]]
            sim.stage.set_root(world, self._names[which], root)
        return True

    def _once(self, sim: Any, kind: str, indices: Any, count: int) -> list[int]:
        import torch

        self._check(sim)
        if indices.held.dtype != torch.int32:
            raise TypeError(f"indices: got {indices.held.dtype}, expected torch.int32")
        if len(indices.held) != count or len(set(indices.held.tolist())) != count:
            raise ValueError("indices: their number is not what was said, or one comes twice")
        if kind in sim.written:
            raise RuntimeError(f"{kind} state: written twice before simulate; only one call counts")
        sim.written.add(kind)
        return indices.held.tolist()

    def simulate(self, sim: Any) -> None:
        self._check(sim)
        sim.written.clear()
        sim.stage.step()

    def fetch_results(self, sim: Any, wait_for_latest_sim_step: bool) -> None:
        self._check(sim)

    def destroy_sim(self, sim: Any) -> None:
        _sims.clear()


def _floats(tensor: Any, count: int) -> Any:
    import torch

    if tensor.held.dtype != torch.float32 or tensor.held.numel() != count:
        raise TypeError(
            f"tensor: got {tensor.held.dtype} [{tensor.held.numel()}], expected float32 [{count}]"
        )
    return tensor.held


def acquire_gym() -> Gym:
    return Gym()
