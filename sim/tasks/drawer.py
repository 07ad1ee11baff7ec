"""Drawer: take the handle of a small drawer and pull it open."""

import dataclasses
from collections.abc import Iterator

import mujoco
import numpy as np

from sim.core import rewards
from sim.core.task import Unlocked, World, Worlds
from sim.experts import skills
from sim.experts.motions import Motion
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

WORDINGS = (
    "open the drawer",
    "pull the drawer open",
    "grab the handle and pull the drawer out",
    "take the handle and open the drawer",
    "slide the drawer out of the cabinet",
)
HALF_M = (0.06, 0.05, 0.026)
"""Half the depth, width and height of the cabinet."""
HANDLE_OUT_M = 0.024
HANDLE_Z_M = 0.024
TRAVEL_M = 0.09
WOOD = (0.55, 0.36, 0.2, 1.0)
PALE = (0.85, 0.72, 0.5, 1.0)
HANDLE = (0.85, 0.1, 0.12, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How hard it is."""

    open_m: float = 0.06
    """How far the drawer must be out."""
    angle_rad: float = 0.3
    """Largest angle of the cabinet off straight ahead."""

    def build(self, robot: RobotSpec) -> "Drawer":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        if not 0.0 < self.open_m < TRAVEL_M:
            raise ValueError(f"open_m: got {self.open_m}, expected more than 0, below {TRAVEL_M}")
        return Drawer(self, robot)


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """What happens in one episode; in many, with a leading axis on every field."""

    out: np.ndarray
    """Unit vector in which the drawer opens, shape (3,)."""
    reach_m: Array
    """Distance of the tool from the handle at the start."""


class Drawer(Unlocked[Config]):
    """Satisfies `sim.core.task.Task`."""

    max_episode_steps = 70
    instructions = WORDINGS
    variants = ("slip", "undo", "near_miss", "hover")

    def build(self, scene: mujoco.MjSpec) -> None:
        """Add a cabinet that opens towards -x of its own frame, and its drawer."""
        depth, width, height = HALF_M
        cabinet = scene.worldbody.add_body(name="cabinet", pos=(0.3, 0.0, 0.0))
        drawer = cabinet.add_body(name="drawer", pos=(0.0, 0.0, height))
        drawer.add_joint(
            name="drawer",
            type=mujoco.mjtJoint.mjJNT_SLIDE,
            axis=(-1.0, 0.0, 0.0),
            range=(0.0, TRAVEL_M),
            limited=True,
            damping=2.0,
            frictionloss=0.4,
            armature=0.05,
        )
        wall = 0.004
        _add_box(cabinet, "roof", (depth, width, wall), (0.0, 0.0, 2 * height), WOOD)
        _add_box(cabinet, "left", (depth, wall, height), (0.0, width, height), WOOD)
        _add_box(cabinet, "right", (depth, wall, height), (0.0, -width, height), WOOD)
        _add_box(cabinet, "back", (wall, width, height), (depth, 0.0, height), WOOD)
        inner = (depth - 0.006, width - 0.008, wall)
        _add_box(drawer, "bottom", inner, (0.0, 0.0, 0.008 - height), PALE)
        _add_box(drawer, "front", (wall, width, height - 0.004), (-depth, 0.0, 0.0), PALE)
        bar = HANDLE_OUT_M / 2
        _add_box(drawer, "bar", (bar, 0.006, 0.004), (-depth - bar, 0.0, 0.0), HANDLE)
        grip = (0.007, 0.011, 0.018)
        _add_box(drawer, "handle", grip, (-depth - HANDLE_OUT_M, 0.0, HANDLE_Z_M - height), HANDLE)

    def reset(self, world: World) -> None:
        """Draw where the cabinet stands; it always faces the arm."""
        rng, model = world.rng, world.model
        near, far = self.robot.reach_m
        radius = near + (far - near) * rng.uniform(0.75, 0.95)
        angle = rng.uniform(-1, 1) * self.config.angle_rad
        away = np.array([np.cos(angle), np.sin(angle), 0.0])
        cabinet = model.body("cabinet").id
        model.body_pos[cabinet] = away * (radius + HANDLE_OUT_M + HALF_M[0])
        model.body_quat[cabinet] = np.cos(angle / 2), 0.0, 0.0, np.sin(angle / 2)  # wxyz
        mujoco.mj_forward(model, world.data)
        reach_m = float(self._reach_m(world.as_batch)[0])
        world.episode = Episode(out=-away, reach_m=reach_m)
        world.instruction = str(rng.choice(WORDINGS))

    def success(self, worlds: Worlds) -> np.ndarray:
        """True while the drawer is far enough out."""
        return worlds.joint_pos("drawer") >= self.config.open_m

    def referents(self, worlds: Worlds) -> np.ndarray:
        """See `sim.core.task.HasReferents`."""
        handle = worlds.geom_pos_m("handle")
        left = self.config.open_m - worlds.joint_pos("drawer")
        return np.stack([handle, handle + left[:, None] * worlds.episode.out], 1)

    def progress(self, worlds: Worlds) -> np.ndarray:
        """0.25 for coming to the handle, 0.1 for holding it, 0.6 for pulling; 1 with success."""
        near = rewards.share_done(self._reach_m(worlds), worlds.episode.reach_m)
        held = (worlds.touching("handle") >= 2).astype(np.float64)
        left = self.config.open_m - worlds.joint_pos("drawer")
        pulled = rewards.share_done(left, self.config.open_m)
        part = rewards.staged((near, held, pulled), (0.25, 0.1, 0.6))
        return np.where(self.success(worlds), 1.0, part)

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Take the handle and pull; or lose it, stop short, close again, or never take it."""
        motion = Motion(world)
        motion.opening = motion.wide
        handle = world.as_batch.geom_pos_m("handle")[0].copy()
        out = world.episode.out
        yaw = float(np.arctan2(-out[1], -out[0]))
        if variant == "hover":
            above = handle + (0.0, 0.0, world.rng.uniform(0.05, 0.06))
            yield from motion.hover(above, yaw)
            return
        if not skills.is_held(motion, "handle", handle):
            # From the arm's side, or the fingers would come down on the drawer's front.
            yield from motion.move(handle, yaw, clearance_m=0.05)
        yield from motion.grip(self.robot.gripper.closed)
        share = world.rng.uniform(0.4, 0.75) if variant in ("slip", "near_miss") else 1.0
        goal = handle + out * self.config.open_m * share
        if share < 1.0:
            yield from motion.move(goal, yaw, tolerance_m=0.008)
        else:
            yield from motion.move(handle + out * (TRAVEL_M - 0.005), yaw, tolerance_m=0.012)
        if variant == "slip":
            motion.opening = motion.wide
            yield from motion.wait(3)
            yield from motion.move(goal + (0.0, 0.0, 0.04), tolerance_m=0.015)
            yield from motion.move(goal + out * 0.04 + (0.0, 0.0, 0.04), tolerance_m=0.015)
        elif variant == "undo":
            yield from motion.move(handle, yaw, tolerance_m=0.012)
            yield from motion.grip(motion.wide)
        yield from motion.wait(4)

    def _reach_m(self, worlds: Worlds) -> np.ndarray:
        return rewards.length(worlds.tool_m - worlds.geom_pos_m("handle"))


def _add_box(
    body: mujoco.MjsBody,
    name: str,
    half_m: tuple[float, float, float],
    pos_m: tuple[float, float, float],
    rgba: tuple[float, float, float, float],
) -> None:
    body.add_geom(
        name=name,
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=half_m,
        pos=pos_m,
        rgba=rgba,
        mass=0.02,
        condim=4,
        # Touches the arm (contype 2), but neither the other boxes here nor the table.
        contype=4,
        conaffinity=2,
    )
