"""Reach: bring the tool to the ball of the colour that is named and hold it there."""

import dataclasses
from collections.abc import Iterator

import mujoco
import numpy as np

from sim.core import layout, rewards
from sim.core.task import Unlocked, World, Worlds
from sim.experts.motions import Motion
from vla.contracts.config import PluginConfig
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

WORDINGS = (
    "reach the {} ball",
    "move the gripper to the {} ball",
    "touch the {} sphere and stay there",
    "go to the {} ball and hold still",
    "bring your fingertips to the {} ball",
)
RADIUS_M = 0.022
APART_M = 0.09
HOLD_STEPS = 3
OVERSHOOT_M = 0.06
BALLS = ("ball", "other_ball")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """How hard it is."""

    distractors: int = 1
    """Balls of another colour, 0 or 1."""
    tolerance_m: float = 0.02
    """Largest distance of the tool from the centre of the ball."""

    def build(self, robot: RobotSpec) -> "Reach":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        if self.distractors not in (0, 1):
            raise ValueError(f"distractors: got {self.distractors}, expected 0 or 1")
        if self.tolerance_m <= 0.0:
            raise ValueError(f"tolerance_m: got {self.tolerance_m}, expected more than 0")
        return Reach(self, robot)


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """What happens in one episode; in many, with a leading axis on every field."""

    balls_m: np.ndarray
    """Where the balls are, the right one first, shape (balls, 3)."""
    start_m: Array
    """Distance of the tool from the right ball at the start."""
    held: Array = 0
    """Control steps for which the tool has been at the ball."""


class Reach(Unlocked[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = tuple(w.format(c) for c in layout.COLOURS for w in WORDINGS)
    max_episode_steps = 40

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        super().__init__(config, robot)
        wrong = ("wrong_object",) if config.distractors else ()
        self.variants = ("undo", *wrong, "near_miss", "overshoot", "hover")

    def build(self, scene: mujoco.MjSpec) -> None:
        """Add the balls."""
        for name in BALLS[: 1 + self.config.distractors]:
            layout.add_mark(scene, name, mujoco.mjtGeom.mjGEOM_SPHERE, (RADIUS_M, 0.0, 0.0))

    def reset(self, world: World) -> None:
        """Draw places, colours and wording."""
        rng = world.rng
        count = 1 + self.config.distractors
        heights = rng.uniform(RADIUS_M, 0.09, size=(count, 1))
        balls = np.hstack([layout.draw_separated(rng, self.robot, count, APART_M), heights])
        colours = rng.permutation(list(layout.COLOURS))[:count]
        for name, pos, colour in zip(BALLS, balls, colours, strict=False):
            layout.place(world, name, pos)
            layout.paint(world, name, str(colour))
        mujoco.mj_forward(world.model, world.data)
        start = float(np.linalg.norm(world.data.site_xpos[world.tool_site] - balls[0]))
        world.episode = Episode(balls_m=balls, start_m=start)
        world.instruction = str(rng.choice(WORDINGS)).format(colours[0])

    def advance(self, worlds: Worlds) -> None:
        """Count the steps spent at the ball."""
        inside = self._distance_m(worlds) <= self.config.tolerance_m
        held = worlds.episode.held
        held[:] = np.where(inside, held + 1, 0)

    def success(self, worlds: Worlds) -> np.ndarray:
        """True once the tool has stayed at the ball."""
        return worlds.episode.held >= HOLD_STEPS

    def referents(self, worlds: Worlds) -> np.ndarray:
        """See `sim.core.task.HasReferents`."""
        ball = worlds.episode.balls_m[:, 0]
        return np.stack([ball, ball], 1)

    def progress(self, worlds: Worlds) -> np.ndarray:
        """Distance up to 0.9, then the time held."""
        episode = worlds.episode
        way = rewards.share_done(self._distance_m(worlds), episode.start_m)
        part = rewards.staged((way, episode.held / HOLD_STEPS), (0.9, 0.1))
        return np.where(self.success(worlds), 1.0, part)

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Go to the ball and stay; or beside it, past it, above it, away again, to the other."""
        motion = Motion(world)
        # An open hand hides less of the ball.
        motion.opening = self.robot.gripper.open
        ball = world.episode.balls_m[int(variant == "wrong_object")]
        away = ball - motion.tool_m
        away[2] = 0.0
        away /= max(float(np.linalg.norm(away)), 1e-6)
        if variant == "overshoot":
            beyond = ball + OVERSHOOT_M * away
            if np.linalg.norm(beyond[:2]) > self.robot.reach_m[1]:
                # No room behind the ball: miss it to the side.
                beyond = ball + OVERSHOOT_M * np.array([-away[1], away[0], 0.0])
            yield from motion.move(beyond, tolerance_m=0.01, max_steps=20)
        elif variant == "near_miss":
            ball = ball - self.config.tolerance_m * world.rng.uniform(1.6, 2.2) * away
        elif variant == "hover":
            ball = ball + np.array([0.0, 0.0, world.rng.uniform(0.05, 0.07)])
        yield from motion.move(ball)
        for _ in range(HOLD_STEPS + 3):
            yield motion.toward(ball)
        if variant == "undo":
            yield from motion.move(ball - 0.08 * away + np.array([0.0, 0.0, 0.04]))
            yield from motion.wait(4)

    def _distance_m(self, worlds: Worlds) -> np.ndarray:
        return rewards.length(worlds.tool_m - worlds.episode.balls_m[:, 0])
