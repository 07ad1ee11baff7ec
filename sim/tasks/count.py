"""count: a lamp flashes N times; later one button is pressed N times, and then another one.

N is uniform on 1 to M. After each press all is as before it (see `sim/tasks/_presses.py`), and from
go on nothing tells N. So a policy without memory presses the counting button with the same
probability p each time, and is right with the mean over N of p^N (1 - p), which is
(p - p^(M+1)) / M: no more than p / (M + 1), at p = (M + 1)^(-1/M).
"""

import dataclasses
from typing import Any

import numpy as np

from sim.core.task import Rows, World, Worlds
from sim.tasks import _buttons, _lock, _presses
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

INSTRUCTIONS = (
    "press the green button as often as the lamp flashed, then the red one",
    "count the flashes, push green that many times and finish with red",
    "touch green once for every flash of the light, and red at the end",
    "repeat the number of flashes on the green button, then press red",
    "green as many times as the lamp lit up, then red",
)
COUNT, DONE = 0, 1
RGB = np.array([_lock.PALETTE["green"], _lock.PALETTE["red"]])
LIT_RGB = _lock.PALETTE["white"]
COLOURS = 4
"""Of the side lamp."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_lock.MemoryTaskConfig):
    """Largest number, delay and distractors."""

    choices: int = 3
    """Largest number M of flashes, 1 to 8."""
    delay_steps: tuple[int, int] = (16, 128)
    """Smallest and largest delay (log-uniform) in control steps, after the time of M flashes."""
    cue_steps: int = 16
    """Control steps of one flash, and of the pause after it, at least 16."""
    act_steps: int = 40
    """Control steps for each press, on average."""

    @property
    def shown_steps(self) -> int:
        """Control steps of M flashes."""
        return 2 * self.cue_steps * self.choices

    @property
    def ceiling(self) -> float:
        """Highest success of any policy without memory."""
        return float((self.choices + 1) ** (-1 / self.choices) / (self.choices + 1))

    def build(self, robot: RobotSpec) -> "Count":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        if not 1 <= self.choices <= 8:
            raise ValueError(f"choices: got {self.choices}, expected 1 to 8")
        if self.delay_steps[1] == 0:
            raise ValueError("delay_steps: got 0 0, but flashes are over when they are counted")
        self.check_timing()
        return Count(self, robot)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episode(_presses.Episode):
    """What happens in one episode; in many, with a leading axis on every field."""

    cue: Array
    """Number N of flashes."""


class Count(_presses.RepeatedPresses[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS
    button_rgb = RGB

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        super().__init__(config, robot, cue_steps=config.shown_steps, colours=COLOURS)
        self.max_episode_steps += config.choices * self._press_steps

    @property
    def _press_steps(self) -> int:
        blank = _presses.shortest_blank(self.config) + self.config.decision_steps
        return self.config.act_steps + blank

    def reset(self, world: World) -> None:
        """Draw number, times and the layout at go, each independent of the others."""
        config, rng = self.config, world.rng
        number = int(rng.integers(1, config.choices + 1))
        schedule = _lock.draw_schedule(rng, config, cue_steps=config.shown_steps, colours=COLOURS)
        blanks = np.array([_presses.shortest_blank(config)])
        buttons = _buttons.draw(rng, self.robot, len(RGB))
        world.episode = Episode(
            cue=number, schedule=schedule, buttons_m=buttons, blanks=blanks, free_from=schedule.go
        )
        world.instruction = INSTRUCTIONS[int(rng.integers(len(INSTRUCTIONS)))]
        # The same for every number: the limit must not tell it.
        world.time_limit = schedule.go + config.act_steps + config.choices * self._press_steps
        self.show_cue(world.as_batch, True)

    def right(self, episode: Any) -> Any:
        """Return the button to press next."""
        return np.where(np.asarray(episode.presses) < episode.cue, COUNT, DONE)

    def wrong_button(self, episode: Any) -> int:
        """Return the counting button: it was pressed often enough."""
        return COUNT

    def total(self, episode: Any) -> Any:
        """Return how many presses there are to make."""
        return episode.cue + 1

    def press(self, worlds: Worlds, rows: np.ndarray, touched: np.ndarray) -> None:
        """Note whether the press was the right one."""
        right = _lock.cued(touched, self.right(worlds.episode))
        worlds.episode.wrong[:] |= rows & ~right

    def show_cue(self, worlds: Worlds, rows: Rows) -> None:
        """Flash the lamp N times, and the side lamp in between."""
        episode, period = worlds.episode, 2 * self.config.cue_steps
        since = worlds.steps - episode.schedule.cue_start
        lit = (since >= 0) & (since < episode.cue * period) & (since % period < period // 2)
        worlds.paint("lamp", rows, np.where(lit[:, None], LIT_RGB, _lock.OFF_RGB))
        _lock.flash(worlds, rows, self._palette)
