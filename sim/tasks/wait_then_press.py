"""wait_then_press: a lamp is lit for a while; later the arm waits as long and then presses.

The interval is n decisions, uniform between two numbers. From go on the arm is held at home until
the policy closes the hand: that starts the press, and it has to come n decisions after go, give or
take a tolerance. While it waits nothing changes, so a policy without memory that decides every
`decision_steps` begins with the same probability p at each decision, and is right with the mean
over n of (1 - p)^(n - a) (1 - (1 - p)^(2a + 1)) for a tolerance of a decisions: `Config.ceiling` is
its maximum over p. A policy that decides less often counts time within a chunk, and may do better.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from sim.core.task import Rows, World, Worlds
from sim.tasks import _buttons, _lock
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

INSTRUCTIONS = (
    "wait as long as the lamp was lit, then press the button",
    "press the button after the time that the light lasted",
    "let as much time pass as the lamp showed, then push the button",
    "hold still for as long as the light was on, and press",
    "repeat the length of the light before you touch the button",
)
LIT_RGB = _lock.PALETTE["white"]
COLOURS = 4
"""Of the side lamp."""
CHANCES = np.linspace(0.0, 1.0, 10001)
"""Probabilities among which the best is sought; the success is smooth in it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_lock.MemoryTaskConfig):
    """Interval, tolerance, delay and distractors."""

    interval_decisions: tuple[int, int] = (4, 12)
    """Shortest and longest interval in decisions."""
    tolerance_decisions: int = 1
    """How many decisions early or late is in time."""
    choices: int = 2
    """Number of buttons, 2 to 8: all of them are right."""
    delay_steps: tuple[int, int] = (16, 128)
    """Smallest and largest delay (log-uniform) in control steps, after the longest interval."""
    act_steps: int = 40
    """Control steps from the last moment in time to the time limit."""

    @property
    def shown_steps(self) -> int:
        """Control steps of the longest interval."""
        return self.interval_decisions[1] * self.decision_steps

    @property
    def ceiling(self) -> float:
        """Highest success of a policy without memory that decides every `decision_steps`."""
        low, high = self.interval_decisions
        width = 2 * self.tolerance_decisions + 1
        early = np.arange(low, high + 1)[:, None] - self.tolerance_decisions
        right = (1 - CHANCES) ** early * (1 - (1 - CHANCES) ** width)
        return float(right.mean(0).max())

    def build(self, robot: RobotSpec) -> "WaitThenPress":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        low, high = self.interval_decisions
        if not 2 <= low <= high or not 0 <= self.tolerance_decisions < low:
            raise ValueError(
                f"interval_decisions, tolerance_decisions: got {low} {high} and "
                f"{self.tolerance_decisions}, expected 2 <= min <= max and a tolerance from 0 to "
                "less than min"
            )
        self.check_choices()
        if self.delay_steps[1] == 0:
            raise ValueError("delay_steps: got 0 0, but the light is over when it is repeated")
        self.check_timing()
        return WaitThenPress(self, robot)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episode(_buttons.Episode):
    """What happens in one episode; in many, with a leading axis on every field."""

    cue: Array
    """Number n of decisions for which the lamp is lit."""
    started: Array = -1
    """Control step at which the hand was closed; -1 before."""
    mistimed: Array = False
    """Whether that was too early or too late."""
    pressed: Array = False
    """Whether a button has been touched since."""


class WaitThenPress(_buttons.ButtonTask[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS
    button_rgb = _lock.OFF_RGB
    variants = ("overshoot", "hover")

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        super().__init__(config, robot, cue_steps=config.shown_steps, colours=COLOURS)
        self.max_episode_steps += self._wait_steps
        self._gripper = robot.names.index(robot.gripper.channel)

    @property
    def _wait_steps(self) -> int:
        """Control steps from go to the last moment at which any interval is in time."""
        config = self.config
        longest = config.interval_decisions[1] + config.tolerance_decisions + 1
        return longest * config.decision_steps

    def reset(self, world: World) -> None:
        """Draw interval, times and the layout at go, each independent of the others."""
        config, rng = self.config, world.rng
        low, high = config.interval_decisions
        interval = int(rng.integers(low, high + 1))
        schedule = _lock.draw_schedule(rng, config, cue_steps=config.shown_steps, colours=COLOURS)
        buttons = _buttons.draw(rng, self.robot, config.choices)
        world.episode = Episode(cue=interval, schedule=schedule, buttons_m=buttons)
        world.instruction = INSTRUCTIONS[int(rng.integers(len(INSTRUCTIONS)))]
        # The same for every interval: the limit must not tell it.
        world.time_limit = schedule.go + self._wait_steps + config.act_steps
        self.show_cue(world.as_batch, True)

    def control(self, worlds: Worlds, action: np.ndarray) -> np.ndarray:
        """Hold the arm at home until the hand is closed after go."""
        episode = worlds.episode
        begins = (worlds.steps >= episode.schedule.go) & self._closes(action)
        return np.where((begins | (episode.started >= 0))[:, None], action, self._home)

    def _closes(self, action: np.ndarray) -> np.ndarray:
        """Return where the hand is commanded more than half closed, bool [n]."""
        hand = self.robot.gripper
        commanded = np.abs(action[:, self._gripper] - hand.closed)
        return commanded < 0.5 * abs(self._home[self._gripper] - hand.closed)

    def advance(self, worlds: Worlds) -> None:
        """Keep the lock, light the lamps, show the buttons at go, then watch for a touch."""
        episode, go = worlds.episode, worlds.episode.schedule.go
        commanded = worlds.fields.ctrl[:, worlds.actuators]
        begins = (worlds.steps > go) & (episode.started < 0) & self._closes(commanded)
        if begins.any():
            waited = (worlds.steps - 1 - go) // self.config.decision_steps
            episode.started[begins] = worlds.steps[begins] - 1
            wrong = np.abs(waited - episode.cue) > self.config.tolerance_decisions
            episode.mistimed[begins] = wrong[begins]
        waits, at_go = episode.started < 0, worlds.steps == go
        if not waits.all():
            touched = _buttons.touched(worlds, episode.buttons_m).any(1)
            episode.pressed[:] |= touched & ~waits
        if waits.any():
            worlds.hold_home(waits)
            self.show_cue(worlds, waits & (worlds.steps <= go))
            if at_go.any():
                worlds.go_home(at_go)
                _buttons.show(worlds, at_go, episode.buttons_m)
            worlds.refresh()

    def success(self, worlds: Worlds) -> np.ndarray:
        """True if the press began in time and a button is touched."""
        return worlds.episode.pressed & ~worlds.episode.mistimed

    def failure(self, worlds: Worlds) -> np.ndarray:
        """True if the press began too early or too late."""
        return worlds.episode.mistimed.copy()

    def progress(self, worlds: Worlds) -> np.ndarray:
        """0 until go, up to 0.45 while it waits, 0.5 once it began in time; 0 if it did not."""
        episode, config = worlds.episode, self.config
        waited = (worlds.steps - episode.schedule.go) / config.decision_steps
        done = np.where(episode.started >= 0, 0.5, 0.45 * np.clip(waited / episode.cue, 0.0, 1.0))
        late = np.floor(waited) - episode.cue > config.tolerance_decisions
        nothing = episode.mistimed | (late & (episode.started < 0))
        return np.where(self.success(worlds), 1.0, np.where(nothing, 0.0, done))

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Wait for go and for the interval, close the hand, press; the variants wait too long."""
        episode, config = world.episode, self.config
        extra = config.tolerance_decisions + 1 if variant == "overshoot" else 0
        begin = episode.schedule.go + (episode.cue + extra) * config.decision_steps
        while world.steps < begin:
            yield self._home
        if variant == "hover":
            for _ in range(config.act_steps):
                yield self._home
            return
        closed = self._home.copy()
        closed[self._gripper] = self.robot.gripper.closed
        yield closed
        arm = _buttons.motion(world, config.choices)
        yield from arm.press(episode.buttons_m[self.right(episode)])

    def show_cue(self, worlds: Worlds, rows: Rows) -> None:
        """Light the lamp for the interval, and the side lamp in between."""
        episode = worlds.episode
        since = worlds.steps - episode.schedule.cue_start
        lit = (since >= 0) & (since < episode.cue * self.config.decision_steps)
        worlds.paint("lamp", rows, np.where(lit[:, None], LIT_RGB, _lock.OFF_RGB))
        _lock.flash(worlds, rows, self._palette)

    def right(self, episode: Any) -> Any:
        """Return the button that the expert takes, the one furthest to the right."""
        buttons = episode.buttons_m
        return np.argmin(np.arctan2(buttons[..., 1], buttons[..., 0]), axis=-1)
