"""sequence: a lamp shows colours one after another; later the buttons are pressed in that order.

n of K colours show, none twice, so there are K! / (K - n)! orders, all equally likely. From go on
everything observed is drawn independently of the order, and nothing tells whether a press was right
but that the episode goes on: that the first presses were right says nothing of those to come. So
without memory no policy is right more often than (K - n)! / K! (see `sim/tasks/_lock.py`).
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.core import rewards
from sim.core.task import Rows, World, Worlds
from sim.tasks import _buttons, _lock
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

INSTRUCTIONS = (
    "press the buttons in the order in which the lamp showed their colours",
    "push the buttons in the sequence the light had",
    "repeat the lamp's colours on the buttons, first to last",
    "remember the order of the colours, then touch the buttons in it",
    "hit the buttons one after another as the light changed",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_lock.MemoryTaskConfig):
    """Length, delay, distractors and number of choices."""

    length: int = 3
    """Number n of colours that the lamp shows, 2 to K."""
    choices: int = 4
    """Number K of colours and buttons, 2 to 8."""
    cue_steps: int = 16
    """Control steps for which the lamp shows each colour, at least 16."""
    delay_steps: tuple[int, int] = (16, 128)
    """Smallest and largest delay (log-uniform) in control steps."""
    act_steps: int = 45
    """Control steps for each press, on average."""

    @property
    def ceiling(self) -> float:
        """Highest success of any policy without memory."""
        return 1 / math.perm(self.choices, self.length)

    def build(self, robot: RobotSpec) -> "Sequence":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        self.check_choices()
        if not 2 <= self.length <= self.choices:
            raise ValueError(f"length: got {self.length}, expected 2 to choices={self.choices}")
        if self.delay_steps[1] == 0:
            raise ValueError("delay_steps: got 0 0, but colours that follow each other go out")
        self.check_timing()
        return Sequence(self, robot)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episode(_buttons.Episode):
    """What happens in one episode; in many, with a leading axis on every field."""

    order: np.ndarray
    """Colour indices in the order in which the lamp shows them, i64, shape (n,)."""
    pressed: Array = 0
    """How many of the order have been pressed rightly."""
    wrong: Array = False
    """Whether any other button has been pressed."""


class Sequence(_buttons.ButtonTask[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS
    variants = ("wrong_object", "near_miss", "hover")

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        steps = config.length * config.cue_steps
        super().__init__(config, robot, cue_steps=steps, colours=config.choices)
        self.max_episode_steps += (config.length - 1) * config.act_steps

    def reset(self, world: World) -> None:
        """Draw order, times and the layout at go, each independent of the others."""
        config, rng = self.config, world.rng
        order = rng.permutation(config.choices)[: config.length]
        steps = config.length * config.cue_steps
        schedule = _lock.draw_schedule(rng, config, cue_steps=steps, colours=config.choices)
        buttons = _buttons.draw(rng, self.robot, config.choices)
        world.episode = Episode(order=order, schedule=schedule, buttons_m=buttons)
        world.instruction = INSTRUCTIONS[int(rng.integers(len(INSTRUCTIONS)))]
        world.time_limit = schedule.go + config.length * config.act_steps
        self.show_cue(world.as_batch, True)

    def advance(self, worlds: Worlds) -> None:
        """Keep the lock, light the lamps, show the buttons at go, then watch the presses."""
        go = worlds.episode.schedule.go
        until_go, at_go = worlds.steps <= go, worlds.steps == go
        if not until_go.all():
            self._watch(worlds, ~until_go)
        self.hold(worlds, until_go, at_go)

    def success(self, worlds: Worlds) -> np.ndarray:
        """True if all of the order have been pressed, and nothing else."""
        return (worlds.episode.pressed == self.config.length) & ~worlds.episode.wrong

    def failure(self, worlds: Worlds) -> np.ndarray:
        """True if a button was pressed out of order."""
        return worlds.episode.wrong.copy()

    def progress(self, worlds: Worlds) -> np.ndarray:
        """0 until go, then right presses and the share of the way to the next; 0 after a wrong one.

        Below 0.95 until success.
        """
        episode = worlds.episode
        way = rewards.share_done(self.distance_m(worlds), episode.start_distance_m)
        done = (episode.pressed + way) / self.config.length
        nothing = (worlds.steps < episode.schedule.go) | episode.wrong
        return np.where(self.success(worlds), 1.0, np.where(nothing, 0.0, 0.95 * done))

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Wait for go, then press in order; the variants end with a wrong press or without one."""
        episode = world.episode
        yield from self.wait(world)
        motion = _buttons.motion(world, self.config.choices)
        *begun, last = episode.buttons_m[episode.order]
        if variant == "expert":
            begun.append(last)
        elif variant == "wrong_object":
            begun[-1] = last  # before its turn
        for button in begun:
            yield from motion.press(button)
            yield from motion.move(
                button + (0.0, 0.0, _buttons.RAISED_M), tolerance_m=0.012, max_steps=12
            )
        if variant == "hover":
            yield from motion.hover(last + (0.0, 0.0, _buttons.RAISED_M), max_steps=12)
        elif variant == "near_miss":
            beside = last * (1.0 + 0.055 / np.linalg.norm(last[:2]))
            yield from motion.press(beside, clearance_m=0.06)
            yield from motion.wait(4)

    def _watch(self, worlds: Worlds, rows: np.ndarray) -> None:
        """Count right presses; a button that was pressed rightly may be touched again."""
        episode = worlds.episode
        touched = _buttons.touched(worlds, episode.buttons_m) & rows[:, None]
        place = np.argmax(episode.order[:, :, None] == np.arange(self.config.choices), axis=1)
        shown = (episode.order[:, :, None] == np.arange(self.config.choices)).any(1)
        place = np.where(shown, place, self.config.choices)
        ahead = touched & (place > episode.pressed[:, None])
        right = (touched & (place == episode.pressed[:, None])).any(1)
        episode.wrong[:] |= ahead.any(1)
        episode.pressed[:] += right & ~episode.wrong
        if right.any():
            episode.start_distance_m[right] = self.distance_m(worlds)[right]

    def show_cue(self, worlds: Worlds, rows: Rows) -> None:
        """Light the lamp in the present colour of the order, and the side lamp in others."""
        since = worlds.steps - worlds.episode.schedule.cue_start
        item = np.clip(since // self.config.cue_steps, 0, self.config.length - 1)
        _lock.show_colour(worlds, rows, self._palette[_lock.cued(worlds.episode.order, item)])
        _lock.flash(worlds, rows, self._palette)

    def right(self, episode: Any) -> Any:
        """Return the button that is to be pressed next, or was last."""
        item = np.minimum(episode.pressed, self.config.length - 1)[..., None]
        return np.take_along_axis(episode.order, item, axis=-1)[..., 0]
