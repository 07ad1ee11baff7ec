"""put_back: a block is taken from its place to the centre; later the arm puts it back there.

Without memory no policy is right more often than 1/K: the block's place is drawn independently of
everything seen from go on (see `sim/tasks/_lock.py`), and the first place it is set down decides.
"""

import dataclasses
from collections.abc import Iterator

import mujoco
import numpy as np

from sim.core import layout, rewards
from sim.core.task import Rows, World, Worlds
from sim.experts.motions import Motion, grasp_yaw
from sim.tasks import _lock
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

INSTRUCTIONS = (
    "put the block back where it came from",
    "return the block to the place it was shown at",
    "remember where the block was, then put it back there",
    "take the block back to its old place",
    "place the block on the spot it was on before",
)
HALF_M = 0.018
BLOCK_RGBA = (0.12, 0.25, 0.92, 1.0)
PLACE_RADIUS_M = 0.036
PLACE_BORDER_M = 0.005
SPACING_M = 0.088
JITTER_M = 0.005
SET_DOWN_M = 0.006
LIFT_M = 0.04
CARRY_STEPS = 8
CARRY_HEIGHT_M = 0.06
STAGES = (0.2, 0.15, 0.15, 0.3, 0.1)
"""Weights of reach, grasp, lift, transport and place; the rest is release."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_lock.MemoryTaskConfig):
    """Delay, distractors and number of choices."""

    choices: int = 4
    """Number K of places, 2 to 5; 1/K is the ceiling without memory."""
    delay_steps: tuple[int, int] = (16, 128)
    """Smallest and largest delay (log-uniform) in control steps."""
    act_steps: int = 100
    """Control steps from go to the time limit."""

    def build(self, robot: RobotSpec) -> "PutBack":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        if not 2 <= self.choices <= 5:
            raise ValueError(f"choices: got {self.choices}, expected 2 to 5")
        if self.delay_steps[1] == 0:
            raise ValueError("delay_steps: got 0 0, but a block that stays in place is no task")
        self.check_timing()
        return PutBack(self, robot)


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """What happens in one episode; in many, with a leading axis on every field."""

    cue: Array
    """Index of the block's original place."""
    schedule: _lock.Schedule
    """When the block is shown at its place, when distractors and go come."""
    places_m: np.ndarray
    """Centres of the places on the table, shape (K, 3)."""
    centre_m: np.ndarray
    """Where the block stands but while it is shown, shape (3,)."""
    yaw_rad: Array
    """Rotation of the block."""
    chosen: Array = -1
    """Index of the first place on which the block was set down after go; -1 before."""
    reach_m: Array = 1.0
    """Distance of the tool from the block at go."""


class PutBack(_lock.LockedTask[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS
    variants = ("drop", "wrong_object", "hover")

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        super().__init__(config, robot, cue_steps=config.cue_steps + 2 * CARRY_STEPS, colours=4)

    def build(self, scene: mujoco.MjSpec) -> None:
        """Add the places, the block and the side lamp."""
        disc = mujoco.mjtGeom.mjGEOM_CYLINDER
        for k in range(self.config.choices):
            rim = (PLACE_RADIUS_M + PLACE_BORDER_M, 0.0008, 0.0)
            layout.add_mark(scene, f"rim{k}", disc, rim, rgba=(0.1, 0.1, 0.12, 1))
            place = (PLACE_RADIUS_M, 0.0016, 0.0)
            layout.add_mark(scene, f"place{k}", disc, place, rgba=(0.95, 0.95, 0.95, 1))
        layout.add_block(scene, "block", HALF_M, 0.04)
        scene.geom("block").rgba = BLOCK_RGBA
        _lock.add_side_lamp(scene, self.robot)

    def reset(self, world: World) -> None:
        """Draw the block's place, times and layout, one independent of the other."""
        config, rng = self.config, world.rng
        cue = int(rng.integers(config.choices))
        schedule = _lock.draw_schedule(
            rng, config, cue_steps=config.cue_steps + 2 * CARRY_STEPS, colours=len(self._palette)
        )
        near, far = self.robot.reach_m
        places = _lock.arc(rng, near + 0.9 * (far - near), config.choices, SPACING_M, JITTER_M)
        centre = np.array([near + 0.15 * (far - near), 0.0, HALF_M])
        centre[:2] += rng.uniform(-JITTER_M, JITTER_M, size=2)
        yaw_rad = float(rng.uniform(-0.3, 0.3))
        world.episode = Episode(cue, schedule, places, centre, yaw_rad)
        world.instruction = INSTRUCTIONS[int(rng.integers(len(INSTRUCTIONS)))]
        world.time_limit = schedule.go + config.act_steps
        self._furnish(world.as_batch, True)
        self._show(world.as_batch, True)

    def advance(self, worlds: Worlds) -> None:
        """Keep the lock and carry the block until go, then watch where it is set down."""
        episode, go = worlds.episode, worlds.episode.schedule.go
        until_go, at_go = worlds.steps <= go, worlds.steps == go
        if not until_go.all():
            watched = ~until_go & (episode.chosen < 0)
            episode.chosen[watched] = self._set_down(worlds)[watched]
        if until_go.any():
            before_go = until_go & ~at_go
            worlds.hold_home(before_go)
            self._show(worlds, before_go)
            if at_go.any():
                self._go(worlds, at_go)
            worlds.refresh()

    def success(self, worlds: Worlds) -> np.ndarray:
        """True once the block lies on its original place, untouched, and was on no other before."""
        cue = worlds.episode.cue
        chosen = worlds.episode.chosen == cue
        if not chosen.any():
            return chosen
        return (
            chosen
            & (self._set_down(worlds) == cue)
            & (worlds.body_speed_m_s("block") < 0.03)
            & (worlds.touching("block") == 0)
        )

    def failure(self, worlds: Worlds) -> np.ndarray:
        """True if the block was set down on another place, or is off the table."""
        chosen = worlds.episode.chosen
        off = worlds.body_pos_m("block")[:, 2] < -0.02
        return off | ((chosen >= 0) & (chosen != worlds.episode.cue))

    def referents(self, worlds: Worlds) -> np.ndarray:
        """See `sim.core.task.HasReferents`."""
        place = _lock.cued(worlds.episode.places_m, worlds.episode.cue)
        return _lock.after_go(worlds, np.stack([worlds.body_pos_m("block"), place], 1))

    def progress(self, worlds: Worlds) -> np.ndarray:
        """0 until go, then reach, grasp, lift, transport, place, release; below 1 until success."""
        episode = worlds.episode
        nothing = (worlds.steps < episode.schedule.go) | self.failure(worlds)
        if nothing.all():
            return np.zeros(len(nothing))
        block, place = worlds.body_pos_m("block"), _lock.cued(episode.places_m, episode.cue)
        height = np.clip((block[:, 2] - HALF_M) / LIFT_M, 0.0, 1.0)
        left = rewards.length((block - place)[:, :2])
        there, held = left < PLACE_RADIUS_M, worlds.touching("block") >= 2
        near = rewards.share_done(rewards.length(worlds.tool_m - block), episode.reach_m)
        part = np.where(there, sum(STAGES) + 0.05 * (1.0 - height), STAGES[0] * near)
        if held.any():
            start = rewards.length((episode.centre_m - place)[:, :2])
            way = rewards.share_done(left - PLACE_RADIUS_M, start - PLACE_RADIUS_M)
            lifted, carried = np.where(there, 1.0, (height, way * height))
            down = np.where(there, 1.0 - height, 0.0)
            part[held] = rewards.staged((1.0, 1.0, lifted, carried, down), STAGES)[held]
        part[nothing] = 0.0
        part[self.success(worlds)] = 1.0
        return part

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Wait for go, take the block, put it back; the variants go wrong as their names say."""
        episode = world.episode
        yield from self.wait(world)
        motion = Motion(world)
        motion.opening = motion.wide
        block = layout.block_pos_m(world, "block")
        yaw = grasp_yaw(block, layout.block_yaw_rad(world, "block"))
        if variant == "hover":
            above = block + (0.0, 0.0, 0.05)
            yield from motion.hover(above, yaw, max_steps=12)
            return
        yield from motion.move(block, yaw, clearance_m=0.05)
        yield from motion.grip(self.robot.gripper.closed)
        yield from motion.move(block + (0.0, 0.0, LIFT_M), tolerance_m=0.015)
        target = (episode.cue + (variant == "wrong_object")) % self.config.choices
        goal = episode.places_m[target] * (1.0, 1.0, 0.0)
        if variant == "drop":
            half_way = 0.5 * (block + goal) * (1.0, 1.0, 0.0)
            yield from motion.move(half_way + (0.0, 0.0, HALF_M + LIFT_M), tolerance_m=0.012)
            yield from motion.grip(motion.wide)
            yield from motion.wait(8)
            return
        yield from motion.move(goal + (0.0, 0.0, HALF_M + LIFT_M), tolerance_m=0.012)
        yield from motion.move(goal + (0.0, 0.0, HALF_M + 0.003))
        yield from motion.grip(motion.wide)
        yield from motion.move(goal + (0.0, 0.0, HALF_M + LIFT_M), tolerance_m=0.015)
        yield from motion.wait(2)

    def _go(self, worlds: Worlds, rows: np.ndarray) -> None:
        """Set everything to a state that does not depend on the block's original place."""
        worlds.go_home(rows)
        self._furnish(worlds, rows)
        centre_m = worlds.episode.centre_m
        worlds.place("block", rows, centre_m, worlds.episode.yaw_rad)
        _lock.flash(worlds, rows, self._palette)
        worlds.refresh()
        worlds.episode.reach_m[rows] = rewards.length(worlds.tool_m - centre_m)[rows]

    def _furnish(self, worlds: Worlds, rows: Rows) -> None:
        level = np.zeros(len(worlds.steps))
        for k in range(self.config.choices):
            for mark in (f"rim{k}", f"place{k}"):
                worlds.place(mark, rows, worlds.episode.places_m[:, k], level)

    def _show(self, worlds: Worlds, rows: Rows) -> None:
        """Put the block where the script of cue and delay has it now, exactly and at rest."""
        episode, schedule = worlds.episode, worlds.episode.schedule
        out = (worlds.steps - schedule.cue_start) / CARRY_STEPS
        back = (worlds.steps - schedule.cue_end) / CARRY_STEPS + 1.0
        share = np.clip(out, 0.0, 1.0) - np.clip(back, 0.0, 1.0)
        place = _lock.cued(episode.places_m, episode.cue) * (1.0, 1.0, 0.0) + (0.0, 0.0, HALF_M)
        pos_m = episode.centre_m + share[:, None] * (place - episode.centre_m)
        pos_m[:, 2] = HALF_M + CARRY_HEIGHT_M * 4.0 * share * (1.0 - share)
        worlds.place("block", rows, pos_m, episode.yaw_rad)
        _lock.flash(worlds, rows, self._palette)

    def _set_down(self, worlds: Worlds) -> np.ndarray:
        """Return the place on which each block lies now, or -1; i64 [n]."""
        block = worlds.body_pos_m("block")
        away = rewards.length((worlds.episode.places_m - block[:, None])[:, :, :2])
        lies = (block[:, 2] <= HALF_M + SET_DOWN_M) & (away.min(1) < PLACE_RADIUS_M)
        return np.where(lies, away.argmin(1), -1)
