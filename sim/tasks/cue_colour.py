"""T1 cue_colour: a lamp shows a colour, goes out, and later the button of that colour is pressed.

Without memory no policy is right more often than 1/K: from go on, everything observed is drawn
independently of the cue (see `sim/tasks/_lock.py`), and the first touch decides.
"""

import dataclasses
from collections.abc import Iterator

import mujoco
import numpy as np

from sim.core import rewards
from sim.core.task import Rows, World, Worlds
from sim.tasks import _buttons, _lock
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

INSTRUCTIONS = (
    "press the button that has the colour the lamp showed",
    "touch the button in the same colour as the light you saw",
    "remember the lamp's colour, then push the matching button",
    "push the button whose colour the lamp had before it went out",
    "hit the button that matches the signal",
    "which colour did the light have? press that button",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_lock.MemoryTaskConfig):
    """Delay, distractors and number of choices."""

    choices: int = 4
    """Number K of colours and buttons, 2 to 8; 1/K is the ceiling without memory."""
    cue_steps: int = 16
    """Control steps for which the lamp shows its colour, at least 16."""

    def build(self, robot: RobotSpec) -> "CueColour":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        if not 2 <= self.choices <= len(_lock.PALETTE):
            raise ValueError(f"choices: got {self.choices}, expected 2 to {len(_lock.PALETTE)}")
        self.check_timing()
        return CueColour(self, robot)


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """What happens in one episode; in many, with a leading axis on every field."""

    cue: Array
    """Index of the lamp's colour."""
    schedule: _lock.Schedule
    """When cue, distractors and go come."""
    buttons_m: np.ndarray
    """Where each colour's button will stand at go, shape (K, 3)."""
    touched: np.ndarray
    """Which buttons were touched first, bool, shape (K,): a single one in practice."""
    start_distance_m: Array = 1.0
    """Distance of the tool from the right button at go."""


class CueColour(_lock.LockedTask[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS
    variants = ("wrong_object", "near_miss", "hover")

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        super().__init__(config, robot, cue_steps=config.cue_steps, colours=config.choices)

    def build(self, scene: mujoco.MjSpec) -> None:
        """Add lamp, side lamp and buttons; buttons wait under the floor."""
        _lock.add_cue_lamp(scene, self.robot)
        _lock.add_side_lamp(scene, self.robot)
        _buttons.add(scene, self._palette)

    def reset(self, world: World) -> None:
        """Draw cue, times and the layout at go, one independent of the other."""
        config, rng = self.config, world.rng
        cue = int(rng.integers(config.choices))
        schedule = _lock.draw_schedule(
            rng, config, cue_steps=config.cue_steps, colours=config.choices
        )
        buttons = _buttons.draw(rng, self.robot, config.choices)
        nothing = np.zeros(config.choices, np.bool_)
        world.episode = Episode(cue, schedule, buttons, nothing)
        world.instruction = INSTRUCTIONS[int(rng.integers(len(INSTRUCTIONS)))]
        world.time_limit = schedule.go + config.act_steps
        self._light(world.as_batch, True)

    def advance(self, worlds: Worlds) -> None:
        """Keep the lock, light the lamps, show the buttons at go, then watch for a touch."""
        episode, go = worlds.episode, worlds.episode.schedule.go
        until_go, at_go = worlds.steps <= go, worlds.steps == go
        if not until_go.all():
            watched = ~until_go & ~episode.touched.any(1)
            episode.touched[watched] = _buttons.touched(worlds, episode.buttons_m)[watched]
        if until_go.any():
            worlds.hold_home(until_go)
            self._light(worlds, until_go)
            if at_go.any():
                self._go(worlds, at_go)
            worlds.refresh()

    def success(self, worlds: Worlds) -> np.ndarray:
        """True if the first button touched has the cue's colour."""
        touched = worlds.episode.touched
        if not touched.any():
            return np.zeros(len(touched), np.bool_)
        return _lock.cued(touched, worlds.episode.cue) & (touched.sum(1) == 1)

    def failure(self, worlds: Worlds) -> np.ndarray:
        """True if any other button was touched first, or with it."""
        decided = worlds.episode.touched.any(1)
        return decided & ~self.success(worlds) if decided.any() else decided

    def referents(self, worlds: Worlds) -> np.ndarray:
        """See `sim.core.task.HasReferents`."""
        button = _lock.cued(worlds.episode.buttons_m, worlds.episode.cue)
        return _lock.after_go(worlds, np.stack([button, button], 1))

    def progress(self, worlds: Worlds) -> np.ndarray:
        """0 until go, then the share of the way to the right button, below 0.95 until success."""
        episode = worlds.episode
        nothing = (worlds.steps < episode.schedule.go) | self.failure(worlds)
        if nothing.all():
            return np.zeros(len(nothing))
        way = rewards.share_done(self._distance_m(worlds), episode.start_distance_m)
        return np.where(self.success(worlds), 1.0, np.where(nothing, 0.0, 0.95 * way))

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Wait for go, then press the right button; the variants press wrong or not at all."""
        episode = world.episode
        yield from self.wait(world)
        motion = _buttons.motion(world, self.config.choices)
        target = (episode.cue + (variant == "wrong_object")) % self.config.choices
        button = episode.buttons_m[target]
        if variant == "hover":
            above = button + (0.0, 0.0, 0.05)
            yield from motion.hover(above, max_steps=12)
        elif variant == "near_miss":
            # Miss it on the far side: its neighbours stand to the left and right.
            beside = button * (1.0 + 0.055 / np.linalg.norm(button[:2]))
            yield from motion.press(beside, clearance_m=0.06)
            yield from motion.wait(4)
        else:
            yield from motion.press(button)

    def _go(self, worlds: Worlds, rows: np.ndarray) -> None:
        """Set everything to a state in which only the layout differs between episodes."""
        worlds.go_home(rows)
        _buttons.show(worlds, rows, worlds.episode.buttons_m)
        worlds.episode.start_distance_m[rows] = self._distance_m(worlds)[rows]

    def _light(self, worlds: Worlds, rows: Rows) -> None:
        episode, schedule = worlds.episode, worlds.episode.schedule
        lit = (schedule.cue_start <= worlds.steps) & (worlds.steps < schedule.cue_end)
        rgb = np.where(lit[:, None], self._palette[episode.cue], _lock.OFF_RGB)
        worlds.paint("lamp", rows, rgb)
        _lock.flash(worlds, rows, self._palette)

    def _distance_m(self, worlds: Worlds) -> np.ndarray:
        """Return the distance of the tool from the right button, f64 [n]."""
        return _buttons.distance_m(worlds, _lock.cued(worlds.episode.buttons_m, worlds.episode.cue))
