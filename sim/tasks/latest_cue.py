"""latest_cue: a lamp shows one colour after another; the button of the last one is to be pressed.

What was remembered has to be replaced: every colour but the last is wrong. Each is drawn anew from
all K, independently of the others, of how many there are and of everything seen from go on: without
memory no policy is right more often than 1/K (see `sim/tasks/_lock.py`), and the first touch
decides.
"""

import dataclasses
from typing import Any

import numpy as np

from sim.core.task import Rows, World, Worlds
from sim.tasks import _buttons, _lock
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

INSTRUCTIONS = (
    "press the button of the colour the lamp showed last",
    "touch the button in the latest colour of the light",
    "the lamp changes: only its last colour counts, push that button",
    "push the button whose colour the lamp had at the end",
    "forget the earlier colours and press the final one",
)
MAX_CUES = 100


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_lock.MemoryTaskConfig):
    """Number of colours shown, delay, distractors and number of choices."""

    cues: tuple[int, int] = (1, 5)
    """Smallest and largest number of colours that the lamp shows."""
    delay_steps: tuple[int, int] = (16, 128)
    """Smallest and largest delay (log-uniform) in control steps, after the last colour."""
    cue_steps: int = 16
    """Control steps for which the lamp shows a colour, and of the pause before the next, at least
    16."""

    def build(self, robot: RobotSpec) -> "LatestCue":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        self.check_choices()
        low, high = self.cues
        if not 1 <= low <= high <= MAX_CUES:
            raise ValueError(f"cues: got {low} {high}, expected 1 <= min <= max <= {MAX_CUES}")
        self.check_timing()
        return LatestCue(self, robot)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episode(_buttons.TouchEpisode):
    """What happens in one episode; in many, with a leading axis on every field."""

    shown: np.ndarray
    """Index of the colour that the lamp shows each time, i64, shape (largest number of cues,)."""
    count: Array
    """Number of colours shown."""


class LatestCue(_buttons.FirstTouch[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        longest = config.steps_of(config.cues[1])
        super().__init__(config, robot, cue_steps=longest, colours=config.choices)

    def reset(self, world: World) -> None:
        """Draw colours, their number, times and the layout at go, one independent of the other."""
        config, rng = self.config, world.rng
        low, high = config.cues
        shown = rng.integers(config.choices, size=high)
        count = int(rng.integers(low, high + 1))
        drawn = self.draw(rng, config.steps_of(count))
        self.begin(world, Episode(shown=shown, count=count, **drawn))

    def right(self, episode: Any) -> Any:
        """Return the colour that the lamp showed last."""
        last = np.asarray(episode.count)[..., None] - 1
        return np.take_along_axis(episode.shown, last, axis=-1)[..., 0]

    def show_cue(self, worlds: Worlds, rows: Rows) -> None:
        """Light the lamp in the present colour, and the side lamp in others."""
        episode, period = worlds.episode, self.config.period_steps
        since = np.maximum(worlds.steps - episode.schedule.cue_start, 0)
        number = np.minimum(since // period, episode.count - 1)
        # No pause follows the last colour, which stays where the cue never ends.
        shines = (since % period < self.config.cue_steps) | (number == episode.count - 1)
        lit = _lock.cue_lasts(worlds) & shines
        rgb = self._palette[_lock.cued(episode.shown, number)]
        worlds.paint("lamp", rows, np.where(lit[:, None], rgb, _lock.OFF_RGB))
        _lock.flash(worlds, rows, self._palette)
