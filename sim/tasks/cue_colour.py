"""cue_colour: a lamp shows a colour, goes out, and later the button of that colour is pressed.

Without memory no policy is right more often than 1/K: from go on, everything observed is drawn
independently of the cue (see `sim/tasks/_lock.py`), and the first touch decides.
"""

import dataclasses
from typing import Any

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

    def build(self, robot: RobotSpec) -> "CueColour":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        self.check_choices()
        self.check_timing()
        return CueColour(self, robot)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episode(_buttons.TouchEpisode):
    """What happens in one episode; in many, with a leading axis on every field."""

    cue: Array
    """Index of the lamp's colour."""


class CueColour(_buttons.FirstTouch[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        super().__init__(config, robot, cue_steps=config.cue_steps, colours=config.choices)

    def reset(self, world: World) -> None:
        """Draw cue, times and the layout at go, one independent of the other."""
        config, rng = self.config, world.rng
        cue = int(rng.integers(config.choices))
        self.begin(world, Episode(cue=cue, **self.draw(rng, config.cue_steps)))

    def right(self, episode: Any) -> Any:
        """Return the colour that the lamp showed."""
        return episode.cue

    def show_cue(self, worlds: Worlds, rows: Rows) -> None:
        """Light the lamp in its colour while the cue lasts, and the side lamp in others."""
        _lock.show_colour(worlds, rows, self._palette[worlds.episode.cue])
        _lock.flash(worlds, rows, self._palette)
