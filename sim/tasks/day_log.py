"""day_log: over a long day buttons light up one after another; press the one that was third.

Grey buttons stand before the arm all day. At every event one of them lights up, drawn anew from all
K, so that the same may light up again. The instruction asks for the first, second or third event
of the day: those after it are what a memory must not overwrite it with. Which button an event
lights is drawn independently of all other events, of the instruction and of everything seen from go
on: without memory no policy is right more often than 1/K (see `sim/tasks/_lock.py`), and the first
touch decides.
"""

import dataclasses
from typing import Any

import numpy as np

from sim.core.task import Rows, World, Worlds
from sim.tasks import _buttons, _lock
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

ORDINALS = ("first", "second", "third")
PHRASES = (
    "press the button that lit up {}",
    "touch the button that was {} to light up",
    "which button came {} in the day? press it",
    "push the {} button that you saw light up",
)
INSTRUCTIONS = tuple(phrase.format(which) for which in ORDINALS for phrase in PHRASES)
LIT_RGB = np.array(_lock.PALETTE["yellow"])
COLOURS = 4
"""Of the side lamp."""
MAX_EVENTS = 1000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_lock.MemoryTaskConfig):
    """Length of the day, delay and distractors."""

    events: tuple[int, int] = (3, 8)
    """Smallest and largest number of events, at least 3."""
    delay_steps: tuple[int, int] = (16, 128)
    """Smallest and largest delay (log-uniform) in control steps, after the last event."""
    cue_steps: int = 16
    """Control steps of an event, and of the pause after it, at least 16."""

    def build(self, robot: RobotSpec) -> "DayLog":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        self.check_choices()
        low, high = self.events
        if not len(ORDINALS) <= low <= high <= MAX_EVENTS:
            raise ValueError(
                f"events: got {low} {high}, expected {len(ORDINALS)} <= min <= max <= {MAX_EVENTS}"
            )
        if self.delay_steps[1] == 0:
            raise ValueError("delay_steps: got 0 0, but the buttons go dark")
        self.check_timing()
        return DayLog(self, robot)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episode(_buttons.TouchEpisode):
    """What happens in one episode; in many, with a leading axis on every field."""

    order: np.ndarray
    """The button that lights up at each event, i64, shape (largest number of events,)."""
    count: Array
    """Number of events."""
    asked: Array
    """Index of the event whose button is right."""


class DayLog(_buttons.FirstTouch[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS
    has_lamp, button_rgb = False, _lock.OFF_RGB
    waits_in_view = True

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        longest = config.events[1] * config.period_steps
        super().__init__(config, robot, cue_steps=longest, colours=COLOURS)

    def reset(self, world: World) -> None:
        """Draw events, what is asked, times and places, each independent of the others."""
        config, rng = self.config, world.rng
        low, high = config.events
        order = rng.integers(config.choices, size=high)
        count = int(rng.integers(low, high + 1))
        number = int(rng.integers(len(INSTRUCTIONS)))
        drawn = self.draw(rng, count * config.period_steps)
        asked = number // len(PHRASES)
        self.begin(world, Episode(order=order, count=count, asked=asked, **drawn), number)

    def right(self, episode: Any) -> Any:
        """Return the button that lit up at the event that is asked for."""
        asked = np.asarray(episode.asked)[..., None]
        return np.take_along_axis(episode.order, asked, axis=-1)[..., 0]

    def show_cue(self, worlds: Worlds, rows: Rows) -> None:
        """Light up the button of the present event, and the side lamp in between."""
        episode, period = worlds.episode, self.config.period_steps
        since = worlds.steps - episode.schedule.cue_start
        event = np.clip(since // period, 0, episode.order.shape[1] - 1)
        lit = (since >= 0) & (since < episode.count * period) & (since % period < period // 2)
        button = _lock.cued(episode.order, event)
        for k in range(self.config.choices):
            shines = (lit & (button == k))[:, None]
            worlds.paint(f"button{k}", rows, np.where(shines, LIT_RGB, _lock.OFF_RGB))
        _lock.flash(worlds, rows, self._palette)
