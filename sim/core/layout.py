"""Parts of the layouts of tasks: colours, blocks, marks, poses, places within reach."""

import mujoco
import numpy as np

from sim.core.task import World
from vla.contracts.specs import RobotSpec

COLOURS = {
    "red": (0.88, 0.10, 0.10),
    "green": (0.10, 0.68, 0.18),
    "blue": (0.12, 0.25, 0.92),
    "yellow": (0.96, 0.85, 0.10),
}
"""Colours that instructions name (RGB in [0, 1])."""


def add_block(scene: mujoco.MjSpec, name: str, half_m: float, mass_kg: float) -> None:
    """Add a cube that moves freely: body, geom and joint are all called `name`."""
    _add_thing(scene, name, mujoco.mjtGeom.mjGEOM_BOX, (half_m, half_m, half_m), half_m, mass_kg)


def add_can(
    scene: mujoco.MjSpec, name: str, radius_m: float, half_m: float, mass_kg: float
) -> None:
    """Add an upright prism of eight sides that moves freely, of half the height `half_m`; a
    cylinder, which two flat pads touch along lines only, would roll out of them.
    """
    angles = np.pi / 4 * (np.arange(8) + 0.5)
    ring = np.stack([np.cos(angles), np.sin(angles)], 1) * radius_m
    corners = [np.append(xy, z) for z in (-half_m, half_m) for xy in ring]
    scene.add_mesh(name=name, uservert=np.concatenate(corners))
    _add_thing(
        scene, name, mujoco.mjtGeom.mjGEOM_MESH, (0.0, 0.0, 0.0), half_m, mass_kg, meshname=name
    )


def add_oddity(scene: mujoco.MjSpec, name: str, half_m: float, mass_kg: float) -> None:
    """Add a thing whose shape and colour no instruction names: a "slab" or an "egg"."""
    box, egg = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_ELLIPSOID
    kind, size, rgb = {
        "slab": (box, (1.6 * half_m, 0.7 * half_m, half_m), (0.95, 0.5, 0.1)),
        "egg": (egg, (1.3 * half_m, half_m, half_m), (0.6, 0.2, 0.75)),
    }[name]
    _add_thing(scene, name, kind, size, half_m, mass_kg, rgba=(*rgb, 1.0))


def _add_thing(
    scene: mujoco.MjSpec, name: str, kind: mujoco.mjtGeom, size_m: tuple[float, ...],
    half_m: float, mass_kg: float, **geom: object,
) -> None:  # fmt: skip
    body = scene.worldbody.add_body(name=name, pos=(0.0, 0.0, half_m))
    body.add_freejoint(name=name)
    body.add_geom(
        name=name,
        type=kind,
        size=size_m,
        mass=mass_kg,
        # Torsional friction keeps what is held between two pads from spinning.
        condim=4,
        friction=(0.9, 0.01, 0.0001),
        solref=(0.01, 1.0),
        **geom,
    )


def add_mark(
    scene: mujoco.MjSpec, name: str, kind: mujoco.mjtGeom, size_m: tuple[float, ...], **geom: object
) -> None:
    """Add a visible body without contacts, moved by `place`."""
    body = scene.worldbody.add_body(name=name, mocap=True)
    body.add_geom(name=name, type=kind, size=size_m, contype=0, conaffinity=0, **geom)


def place(world: World, name: str, pos_m: np.ndarray, yaw_rad: float = 0.0) -> None:
    """Put a block, at rest, or a mark at a position (3,) and yaw."""
    world.as_batch.place(name, True, np.asarray(pos_m)[None], np.array([yaw_rad]))


def paint(world: World, geom: str, colour: str) -> None:
    """Give a geom one of `COLOURS` for this episode."""
    world.model.geom_rgba[world.model.geom(geom).id, :3] = COLOURS[colour]


def block_pos_m(world: World, name: str) -> np.ndarray:
    """Return where the centre of a body is, shape (3,)."""
    return world.data.xpos[world.model.body(name).id].copy()


def block_yaw_rad(world: World, name: str) -> float:
    """Return the rotation of a body's x axis about z."""
    matrix = world.data.xmat[world.model.body(name).id]
    return float(np.arctan2(matrix[3], matrix[0]))


def half_width_m(robot: RobotSpec) -> float:
    """Return half the width in which tasks place objects: 10 cm for an arm that reaches 28 cm."""
    near, far = robot.reach_m
    return 0.75 * (far - near)


def draw_xy(
    rng: np.random.Generator,
    robot: RobotSpec,
    *,
    x: tuple[float, float] = (0.0, 1.0),
    y: tuple[float, float] = (-1.0, 1.0),
) -> np.ndarray:
    """Draw a place on the table within reach, metres, shape (2,).

    Args:
        rng: Generator.
        robot: The arm; its `reach_m` spans the x axis.
        x: Range of depth: 0 is the near end of reach, 1 the far one.
        y: Range of side: -1 is the right edge, 1 the left one.
    """
    near, far = robot.reach_m
    return np.array([near + (far - near) * rng.uniform(*x), half_width_m(robot) * rng.uniform(*y)])


def draw_separated(
    rng: np.random.Generator, robot: RobotSpec, count: int, apart_m: float
) -> np.ndarray:
    """Draw `count` places within reach, at least `apart_m` from one another, shape (count, 2)."""
    for _ in range(1000):
        places = np.stack([draw_xy(rng, robot) for _ in range(count)])
        gaps = np.linalg.norm(places[:, None] - places[None], axis=-1)
        if count < 2 or gaps[np.triu_indices(count, 1)].min() >= apart_m:
            return places
    raise ValueError(
        f"no room for {count} objects {apart_m} m apart within reach of {robot.name!r}: "
        "use fewer objects"
    )


def within_reach(robot: RobotSpec, pos_m: np.ndarray) -> np.ndarray:
    """Return `pos_m` (3,), moved along its radius into the arm's comfortable reach."""
    near, far = robot.reach_m
    radius = float(np.linalg.norm(pos_m[:2]))
    scale = float(np.clip(radius, near, 1.05 * far)) / radius
    return pos_m * (scale, scale, 1.0)
