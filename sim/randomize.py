"""Per-episode variation of looks and physics, drawn from a generator; layouts belong to tasks."""

import dataclasses

import mujoco
import numpy as np

SURFACES = ("table", "floor")
CAMERA_POS_M = 0.01
CAMERA_ANGLE_RAD = 0.02
LIGHT_POS_M = 0.2
LIGHT_GAIN = (0.75, 1.25)
SURFACE_GAIN = (0.75, 1.2)
SURFACE_TINT = 0.05
FRICTION_GAIN = (0.8, 1.25)
MASS_GAIN = (0.7, 1.4)


@dataclasses.dataclass(frozen=True, eq=False)
class Variation:
    """What differs from the nominal model in one episode."""

    surface_rgb: np.ndarray
    """Colours of table and floor in [0, 1], shape (2, 3)."""
    light_diffuse: np.ndarray
    """Diffuse colours of the lights, shape (lights, 3)."""
    light_dir: np.ndarray
    """Directions of the lights, shape (lights, 3), unit length."""
    camera_pos_m: np.ndarray
    """Camera positions in their bodies, shape (cameras, 3)."""
    camera_quat: np.ndarray
    """Camera orientations (wxyz) in their bodies, shape (cameras, 4)."""
    friction_gain: float
    """Factor on every geom's sliding friction."""
    mass_gain: float
    """Factor on mass and inertia of every free body."""


def draw(rng: np.random.Generator, nominal: mujoco.MjModel) -> Variation:
    """Draw the variation of one episode around a nominal model."""
    ids = [mujoco.mj_name2id(nominal, mujoco.mjtObj.mjOBJ_GEOM, name) for name in SURFACES]
    gain = rng.uniform(*SURFACE_GAIN, size=(len(ids), 1))
    tint = rng.uniform(-SURFACE_TINT, SURFACE_TINT, size=(len(ids), 3))
    light_dir = nominal.light_dir + rng.uniform(-LIGHT_POS_M, LIGHT_POS_M, (nominal.nlight, 3))
    return Variation(
        surface_rgb=np.clip(nominal.geom_rgba[ids, :3] * gain + tint, 0.0, 1.0),
        light_diffuse=nominal.light_diffuse * rng.uniform(*LIGHT_GAIN, size=(nominal.nlight, 1)),
        light_dir=light_dir / np.linalg.norm(light_dir, axis=1, keepdims=True),
        camera_pos_m=nominal.cam_pos + rng.uniform(-CAMERA_POS_M, CAMERA_POS_M, (nominal.ncam, 3)),
        camera_quat=_tilt(nominal.cam_quat, rng),
        friction_gain=float(rng.uniform(*FRICTION_GAIN)),
        mass_gain=float(rng.uniform(*MASS_GAIN)),
    )


def apply_(model: mujoco.MjModel, nominal: mujoco.MjModel, variation: Variation) -> None:
    """Write a variation to `model`, a copy of `nominal`; what it held before does not matter."""
    model.geom_rgba[:] = nominal.geom_rgba
    for name, rgb in zip(SURFACES, variation.surface_rgb, strict=True):
        model.geom_rgba[mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, name), :3] = rgb
    model.light_diffuse[:] = variation.light_diffuse
    model.light_dir[:] = variation.light_dir
    model.cam_pos[:] = variation.camera_pos_m
    model.cam_quat[:] = variation.camera_quat
    model.geom_friction[:] = nominal.geom_friction
    model.geom_friction[:, 0] *= variation.friction_gain
    free = free_bodies(model)
    model.body_mass[free] = nominal.body_mass[free] * variation.mass_gain
    model.body_inertia[free] = nominal.body_inertia[free] * variation.mass_gain
    if free.size:
        mujoco.mj_setConst(model, mujoco.MjData(model))


def free_bodies(model: mujoco.MjModel) -> np.ndarray:
    """Return the ids of bodies with a free joint: the objects that tasks move about."""
    return model.jnt_bodyid[model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)]


def _tilt(quats: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Turn each quaternion (n, 4) by a random angle of at most CAMERA_ANGLE_RAD."""
    tilted = np.empty_like(quats)
    for row, quat in zip(tilted, quats, strict=True):
        axis = rng.standard_normal(3)
        turn = np.empty(4)
        angle = rng.uniform(-CAMERA_ANGLE_RAD, CAMERA_ANGLE_RAD)
        mujoco.mju_axisAngle2Quat(turn, axis / np.linalg.norm(axis), angle)
        mujoco.mju_mulQuat(row, quat, turn)
    return tilted
