"""late_query: all buttons show a colour; which one has to be found is told when it is too late.

Grey buttons light up, each in a colour of its own, and go dark. At go the lamp shows one of these
colours: the button that had it is to be pressed. So the place of every colour must be remembered.
Which colour stood where is a permutation drawn independently of what the lamp shows and of
everything else seen from go on: without memory no policy is right more often than 1/K (see
`sim/tasks/_lock.py`), and the first touch decides.
"""

import dataclasses
from typing import Any

import numpy as np

from sim.core.task import Rows, World, Worlds
from sim.tasks import _buttons, _lock
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

INSTRUCTIONS = (
    "press the button that had the colour the lamp shows now",
    "touch the button that lit up in the lamp's colour",
    "push the button whose colour was the one of the light",
    "remember the buttons' colours, then press the one the lamp asks for",
    "which button had this colour? press it",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_lock.MemoryTaskConfig):
    """Delay, distractors and number of choices."""

    delay_steps: tuple[int, int] = (16, 128)
    """Smallest and largest delay (log-uniform) in control steps."""

    def build(self, robot: RobotSpec) -> "LateQuery":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        self.check_choices()
        if self.delay_steps[1] == 0:
            raise ValueError("delay_steps: got 0 0, but the buttons go dark")
        self.check_timing()
        return LateQuery(self, robot)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episode(_buttons.TouchEpisode):
    """What happens in one episode; in many, with a leading axis on every field."""

    colours: np.ndarray
    """Index of the colour that each button shows, i64, shape (K,)."""
    query: Array
    """Index of the colour that the lamp shows from go on."""


class LateQuery(_buttons.FirstTouch[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS
    button_rgb = _lock.OFF_RGB
    waits_in_view = True

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        super().__init__(config, robot, cue_steps=config.cue_steps, colours=config.choices)

    def reset(self, world: World) -> None:
        """Draw colours, query, times and places, each independent of the others."""
        config, rng = self.config, world.rng
        colours = rng.permutation(config.choices)
        query = int(rng.integers(config.choices))
        drawn = self.draw(rng, config.cue_steps)
        self.begin(world, Episode(colours=colours, query=query, **drawn))

    def right(self, episode: Any) -> Any:
        """Return the button that had the colour the lamp asks for."""
        return np.argmax(episode.colours == np.asarray(episode.query)[..., None], axis=-1)

    def show_cue(self, worlds: Worlds, rows: Rows) -> None:
        """Colour the buttons while the cue lasts, the lamp at go, and the side lamp in between."""
        episode, schedule = worlds.episode, worlds.episode.schedule
        lit = _lock.cue_lasts(worlds)
        for k in range(self.config.choices):
            colour = self._palette[episode.colours[:, k]]
            worlds.paint(f"button{k}", rows, np.where(lit[:, None], colour, _lock.OFF_RGB))
        asked = (worlds.steps >= schedule.go)[:, None]
        worlds.paint("lamp", rows, np.where(asked, self._palette[episode.query], _lock.OFF_RGB))
        _lock.flash(worlds, rows, self._palette)
