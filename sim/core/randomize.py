"""Per-episode variation of appearance and physics; layouts belong to tasks."""

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

VISUAL_SHIFTS = ("none", "camera", "colour")
"""Out-of-distribution test sets: none; cameras moved and turned by one to two times the training
bound; table and floor in colours outside the training range."""
BEYOND_GAIN = ((0.5, 0.7), (1.25, 1.45))
BEYOND_TINT = 0.1


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


def check_visual_shift(visual_shift: str) -> None:
    """Raise ValueError unless `visual_shift` is one of `VISUAL_SHIFTS`."""
    if visual_shift not in VISUAL_SHIFTS:
        raise ValueError(
            f"visual_shift: got {visual_shift!r}, expected one of {', '.join(VISUAL_SHIFTS)}"
        )


def draw(
    rng: np.random.Generator, nominal: mujoco.MjModel, visual_shift: str = "none"
) -> Variation:
    """Draw the variation of an episode around a nominal model; see `VISUAL_SHIFTS`."""
    drawn = _draw_nominal(rng, nominal)
    if visual_shift == "camera":
        return dataclasses.replace(
            drawn,
            camera_pos_m=nominal.cam_pos + CAMERA_POS_M * _beyond(rng, nominal.cam_pos.shape),
            camera_quat=_tilt(nominal.cam_quat, rng, CAMERA_ANGLE_RAD, 2.0 * CAMERA_ANGLE_RAD),
        )
    if visual_shift == "colour":
        ids = _surface_ids(nominal)
        bounds = BEYOND_GAIN[int(rng.integers(2))]
        gain = rng.uniform(*bounds, size=(len(ids), 1))
        tint = BEYOND_TINT * 0.5 * _beyond(rng, (len(ids), 3))
        rgb = np.clip(nominal.geom_rgba[ids, :3] * gain + tint, 0.0, 1.0)
        return dataclasses.replace(drawn, surface_rgb=rgb)
    return drawn


def _beyond(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Draw numbers of either sign whose size is 1 to 2."""
    return rng.choice((-1.0, 1.0), size=shape) * rng.uniform(1.0, 2.0, size=shape)


def _surface_ids(nominal: mujoco.MjModel) -> list[int]:
    return [mujoco.mj_name2id(nominal, mujoco.mjtObj.mjOBJ_GEOM, name) for name in SURFACES]


def _draw_nominal(rng: np.random.Generator, nominal: mujoco.MjModel) -> Variation:
    ids = _surface_ids(nominal)
    gain = rng.uniform(*SURFACE_GAIN, size=(len(ids), 1))
    tint = rng.uniform(-SURFACE_TINT, SURFACE_TINT, size=(len(ids), 3))
    light_dir = nominal.light_dir + rng.uniform(-LIGHT_POS_M, LIGHT_POS_M, (nominal.nlight, 3))
    return Variation(
        surface_rgb=np.clip(nominal.geom_rgba[ids, :3] * gain + tint, 0.0, 1.0),
        light_diffuse=nominal.light_diffuse * rng.uniform(*LIGHT_GAIN, size=(nominal.nlight, 1)),
        light_dir=light_dir / np.linalg.norm(light_dir, axis=1, keepdims=True),
        camera_pos_m=nominal.cam_pos + rng.uniform(-CAMERA_POS_M, CAMERA_POS_M, (nominal.ncam, 3)),
        camera_quat=_tilt(nominal.cam_quat, rng, -CAMERA_ANGLE_RAD, CAMERA_ANGLE_RAD),
        friction_gain=float(rng.uniform(*FRICTION_GAIN)),
        mass_gain=float(rng.uniform(*MASS_GAIN)),
    )


def apply(
    model: mujoco.MjModel, nominal: mujoco.MjModel, variation: Variation, scratch: mujoco.MjData
) -> None:
    """Write a variation to `model`, a copy of `nominal`.

    Args:
        model: Written to.
        nominal: The scene's own model.
        variation: What to write.
        scratch: Data of the model, or of one like it; overwritten.
    """
    model.geom_rgba[:] = nominal.geom_rgba
    for name, rgb in zip(SURFACES, variation.surface_rgb, strict=True):
        model.geom_rgba[mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, name), :3] = rgb
    model.light_diffuse[:] = variation.light_diffuse
    model.light_dir[:] = variation.light_dir
    model.cam_pos[:] = variation.camera_pos_m
    model.cam_quat[:] = variation.camera_quat
    model.geom_friction[:] = nominal.geom_friction
    model.geom_friction[:, 0] *= variation.friction_gain
    free = model.jnt_bodyid[model.jnt_type == int(mujoco.mjtJoint.mjJNT_FREE)]
    model.body_mass[free] = nominal.body_mass[free] * variation.mass_gain
    model.body_inertia[free] = nominal.body_inertia[free] * variation.mass_gain
    if free.size:
        mujoco.mj_setConst(model, scratch)


def _tilt(
    quats: np.ndarray, rng: np.random.Generator, low_rad: float, high_rad: float
) -> np.ndarray:
    """Turn each quaternion (n, 4) about a random axis by an angle drawn between two bounds."""
    tilted = np.empty_like(quats)
    for row, quat in zip(tilted, quats, strict=True):
        axis = rng.standard_normal(3)
        turn = np.empty(4)
        angle = rng.uniform(low_rad, high_rad)
        mujoco.mju_axisAngle2Quat(turn, axis / np.linalg.norm(axis), angle)
        mujoco.mju_mulQuat(row, quat, turn)
    return tilted
