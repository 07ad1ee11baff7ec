"""Push: slide a block over the table into a marked ring, without lifting it."""

import dataclasses
from collections.abc import Iterator

import mujoco
import numpy as np

from sim.core import layout, rewards
from sim.core.task import Unlocked, World, Worlds
from sim.experts import skills
from sim.experts.motions import Motion, grasp_yaw
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

WORDINGS = (
    "push the {} block into the circle",
    "slide the {} block onto the dark disc",
    "push the {} cube to the marked spot",
    "move the {} block forward until it is on the disc",
    "shove the {} cube into the ring",
)
HALF_M = 0.02
DISC_M = 0.045
TOUCH_M = 0.03
"""Distance of the tool from the block's centre when the fingers touch its side."""
BEHIND_M = 0.05
STRIDE_M = 0.022


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How hard it is."""

    distance_m: tuple[float, float] = (0.06, 0.09)
    """Smallest and largest way from block to disc."""
    angle_rad: float = 0.4
    """Largest angle between that way and the direction straight away from the arm."""
    tolerance_m: float = 0.025
    """Largest distance of the block's centre from the disc's."""

    def build(self, robot: RobotSpec) -> "Push":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        low, high = self.distance_m
        if not self.tolerance_m < low <= high:
            raise ValueError(
                f"distance_m: got {self.distance_m}, expected two lengths in order, above "
                f"tolerance_m = {self.tolerance_m}"
            )
        return Push(self, robot)


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """What happens in one episode; in many, with a leading axis on every field."""

    disc_m: np.ndarray
    """Centre of the disc on the table, shape (3,)."""
    reach_m: Array
    """Distance of the tool from the block at the start."""
    push_m: Array
    """Distance of the block from the disc at the start."""


class Push(Unlocked[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = tuple(w.format(c) for c in layout.COLOURS for w in WORDINGS)
    max_episode_steps = 80
    variants = ("undo", "near_miss", "overshoot", "hover")

    def build(self, scene: mujoco.MjSpec) -> None:
        """Add the disc and the block."""
        disc = mujoco.mjtGeom.mjGEOM_CYLINDER
        layout.add_mark(scene, "disc", disc, (DISC_M, 0.001, 0.0), rgba=(0.12, 0.1, 0.16, 1))
        layout.add_block(scene, "block", HALF_M, 0.05)

    def reset(self, world: World) -> None:
        """Draw places, colour and wording."""
        rng = world.rng
        xy = layout.draw_xy(rng, self.robot, x=(0.1, 0.35), y=(-0.6, 0.6))
        angle = np.arctan2(xy[1], xy[0]) + rng.uniform(-1, 1) * self.config.angle_rad
        way = np.array([np.cos(angle), np.sin(angle)])
        disc = xy + rng.uniform(*self.config.distance_m) * way
        layout.place(world, "block", np.array([*xy, HALF_M]), angle)
        layout.place(world, "disc", np.array([*disc, 0.0]))
        colour = str(rng.choice(list(layout.COLOURS)))
        layout.paint(world, "block", colour)
        mujoco.mj_forward(world.model, world.data)
        world.episode = Episode(
            disc_m=np.array([*disc, 0.0]),
            reach_m=float(self._reach_m(world.as_batch)[0]),
            push_m=float(np.linalg.norm(disc - xy)),
        )
        world.instruction = str(rng.choice(WORDINGS)).format(colour)

    def success(self, worlds: Worlds) -> np.ndarray:
        """True once the block rests on the table at the centre of the disc."""
        return (
            (self._left_m(worlds) <= self.config.tolerance_m)
            & (worlds.body_pos_m("block")[:, 2] < HALF_M + 0.004)
            & (worlds.body_speed_m_s("block") < 0.03)
        )

    def failure(self, worlds: Worlds) -> np.ndarray:
        """True if the block is off the table."""
        return worlds.body_pos_m("block")[:, 2] < -0.02

    def referents(self, worlds: Worlds) -> np.ndarray:
        """See `sim.core.task.HasReferents`."""
        return np.stack([worlds.body_pos_m("block"), worlds.episode.disc_m], 1)

    def progress(self, worlds: Worlds) -> np.ndarray:
        """0.25 for coming to the block, 0.7 for the way pushed; 1 with success."""
        episode = worlds.episode
        away = np.maximum(self._reach_m(worlds) - TOUCH_M, 0.0)
        near = rewards.share_done(away, episode.reach_m - TOUCH_M)
        left = np.maximum(self._left_m(worlds) - self.config.tolerance_m, 0.0)
        pushed = rewards.share_done(left, episode.push_m - self.config.tolerance_m)
        part = rewards.staged((near, pushed), (0.25, 0.7))
        return np.where(self.success(worlds), 1.0, part)

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Come down behind the block and push; or too short, too far and back, or not at all."""
        motion = Motion(world)
        goal = world.episode.disc_m[:2]
        start = layout.block_pos_m(world, "block")[:2]
        way = (goal - start) / np.linalg.norm(goal - start)
        if variant == "hover":
            above = layout.block_pos_m(world, "block")
            above[2] += world.rng.uniform(0.045, 0.06)
            yield from motion.hover(above)
            return
        if variant == "near_miss":
            goal = goal - way * world.rng.uniform(1.4, 1.8) * self.config.tolerance_m
        elif variant == "overshoot":
            goal = goal + way * 0.04
        # A block that was pushed beside the disc or beyond it is pulled back.
        if np.dot(way, start) < 0.5 * np.linalg.norm(start):
            yield from self._drag(motion, goal)
        else:
            yield from skills.push(
                motion, "block", goal, half_m=HALF_M, behind_m=BEHIND_M, stride_m=STRIDE_M
            )
        if variant == "overshoot":
            yield from self._drag(motion, world.episode.disc_m[:2])
        elif variant == "undo":
            yield from self._drag(motion, start)
        yield from motion.wait(4)

    def _drag(self, motion: Motion, goal: np.ndarray) -> Iterator[np.ndarray]:
        """Take hold of the block from above and pull it over the table."""
        motion.opening = motion.wide
        yield from skills.rise(motion)
        block = layout.block_pos_m(motion.world, "block")
        yaw = grasp_yaw(block, layout.block_yaw_rad(motion.world, "block"))
        yield from motion.move(block, yaw, clearance_m=0.05)
        yield from motion.grip(self.robot.gripper.closed)
        yield from motion.move(np.array([*goal, block[2] + 0.001]))
        yield from motion.grip(motion.wide)

    def _reach_m(self, worlds: Worlds) -> np.ndarray:
        return rewards.length(worlds.tool_m - worlds.body_pos_m("block"))

    def _left_m(self, worlds: Worlds) -> np.ndarray:
        offset = worlds.body_pos_m("block") - worlds.episode.disc_m
        return rewards.length(offset[:, :2])
