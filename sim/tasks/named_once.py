"""named_once: words name the colours that a lamp shows; later the button of one name is asked for.

"This colour is called dax", says the instruction while the lamp is lit, once for each name; from go
on, "press the dax". So names have to be bound to what was seen when they were told. Colours are
drawn without repetition from all K, independently of the names, their order, which one is asked for
and everything seen from go on: without memory no policy is right more often than 1/K (see
`sim/tasks/_lock.py`), and the first touch decides.
"""

import dataclasses
from typing import Any

import numpy as np

from sim.core.task import Rows, World, Worlds
from sim.tasks import _buttons, _lock
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

NAMES = ("dax", "wug", "blick", "fep", "toma", "zib", "modi", "gazzer")
"""Words of studies of how children learn words."""
WAIT = ("wait", "watch the lamp and listen", "remember what you are told")
TELL = ("this colour is called {}", "look, that is {}", "the lamp shows {} now")
ASK = ("press the {} button", "touch the button that is {}", "which button is {}? push it")
INSTRUCTIONS = (
    *WAIT,
    *(sentence.format(name) for sentence in TELL for name in NAMES),
    *(sentence.format(name) for sentence in ASK for name in NAMES),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_lock.MemoryTaskConfig):
    """Number of names, delay, distractors and number of choices."""

    names: tuple[int, int] = (2, 3)
    """Smallest and largest number of colours that get a name."""
    delay_steps: tuple[int, int] = (16, 128)
    """Smallest and largest delay (log-uniform) in control steps, after the last name; with 0 0 the
    lamp shows the colour of the name that is asked for."""
    cue_steps: int = 16
    """Control steps for which the lamp shows a colour, and of the pause before the next, at least
    16."""

    def build(self, robot: RobotSpec) -> "NamedOnce":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        self.check_choices()
        low, high = self.names
        if not 1 <= low <= high <= self.choices:
            raise ValueError(
                f"names: got {low} {high}, expected 1 <= min <= max <= {self.choices}, the choices"
            )
        self.check_timing()
        return NamedOnce(self, robot)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episode(_buttons.TouchEpisode):
    """What happens in one episode; in many, with a leading axis on every field."""

    shown: np.ndarray
    """Index of the colour that the lamp shows each time, i64, shape (largest number of names,)."""
    names: np.ndarray
    """Index of the name that each of them gets, i64, of the same shape."""
    count: Array
    """Number of names told."""
    asked: Array
    """Which of them is asked for."""
    wording: Array
    """Index of the wordings of the instructions."""


class NamedOnce(_buttons.FirstTouch[Config]):
    """Satisfies `sim.core.task.Task` and `ChangesInstruction`."""

    instructions = INSTRUCTIONS

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        longest = config.steps_of(config.names[1])
        super().__init__(config, robot, cue_steps=longest, colours=config.choices)

    def reset(self, world: World) -> None:
        """Draw colours, names, times and the layout at go, one independent of the other."""
        config, rng = self.config, world.rng
        low, high = config.names
        shown = rng.permutation(config.choices)[:high]
        names = rng.permutation(len(NAMES))[:high]
        count = int(rng.integers(low, high + 1))
        asked, wording = int(rng.integers(count)), int(rng.integers(len(WAIT)))
        drawn = self.draw(rng, config.steps_of(count))
        episode = Episode(
            shown=shown, names=names, count=count, asked=asked, wording=wording, **drawn
        )
        self.begin(world, episode, instruction=wording)

    def instruction_index(self, worlds: Worlds) -> np.ndarray:
        """Return the index of what is said: names while they are told, the one asked for at go."""
        episode = worlds.episode
        number, lit = self._told(worlds)
        told = len(WAIT) + episode.wording * len(NAMES) + _lock.cued(episode.names, number)
        asked = _lock.cued(episode.names, episode.asked)
        asked = len(WAIT) + (len(TELL) + episode.wording) * len(NAMES) + asked
        goes = worlds.steps >= episode.schedule.go
        said: np.ndarray = np.where(goes, asked, np.where(lit, told, episode.wording))
        return said

    def right(self, episode: Any) -> Any:
        """Return the colour of the name that is asked for."""
        asked = np.asarray(episode.asked)[..., None]
        return np.take_along_axis(episode.shown, asked, axis=-1)[..., 0]

    def show_cue(self, worlds: Worlds, rows: Rows) -> None:
        """Light the lamp in the colour that is named, and the side lamp in others."""
        number, lit = self._told(worlds)
        rgb = self._palette[_lock.cued(worlds.episode.shown, number)]
        worlds.paint("lamp", rows, np.where(lit[:, None], rgb, _lock.OFF_RGB))
        _lock.flash(worlds, rows, self._palette)

    def _told(self, worlds: Worlds) -> tuple[np.ndarray, np.ndarray]:
        """Return which colour it is the turn of, i64 [n], and whether the lamp shows it."""
        episode, period = worlds.episode, self.config.period_steps
        since = np.maximum(worlds.steps - episode.schedule.cue_start, 0)
        last = worlds.steps >= episode.schedule.go  # reached by a cue that never ends alone
        number = np.where(last, episode.asked, np.minimum(since // period, episode.count - 1))
        shines = (since % period < self.config.cue_steps) | last
        return number, _lock.cue_lasts(worlds) & shines
