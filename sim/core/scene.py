"""Compiles a robot, a task and a lit table into one MuJoCo model; runs and renders nothing."""

import dataclasses
import functools
import operator
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from sim.core.task import Task
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec

TIMESTEP_S = 0.005
ASSETS = Path(__file__).parents[1] / "assets"
TABLE_RGBA = (0.62, 0.60, 0.57, 1.0)
FLOOR_RGBA = (0.36, 0.39, 0.43, 1.0)
LIMIT_TOLERANCE = 1e-3


@dataclasses.dataclass(frozen=True, eq=False)
class Scene:
    """A compiled scene, shared by every environment that shows it; never written to."""

    task: Task
    """The task, built for the robot."""
    model: mujoco.MjModel
    """The nominal model; environments hold copies."""
    substeps: int
    """Physics steps in one control step."""

    @property
    def robot(self) -> RobotSpec:
        """The arm."""
        return self.task.robot

    @property
    def image_shape(self) -> tuple[int, int, int, int]:
        """Shape of one environment's images: views, height, width, 3."""
        first = self.robot.cameras[0]
        return len(self.robot.cameras), first.height_px, first.width_px, 3


@functools.lru_cache(maxsize=16)
def compile_scene(config: PluginConfig, robot: RobotSpec) -> Scene:
    """Return the scene of a task's configuration and a robot, compiled once per process.

    Raises:
        ValueError: the robot's model file is missing, malformed or disagrees with its RobotSpec.
    """
    task = config.build(robot)
    spec = build_scene(robot, task)
    try:
        model = spec.compile()
    except ValueError as error:
        raise ValueError(f"the scene of {robot.mjcf!r} does not compile: {error}") from error
    check_robot(model, robot)
    return Scene(task=task, model=model, substeps=_substeps(robot))


def build_scene(robot: RobotSpec, task: Task) -> mujoco.MjSpec:
    """Return an editable scene: table top at z = 0, lights, arm at the origin, cameras, task.

    Raises:
        ValueError: the robot's model file is missing or malformed, or its cameras differ in size.
    """
    spec = _read_robot(robot)
    spec.option.timestep = TIMESTEP_S
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    # MuJoCo 4.0.0 solves sparse constraint Jacobians wrongly; dense is as fast at this size.
    spec.option.jacobian = mujoco.mjtJacobian.mjJAC_DENSE
    spec.visual.global_.offwidth = max(c.width_px for c in robot.cameras)
    spec.visual.global_.offheight = max(c.height_px for c in robot.cameras)
    spec.visual.quality.shadowsize = 0
    spec.visual.quality.offsamples = 0
    # A third of the triangles of the defaults: drawing small images is bound by vertices.
    spec.visual.quality.numslices = 12
    spec.visual.quality.numstacks = 6
    spec.visual.quality.numquads = 1
    spec.visual.map.znear = 0.01
    spec.stat.extent = 1.0
    spec.stat.center = (0.2, 0.0, 0.1)
    _add_room(spec)
    _add_cameras(spec, robot)
    task.build(spec)
    return spec


def _add_room(spec: mujoco.MjSpec) -> None:
    # The headlight gives even light from the camera; the lamp above gives faces their shading.
    spec.visual.headlight.ambient = (0.35, 0.35, 0.35)
    spec.visual.headlight.diffuse = (0.25, 0.25, 0.25)
    spec.visual.headlight.specular = (0.0, 0.0, 0.0)
    world = spec.worldbody
    world.add_light(
        name="key_light",
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        pos=(0.3, 0.4, 1.5),
        dir=(-0.15, -0.35, -1.0),
        diffuse=(0.5, 0.5, 0.5),
        ambient=(0.0, 0.0, 0.0),
        specular=(0.0, 0.0, 0.0),
        castshadow=False,
    )
    world.add_geom(
        name="floor",
        type=mujoco.mjtGeom.mjGEOM_PLANE,
        pos=(0, 0, -0.5),
        size=(4, 4, 8),  # the last is the spacing of its grid: one quad, not thousands
        rgba=FLOOR_RGBA,
        contype=0,
        conaffinity=0,
    )
    world.add_geom(
        name="table",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        pos=(0.2, 0, -0.02),
        size=(0.55, 0.6, 0.02),
        rgba=TABLE_RGBA,
        friction=(0.9, 0.005, 0.0001),
    )


def _read_robot(robot: RobotSpec) -> mujoco.MjSpec:
    """Return a scene with the arm alone. Its own options, made for other scenes, do not count.

    It keeps the compiler's settings: angles that a task adds are in the unit of the arm's file. It
    is not attached to an empty scene, since MuJoCo 4 warns of that without a prefix to all names.
    """
    path = Path(robot.mjcf) if Path(robot.mjcf).is_absolute() else ASSETS / robot.mjcf
    if not path.is_file():
        raise ValueError(
            f"robot {robot.name!r}: no model file {robot.mjcf!r}; give a name under sim/assets or "
            "the absolute path of an MJCF file"
        )
    try:
        arm = mujoco.MjSpec.from_file(str(path))
    except ValueError as error:
        raise ValueError(f"robot {robot.name!r}: cannot read {robot.mjcf!r}: {error}") from error
    fresh = mujoco.MjSpec()
    visual = (name for name in dir(fresh.visual) if not name.startswith("_"))
    for part in ("option", "stat", *(f"visual.{name}" for name in visual)):
        _copy_fields(operator.attrgetter(part)(fresh), operator.attrgetter(part)(arm))
    for key in list(arm.keys):
        arm.delete(key)  # they are as long as the arm, and scenes are longer
    for body in arm.bodies[1:]:
        # Weightless links make the home pose an exact equilibrium of position targets.
        body.gravcomp = 1.0
    return arm


def _copy_fields(source: Any, target: Any) -> None:
    for name in (name for name in dir(source) if not name.startswith("_")):
        value = getattr(source, name)
        if isinstance(value, np.ndarray):
            getattr(target, name)[:] = value
        elif not callable(value):
            setattr(target, name, value)


def _add_cameras(spec: mujoco.MjSpec, robot: RobotSpec) -> None:
    sizes = {(c.width_px, c.height_px) for c in robot.cameras}
    if len(sizes) != 1:
        raise ValueError(f"robot {robot.name!r}: cameras must share one size, got {sorted(sizes)}")
    for camera in robot.cameras:
        body = spec.body(camera.body)
        if body is None:
            raise ValueError(
                f"robot {robot.name!r}: camera {camera.name!r} sits on body {camera.body!r}, "
                f"which {robot.mjcf!r} does not have"
            )
        body.add_camera(
            name=camera.name,
            pos=camera.pos_m,
            quat=look_at(camera.pos_m, camera.target_m),
            fovy=camera.fovy_deg,
        )


def look_at(pos_m: tuple[float, float, float], target_m: tuple[float, float, float]) -> np.ndarray:
    """Return the quaternion (wxyz) of a camera at `pos_m` that sees `target_m` in its centre.

    MuJoCo cameras look along -z with y up; "up" is the frame's z, or its x for a vertical view.

    Raises:
        ValueError: both points are the same.
    """
    back = np.asarray(pos_m, np.float64) - np.asarray(target_m, np.float64)
    length = np.linalg.norm(back)
    if length < 1e-9:
        raise ValueError(f"a camera at {pos_m} cannot look at itself: move its target_m")
    z_axis = back / length
    up = np.array([1.0, 0.0, 0.0]) if abs(z_axis[2]) > 0.999 else np.array([0.0, 0.0, 1.0])
    x_axis = np.cross(up, z_axis)
    x_axis /= np.linalg.norm(x_axis)
    rotation = np.stack([x_axis, np.cross(z_axis, x_axis), z_axis], axis=1)
    quat = np.empty(4)
    mujoco.mju_mat2Quat(quat, rotation.reshape(9))
    return quat


def check_robot(model: mujoco.MjModel, robot: RobotSpec) -> None:
    """Check that a compiled model has what the RobotSpec says.

    Raises:
        ValueError: a joint, actuator or the site "tool" is missing, or limits differ.
    """
    where = f"robot {robot.name!r} ({robot.mjcf})"
    if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_SITE, "tool") < 0:
        raise ValueError(f"{where}: no site named 'tool'; add one between the fingertips")
    for channel in robot.channels:
        joint = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_JOINT, channel.name)
        if joint < 0:
            raise ValueError(
                f"{where}: no joint named {channel.name!r}, a channel of the RobotSpec"
            )
        if mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_ACTUATOR, channel.name) < 0:
            raise ValueError(f"{where}: no position actuator named {channel.name!r}")
        got, expected = model.jnt_range[joint], (channel.low, channel.high)
        if model.jnt_limited[joint] and not np.allclose(got, expected, atol=LIMIT_TOLERANCE):
            raise ValueError(
                f"{where}: joint {channel.name!r} is limited to {got[0]:.4f}..{got[1]:.4f} in the "
                f"model but to {channel.low:.4f}..{channel.high:.4f} in the RobotSpec"
            )


def _substeps(robot: RobotSpec) -> int:
    substeps = 1.0 / (robot.control_hz * TIMESTEP_S)
    if abs(substeps - round(substeps)) > 1e-6 or round(substeps) < 1:
        raise ValueError(
            f"robot {robot.name!r}: a control step of 1/{robot.control_hz} s is not a whole number "
            f"of {TIMESTEP_S} s physics steps"
        )
    return round(substeps)
