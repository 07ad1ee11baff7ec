"""Pick and place: take the cube of the colour that is named, put it on the tray and let go."""

import dataclasses
from collections.abc import Iterator

import mujoco
import numpy as np

from sim.core import layout, rewards
from sim.core.task import Unlocked, World, Worlds
from sim.experts import skills
from sim.experts.motions import Motion
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

WORDINGS = (
    "put the {} cube on the tray",
    "pick up the {} cube and place it on the white tray",
    "move the {} block to the tray and let go",
    "take the {} cube, then set it down on the tray",
    "place the {} block on the white square",
)
HALF_M = 0.018
TRAY_HALF_M = 0.05
TRAY_TOP_M = 0.002
APART_M = 0.1
LIFT_M = 0.04
CUBES = ("cube", "other_cube")
STAGES = (0.2, 0.15, 0.15, 0.3, 0.1)
"""Weights of reach, grasp, lift, transport and place; the rest is release."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How hard it is."""

    distractors: int = 0
    """Cubes of another colour, 0 or 1."""
    yaw_rad: float = 0.3
    """Largest rotation of a cube against the table's edges."""

    def build(self, robot: RobotSpec) -> "PickPlace":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        if self.distractors not in (0, 1):
            raise ValueError(f"distractors: got {self.distractors}, expected 0 or 1")
        if not 0.0 <= self.yaw_rad <= np.pi:
            raise ValueError(f"yaw_rad: got {self.yaw_rad}, expected 0 to pi")
        return PickPlace(self, robot)


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """What happens in one episode; in many, with a leading axis on every field."""

    tray_m: np.ndarray
    """Centre of the tray on the table, shape (3,)."""
    reach_m: Array
    """Distance of the tool from the cube at the start."""
    carry_m: Array
    """Horizontal distance of the cube from the tray at the start."""


class PickPlace(Unlocked[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = tuple(w.format(c) for c in layout.COLOURS for w in WORDINGS)
    max_episode_steps = 100

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        super().__init__(config, robot)
        wrong = ("wrong_object",) if config.distractors else ()
        self.variants = ("drop", "slip", "undo", *wrong, "near_miss", "overshoot", "hover")

    def build(self, scene: mujoco.MjSpec) -> None:
        """Add the tray and the cubes."""
        box = mujoco.mjtGeom.mjGEOM_BOX
        rim = TRAY_HALF_M + 0.006
        layout.add_mark(scene, "rim", box, (rim, rim, 0.0008), rgba=(0.1, 0.1, 0.12, 1))
        size = (TRAY_HALF_M, TRAY_HALF_M, TRAY_TOP_M)
        layout.add_mark(scene, "tray", box, size, rgba=(0.97, 0.97, 0.97, 1))
        for name in CUBES[: 1 + self.config.distractors]:
            layout.add_block(scene, name, HALF_M, 0.04)

    def reset(self, world: World) -> None:
        """Draw places, turns, colours and wording."""
        rng = world.rng
        count = 1 + self.config.distractors
        places = layout.draw_separated(rng, self.robot, 1 + count, APART_M)
        tray = np.array([*places[0], 0.0])
        layout.place(world, "tray", tray)
        layout.place(world, "rim", tray)
        colours = [str(c) for c in rng.permutation(list(layout.COLOURS))[:count]]
        turns = rng.uniform(-self.config.yaw_rad, self.config.yaw_rad, size=count)
        for name, xy, turn, colour in zip(CUBES, places[1:], turns, colours, strict=False):
            layout.place(world, name, np.array([*xy, HALF_M]), turn)
            layout.paint(world, name, colour)
        mujoco.mj_forward(world.model, world.data)
        tool = world.data.site_xpos[world.tool_site]
        world.episode = Episode(
            tray_m=tray,
            reach_m=float(np.linalg.norm(tool - layout.block_pos_m(world, CUBES[0]))),
            carry_m=float(np.linalg.norm(places[0] - places[1])),
        )
        world.instruction = str(rng.choice(WORDINGS)).format(colours[0])

    def success(self, worlds: Worlds) -> np.ndarray:
        """True once the cube rests on the tray, touched by nothing of the arm."""
        on_tray = self._on_tray(worlds)
        if not on_tray.any():
            return on_tray
        return (
            on_tray
            & (worlds.body_pos_m(CUBES[0])[:, 2] < HALF_M + 0.004)
            & (worlds.body_speed_m_s(CUBES[0]) < 0.03)
            & (worlds.touching(CUBES[0]) == 0)
        )

    def failure(self, worlds: Worlds) -> np.ndarray:
        """True if the cube is off the table."""
        return worlds.body_pos_m(CUBES[0])[:, 2] < -0.02

    def referents(self, worlds: Worlds) -> np.ndarray:
        """See `sim.core.task.HasReferents`."""
        return np.stack([worlds.body_pos_m(CUBES[0]), worlds.episode.tray_m], 1)

    def progress(self, worlds: Worlds) -> np.ndarray:
        """Reach, grasp, lift, transport, place, release; below 1 until success."""
        episode = worlds.episode
        cube = worlds.body_pos_m(CUBES[0])
        height = np.clip((cube[:, 2] - HALF_M) / LIFT_M, 0.0, 1.0)
        on_tray, held = self._on_tray(worlds), worlds.touching(CUBES[0]) >= 2
        near = rewards.share_done(rewards.length(worlds.tool_m - cube), episode.reach_m)
        part = np.where(on_tray, sum(STAGES) + 0.05 * (1.0 - height), STAGES[0] * near)
        if held.any():
            left = rewards.length((cube - episode.tray_m)[:, :2]) - TRAY_HALF_M
            way = rewards.share_done(left, episode.carry_m - TRAY_HALF_M)
            lifted, there = np.where(on_tray, 1.0, (height, way * height))
            down = np.where(on_tray, 1.0 - height, 0.0)
            part[held] = rewards.staged((1.0, 1.0, lifted, there, down), STAGES)[held]
        part[self.success(worlds)] = 1.0
        return part

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Pick, carry, place, release; the variants go wrong at the point their name says."""
        motion = Motion(world)
        rng = world.rng
        cube = CUBES[int(variant == "wrong_object")]
        if variant == "hover":
            motion.opening = motion.wide
            above = layout.block_pos_m(world, cube)
            above[2] = HALF_M + rng.uniform(0.045, 0.06)
            yield from motion.hover(above)
            return
        if variant == "expert":
            for _ in range(skills.ATTEMPTS):
                yield from skills.put(
                    motion, cube, world.episode.tray_m, half_m=HALF_M, lift_m=LIFT_M
                )
            return
        yield from self._pick(motion, cube)
        goal = world.episode.tray_m.copy()
        start = layout.block_pos_m(world, cube)
        way = (goal - start) * (1, 1, 0)
        way /= max(float(np.linalg.norm(way)), 1e-6)
        if variant == "near_miss":
            goal = goal - way * (TRAY_HALF_M + HALF_M + rng.uniform(0.004, 0.015))
        if variant in ("drop", "slip"):
            share = rng.uniform(0.0, 1.0 if variant == "drop" else 0.1)
            # Far enough from the tray that it cannot land on it by luck.
            far = max(float(np.linalg.norm((goal - start)[:2])) - TRAY_HALF_M * 1.5 - HALF_M, 0.0)
            yield from self._lose(motion, start + share * far * way, goal, variant)
            return
        if variant == "overshoot":
            yield from self._carry(motion, layout.within_reach(self.robot, goal + 0.07 * way))
        yield from self._carry(motion, goal)
        yield from self._place(motion, goal)
        if variant == "undo":
            yield from self._pick(motion, cube)
            yield from self._carry(motion, start)
            yield from self._place(motion, start)

    def _pick(self, motion: Motion, cube: str) -> Iterator[np.ndarray]:
        return skills.pick(motion, cube, lift_m=LIFT_M)

    def _carry(self, motion: Motion, goal: np.ndarray) -> Iterator[np.ndarray]:
        return skills.carry(motion, goal, height_m=HALF_M + LIFT_M)

    def _place(self, motion: Motion, goal: np.ndarray) -> Iterator[np.ndarray]:
        return skills.place(motion, goal, half_m=HALF_M, up_m=LIFT_M)

    def _lose(
        self, motion: Motion, where: np.ndarray, goal: np.ndarray, variant: str
    ) -> Iterator[np.ndarray]:
        """Let go in mid-air: stop there ("drop"), or go on as if nothing had happened ("slip")."""
        yield from self._carry(motion, where * (1, 1, 0))
        if variant == "drop":
            yield from motion.grip(motion.wide)
            yield from motion.wait(8)
            return
        motion.opening = motion.opened(0.6)
        yield from motion.wait(2)
        yield from self._carry(motion, goal)
        yield from motion.move(goal + (0.0, 0.0, HALF_M))
        yield from motion.wait(4)

    def _on_tray(self, worlds: Worlds) -> np.ndarray:
        offset = worlds.body_pos_m(CUBES[0]) - worlds.episode.tray_m
        return np.abs(offset[:, :2]).max(1) < TRAY_HALF_M
