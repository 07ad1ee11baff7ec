"""visit_all: every one of K buttons that look alike is pressed, none of them twice.

After each press all is as before it (see `sim/tasks/_presses.py`). So a policy without memory
presses button i with the same probability p_i each time, and each once with K! times their product:
no more than K!/K^K, at p_i = 1/K.
"""

import dataclasses
import math
from typing import Any

import numpy as np

from sim.core.task import World, Worlds
from sim.tasks import _buttons, _lock, _presses
from vla.contracts.specs import RobotSpec

INSTRUCTIONS = (
    "press every button once",
    "touch all buttons, none of them twice",
    "push each button exactly one time",
    "visit all buttons without repeating one",
    "go through the buttons, one press each",
)
COLOURS = 4
"""Of the side lamp."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_lock.MemoryTaskConfig):
    """Delay, distractors and number of choices."""

    choices: int = 4
    """Number K of buttons, 2 to 8."""
    delay_steps: tuple[int, int] = (16, 64)
    """Smallest and largest blank after each press (log-uniform) in control steps."""
    distractors: int = 0
    """Events in each blank in which a small side lamp shows colours that mean nothing."""
    act_steps: int = 40
    """Control steps for each press, on average."""

    @property
    def ceiling(self) -> float:
        """Highest success of any policy without memory."""
        return math.factorial(self.choices) / self.choices**self.choices

    def build(self, robot: RobotSpec) -> "VisitAll":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        self.check_choices()
        if self.delay_steps[1] == 0:
            raise ValueError("delay_steps: got 0 0, but the arm's way back would tell the button")
        self.check_timing()
        return VisitAll(self, robot)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episode(_presses.Episode):
    """What happens in one episode; in many, with a leading axis on every field."""

    flashes: np.ndarray
    """Distractors of each blank, as in `Schedule.flashes`, from the press on; shape (K, events,
    3)."""
    visited: np.ndarray
    """Which buttons have been pressed, bool, shape (K,)."""


class VisitAll(_presses.RepeatedPresses[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS
    has_lamp, button_rgb = False, _lock.OFF_RGB

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        super().__init__(config, robot, cue_steps=config.cue_steps, colours=COLOURS)
        longest = _presses.rounded(config.delay_steps[1], config) + config.decision_steps
        self.max_episode_steps = config.choices * (config.act_steps + longest)

    def reset(self, world: World) -> None:
        """Draw places and blanks; the buttons stand there at once."""
        config, rng = self.config, world.rng
        count = config.choices
        blanks = [_lock.draw_delay(rng, config) for _ in range(count)]
        flashes = [_lock.draw_flashes(rng, config, blank, COLOURS) for blank in blanks]
        nothing = _lock.Schedule(0, 0, 0, np.zeros((config.distractors, 3), np.int64))
        world.episode = Episode(
            schedule=nothing, buttons_m=_buttons.draw(rng, self.robot, count),
            blanks=np.array(blanks), flashes=np.array(flashes), visited=np.zeros(count, np.bool_),
        )  # fmt: skip
        world.instruction = INSTRUCTIONS[int(rng.integers(len(INSTRUCTIONS)))]
        rest = sum(_presses.rounded(blank, config) + config.decision_steps for blank in blanks)
        world.time_limit = count * config.act_steps + rest
        worlds = world.as_batch
        _buttons.show(worlds, np.ones(1, np.bool_), worlds.episode.buttons_m)
        worlds.episode.start_distance_m[:] = self.distance_m(worlds)

    def right(self, episode: Any) -> Any:
        """Return the button furthest to the right that has not been pressed."""
        azimuth = np.arctan2(episode.buttons_m[..., 1], episode.buttons_m[..., 0])
        return np.argmin(np.where(episode.visited, np.inf, azimuth), axis=-1)

    def wrong_button(self, episode: Any) -> int:
        """Return a button that has been pressed."""
        return int(np.argmax(episode.visited))

    def total(self, episode: Any) -> Any:
        """Return how many presses there are to make."""
        return self.config.choices

    def press(self, worlds: Worlds, rows: np.ndarray, touched: np.ndarray) -> None:
        """Note which button was pressed, and whether it had been before."""
        episode = worlds.episode
        episode.wrong[:] |= (touched & episode.visited).any(1)
        episode.visited[:] |= touched
        number = np.minimum(episode.presses, self.config.choices - 1)
        flashes = _lock.cued(episode.flashes, number)
        flashes[:, :, :2] += worlds.steps[:, None, None]
        episode.schedule.flashes[rows] = flashes[rows]
