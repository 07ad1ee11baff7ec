"""shell: a ball is under one of K cups, the cups change places, and the one with it is found.

The cups look alike. The one with the ball is marked, the mark goes out, and then pairs of cups,
drawn at random, change places along half circles. From go on only the places of the cups are seen,
and these are the same for every ball and every order of changes: without memory no policy is right
more often than 1/K (see `sim/tasks/_lock.py`). Nor is one that remembers the first place alone:
after a random pair of three cups has changed places, the ball is anywhere with equal probability.
"""

import dataclasses
from typing import Any

import numpy as np

from sim.core import rewards
from sim.core.task import Rows, World, Worlds
from sim.tasks import _buttons, _lock
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

INSTRUCTIONS = (
    "press the cup with the ball",
    "touch the cup under which the ball is now",
    "follow the ball under the cups, then press its cup",
    "where did the ball go? press that cup",
    "push the cup that hides the ball",
)
CUP_RGB = (0.75, 0.55, 0.30)
ASIDE_M = 0.085
"""How far a cup leaves the line between two places at most, on its way from one to the other."""
BALL_RGB = (0.95, 0.10, 0.10)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(_lock.MemoryTaskConfig):
    """Changes of places, delay, distractors and number of choices."""

    choices: int = 3
    """Number K of cups, 2 to 5."""
    swaps: int = 2
    """How many times two cups change places, 0 or more."""
    swap_steps: int = 24
    """Control steps of one change of places, at least 16."""
    delay_steps: tuple[int, int] = (16, 128)
    """Smallest and largest delay (log-uniform) in control steps, from the last change on."""
    cue_steps: int = 16
    """Control steps for which the cup with the ball is marked, at least 16."""

    @property
    def shown_steps(self) -> int:
        """Control steps from the mark to the end of the last change of places."""
        return self.cue_steps + self.swaps * self.swap_steps

    def build(self, robot: RobotSpec) -> "Shell":
        """Return the task for a robot; raise ValueError if a field is out of range."""
        if not 2 <= self.choices <= 5:
            raise ValueError(f"choices: got {self.choices}, expected 2 to 5")
        if self.swaps < 0 or self.swap_steps < 16:
            raise ValueError(
                f"swaps, swap_steps: got {self.swaps} of {self.swap_steps} steps, expected 0 or "
                "more of at least 16 (two decisions)"
            )
        if self.delay_steps[1] == 0:
            raise ValueError("delay_steps: got 0 0, but a ball that stays in sight is no task")
        self.check_timing()
        return Shell(self, robot)


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episode(_buttons.TouchEpisode):
    """What happens in one episode; in many, with a leading axis on every field."""

    cue: Array
    """Index of the place at which the ball is first."""
    pairs: np.ndarray
    """Indices of the places whose cups change, i64, shape (swaps, 2)."""


class Shell(_buttons.FirstTouch[Config]):
    """Satisfies `sim.core.task.Task`."""

    instructions = INSTRUCTIONS
    has_lamp, button_rgb = False, CUP_RGB
    waits_in_view = True

    def __init__(self, config: Config, robot: RobotSpec) -> None:
        super().__init__(config, robot, cue_steps=config.shown_steps, colours=4)

    def reset(self, world: World) -> None:
        """Draw ball, changes, times and places, each independent of the others."""
        config, rng = self.config, world.rng
        cue = int(rng.integers(config.choices))
        pairs = [rng.permutation(config.choices)[:2] for _ in range(config.swaps)]
        swapped = np.array(pairs, np.int64).reshape(config.swaps, 2)
        self.begin(world, Episode(cue=cue, pairs=swapped, **self.draw(rng, config.shown_steps)))

    def right(self, episode: Any) -> Any:
        """Return the place at which the ball is in the end."""
        place = np.asarray(episode.cue)
        for swap in range(self.config.swaps):
            one, other = episode.pairs[..., swap, 0], episode.pairs[..., swap, 1]
            place = np.where(place == one, other, np.where(place == other, one, place))
        return place

    def show_cue(self, worlds: Worlds, rows: Rows) -> None:
        """Mark the cup with the ball, then move the cups; the side lamp flashes in between."""
        episode, config = worlds.episode, self.config
        since = worlds.steps - episode.schedule.cue_start
        marked = (since >= 0) & (since < config.cue_steps)
        cups = self._cups_m(episode, since - config.cue_steps)
        level = np.zeros(len(since))
        for k in range(config.choices):
            here = (marked & (episode.cue == k))[:, None]
            worlds.paint(f"button{k}", rows, np.where(here, BALL_RGB, CUP_RGB))
            worlds.place(f"button{k}", rows, cups[:, k], level)
        _lock.flash(worlds, rows, self._palette)

    def _cups_m(self, episode: Any, moved: np.ndarray) -> np.ndarray:
        """Return where each cup is, by its first place, f64 [n, K, 3].

        Args:
            episode: Fields with a leading axis n.
            moved: Control steps since the first change of places began, i64 [n].
        """
        rows = np.arange(len(moved))
        at = np.tile(np.arange(self.config.choices), (len(moved), 1))  # the place of each cup
        cups: np.ndarray = episode.buttons_m.copy()
        for swap in range(self.config.swaps):
            share = np.clip(moved / self.config.swap_steps - swap, 0.0, 1.0)
            one, other = episode.pairs[:, swap].T
            first, second = (np.argmax(at == place[:, None], axis=1) for place in (one, other))
            here, there = episode.buttons_m[rows, one], episode.buttons_m[rows, other]
            centre, radius = (here + there) / 2, (here - there) / 2
            angle = np.pi * share[:, None]
            aside = np.stack([-radius[:, 1], radius[:, 0], np.zeros(len(rows))], 1)
            # An ellipse where they are far apart: a half circle would reach the arm's base.
            aside *= np.minimum(1.0, ASIDE_M / rewards.length(radius))[:, None]
            offset = np.cos(angle) * radius + np.sin(angle) * aside
            begun = share > 0
            cups[rows[begun], first[begun]] = (centre + offset)[begun]
            cups[rows[begun], second[begun]] = (centre - offset)[begun]
            at[rows[begun], first[begun]] = other[begun]
            at[rows[begun], second[begun]] = one[begun]
        return cups
