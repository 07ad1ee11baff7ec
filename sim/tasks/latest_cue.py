"""latest_cue: a lamp shows one colour after another; the button of the last one is to be pressed.

What was remembered has to be replaced: every colour but the last is wrong. Each is drawn anew from
all K, independently of the others, of how many there are and of everything seen from go on: without
memory no policy is right more often than 1/K (see `sim/tasks/_lock.py`), and the first touch
decides.
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

    choices: int = 4
    """Number K of colours and buttons, 2 to 8; 1/K is the ceiling without memory."""
    cues: tuple[int, int] = (1, 5)
    """Smallest and largest number of colours that the lamp shows."""
    delay_steps: tuple[int, int] = (16, 128)
    """Smallest and largest delay (log-uniform) in control steps, after the last colour."""
    cue_steps: int = 16
    """Control steps for which the lamp shows a colour, and of the pause before the next, at least
    16."""

    @property
    def period_steps(self) -> int:
        """Control steps from one colour to the next."""
        return 2 * self.cue_steps

    def build(self, robot: RobotSpec) -> "LatestCue":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        self.check_choices()
        low, high = self.cues
        if not 1 <= low <= high <= MAX_CUES:
            raise ValueError(f"cues: got {low} {high}, expected 1 <= min <= max <= {MAX_CUES}")
        self.check_timing()
        return LatestCue(self, robot)


@dataclasses.dataclass(frozen=True, eq=False)
class Episode:
    """What happens in one episode; in many, with a leading axis on every field."""

    shown: np.ndarray
    """Index of the colour that the lamp shows each time, i64, shape (largest number of cues,)."""
    count: Array
    """Number of colours shown."""
    schedule: _lock.Schedule
    """When colours, distractors and go come."""
    buttons_m: np.ndarray
    """Where each colour's button will stand at go, shape (K, 3)."""
    touched: np.ndarray
    """Which buttons were touched first, bool, shape (K,): a single one in practice."""
    start_distance_m: Array = 1.0
    """Distance of the tool from the right button at go."""


class LatestCue(_buttons.FirstTouch[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        longest = _steps(config, config.cues[1])
        super().__init__(config, robot, cue_steps=longest, colours=config.choices)

    def build(self, scene: mujoco.MjSpec) -> None:
        """Add lamp, side lamp and buttons; buttons wait under the floor."""
        _lock.add_cue_lamp(scene, self.robot)
        _lock.add_side_lamp(scene, self.robot)
        _buttons.add(scene, self._palette)

    def reset(self, world: World) -> None:
        """Draw colours, their number, times and the layout at go, one independent of the other."""
        config, rng = self.config, world.rng
        low, high = config.cues
        shown = rng.integers(config.choices, size=high)
        count = int(rng.integers(low, high + 1))
        schedule = _lock.draw_schedule(
            rng, config, cue_steps=_steps(config, count), colours=config.choices
        )
        world.episode = Episode(
            shown, count, schedule,
            _buttons.draw(rng, self.robot, config.choices), np.zeros(config.choices, np.bool_),
        )  # fmt: skip
        world.instruction = INSTRUCTIONS[int(rng.integers(len(INSTRUCTIONS)))]
        world.time_limit = schedule.go + config.act_steps
        self.show_cue(world.as_batch, True)

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


def _steps(config: Config, count: int) -> int:
    """Return the control steps from the first of so many colours to the end of the last."""
    return count * config.period_steps - config.cue_steps
