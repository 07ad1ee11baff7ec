"""cue_colour: a lamp shows a colour, goes out, and later the button of that colour is pressed.

Without memory no policy is right more often than 1/K: from go on, everything observed is drawn
independently of the cue (see `sim/tasks/_lock.py`), and the first touch decides.
"""

import dataclasses
from typing import Any

import mujoco
import numpy as np

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
        self.check_choices()
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


class CueColour(_buttons.FirstTouch[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS

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
        self.show_cue(world.as_batch, True)

    def right(self, episode: Any) -> Any:
        """Return the colour that the lamp showed."""
        return episode.cue

    def show_cue(self, worlds: Worlds, rows: Rows) -> None:
        """Light the lamp in its colour while the cue lasts, and the side lamp in others."""
        _lock.show_colour(worlds, rows, self._palette[worlds.episode.cue])
        _lock.flash(worlds, rows, self._palette)
