"""Tasks in which buttons are pressed again and again, and everything starts anew after each press.

After a press the arm is locked at home and the buttons are gone: a blank. After it they are back
where they stood. Nothing that is seen then tells how often, or which, have been pressed: all blanks
end in the same state, so that a policy without memory does the same at each, with the same
probabilities.
"""

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np

from sim.core import rewards
from sim.core.task import Rows, World, Worlds
from sim.tasks import _buttons, _lock
from vla.contracts.types import Array

C = TypeVar("C", bound=_lock.MemoryTaskConfig)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episode(_buttons.Episode):
    """An episode of many presses."""

    blanks: np.ndarray
    """Control steps of the blank after each press, i64, shape (P,)."""
    free_from: Array = 0
    """Control step from which the arm is free."""
    presses: Array = 0
    """How many presses there have been."""
    wrong: Array = False
    """Whether one of them was wrong."""


class RepeatedPresses(_buttons.ButtonTask[C]):
    """What such tasks share; their episodes are of `Episode`."""

    variants = ("wrong_object", "hover")

    @abstractmethod
    def wrong_button(self, episode: Any) -> int:
        """Return the index of a button that is not to be pressed last, in one episode."""

    @abstractmethod
    def total(self, episode: Any) -> Any:
        """Return how many presses there are to make."""

    @abstractmethod
    def press(self, worlds: Worlds, rows: np.ndarray, touched: np.ndarray) -> None:
        """Note what has been pressed in the rows bool [n]; `touched` is bool [n, K].

        `presses` do not count it yet. `wrong` is set already where two were touched at once.
        """

    def show_cue(self, worlds: Worlds, rows: Rows) -> None:
        """Show lamps as they are at this step, in rows whose arm is locked."""
        _lock.flash(worlds, rows, self._palette)

    def is_locked(self, worlds: Worlds) -> np.ndarray:
        """Return where the arm stays at home whatever is commanded, bool [n]."""
        locked: np.ndarray = worlds.steps < worlds.episode.free_from
        return locked

    def wait(self, world: World) -> Iterator[np.ndarray]:
        """Yield home until the arm is free."""
        while world.steps < world.episode.free_from:
            yield self._home

    def advance(self, worlds: Worlds) -> None:
        """Watch for presses; after each, keep the lock and then start anew."""
        episode = worlds.episode
        free = worlds.steps > episode.free_from
        if free.any():
            touched = _buttons.touched(worlds, episode.buttons_m) & free[:, None]
            pressed = touched.any(1)
            if pressed.any():
                episode.wrong[:] |= touched.sum(1) > 1
                self.press(worlds, pressed, touched)
                episode.presses[:] += pressed
                self._lock_again(worlds, pressed & ~self.success(worlds) & ~episode.wrong)
        self.hold(worlds, worlds.steps <= episode.free_from, worlds.steps == episode.free_from)

    def _lock_again(self, worlds: Worlds, rows: np.ndarray) -> None:
        episode, every = worlds.episode, self.config.decision_steps
        last = episode.blanks.shape[1] - 1
        blank = _lock.cued(episode.blanks, np.clip(episode.presses - 1, 0, last))
        until = every * -(-(worlds.steps + blank) // every)
        episode.free_from[rows] = until[rows]
        worlds.go_home(rows)  # the buttons as well: under the floor

    def success(self, worlds: Worlds) -> np.ndarray:
        """True once all presses were made and none was wrong."""
        episode = worlds.episode
        return (episode.presses == self.total(episode)) & ~episode.wrong

    def failure(self, worlds: Worlds) -> np.ndarray:
        """True if a press was wrong."""
        return worlds.episode.wrong.copy()

    def referents(self, worlds: Worlds) -> np.ndarray:
        """See `sim.core.task.HasReferents`: the button to press next, while the arm is free."""
        locked = worlds.steps < worlds.episode.free_from
        button = self.right_m(worlds)
        points = np.stack([button, button], 1)
        return np.where(locked[:, None, None], np.nan, points)

    def progress(self, worlds: Worlds) -> np.ndarray:
        """Presses and the share of the way to the next; 0 after a wrong one.

        Below 0.95 until success.
        """
        episode = worlds.episode
        way = rewards.share_done(self.distance_m(worlds), episode.start_distance_m)
        way = np.where(worlds.steps < episode.free_from, 0.0, way)
        done = np.minimum((episode.presses + way) / self.total(episode), 1.0)
        return np.where(self.success(worlds), 1.0, np.where(episode.wrong, 0.0, 0.95 * done))

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Make all presses; the variants end with a wrong press, or without the last one."""
        arm = _buttons.motion(world, self.config.choices)
        while world.episode.presses < self.total(world.episode):
            yield from self.wait(world)
            episode = world.episode
            before = episode.presses
            last = before + 1 == self.total(episode)
            wrong = last and variant == "wrong_object"
            number = self.wrong_button(episode) if wrong else self.right(episode)
            button = episode.buttons_m[number]
            if last and variant == "hover":
                yield from arm.hover(button + (0.0, 0.0, _buttons.RAISED_M), max_steps=12)
                return
            for action in arm.press(button):
                if world.episode.presses > before:
                    break
                pressing = action
                yield action
            # An action chunk that foresees when the button gives way would draw back too early.
            while world.steps % self.config.decision_steps:
                yield pressing


def shortest_blank(config: _lock.MemoryTaskConfig) -> int:
    """Return the control steps of the shortest blank that lets an old action chunk run out."""
    return 2 * config.decision_steps


def rounded(steps: int, config: _lock.MemoryTaskConfig) -> int:
    """Return control steps rounded up to whole decisions."""
    return config.decision_steps * math.ceil(steps / config.decision_steps)
