"""What memory tasks share: a schedule of cue, delay and go, a locked arm, and a distractor lamp.

The lock makes memory the only path from cue to choice: until go the arm is held at home whatever
the policy commands, and at go everything is set to a state that does not depend on the cue. At
least two decisions of blank before go let old action chunks run out.
"""

import dataclasses
import math
from collections.abc import Iterator
from typing import Generic, TypeVar

import mujoco
import numpy as np

from sim.core.task import Rows, World, Worlds
from vla.contracts.config import PluginConfig, validate_min
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

MAX_CUE_START = 16
PALETTE = {
    "red": (0.90, 0.08, 0.08),
    "green": (0.08, 0.72, 0.15),
    "blue": (0.10, 0.20, 0.95),
    "yellow": (0.98, 0.88, 0.08),
    "magenta": (0.90, 0.10, 0.80),
    "cyan": (0.08, 0.85, 0.90),
    "white": (1.0, 1.0, 1.0),
    "black": (0.03, 0.03, 0.03),
}
"""Well-separated colours (RGB in [0, 1]) in the order in which tasks use them."""
OFF_RGB = np.full(3, 0.45)
"""A lamp that is off."""
LAMP_HALF_M = 0.045
SIDE_LAMP_HALF_M = 0.022


@dataclasses.dataclass(frozen=True, eq=False)
class Schedule:
    """The times of one episode, in control steps since it began; of many, with a leading axis."""

    cue_start: Array
    """The cue shows in observations from this step on."""
    cue_end: Array
    """The cue is gone from this step on (never, if it stays visible: then past any episode)."""
    go: Array
    """The arm is free from this step on."""
    flashes: np.ndarray
    """Distractor events: first step, step after the last, colour index; i64, shape (events, 3)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MemoryTaskConfig(PluginConfig):
    """Delay, distractors and number of choices."""

    choices: int = 4
    """Number K of choices, 2 to 8; 1/K is the ceiling without memory."""
    delay_steps: tuple[int, int] = (16, 128)
    """Smallest and largest delay (log-uniform) in control steps; 0 0 leaves the cue visible."""
    cue_steps: int = 16
    """Control steps for which the cue shows, at least 16."""
    distractors: int = 0
    """Events before go in which a small side lamp shows colours that mean nothing."""
    random_distractors: bool = False
    """Draw their number for each episode, uniform on 0 to `distractors`."""
    distractor_steps: int = 24
    """Largest number of control steps of a distractor event."""
    decision_steps: int = 8
    """Control steps per decision of the policy; go is at a decision."""
    act_steps: int = 40
    """Control steps from go to the time limit."""

    @property
    def period_steps(self) -> int:
        """Control steps from one cue to the next, in tasks with several: a pause follows each."""
        return 2 * self.cue_steps

    def steps_of(self, count: int) -> int:
        """Return the control steps from the first of so many cues to the end of the last."""
        return count * self.period_steps - self.cue_steps

    @property
    def ceiling(self) -> float:
        """Highest success of any policy without memory."""
        return 1 / self.choices

    def check_choices(self) -> None:
        """Raise ValueError unless there are 2 choices or more, and a colour for each."""
        if not 2 <= self.choices <= len(PALETTE):
            raise ValueError(f"choices: got {self.choices}, expected 2 to {len(PALETTE)}")

    def check_timing(self) -> None:
        """Raise ValueError if cue or delay is too short for the ceiling, or a number is wrong."""
        low, high = self.delay_steps
        if self.cue_steps < 16:
            raise ValueError(
                f"cue_steps: got {self.cue_steps}, expected at least 16 (two decisions)"
            )
        validate_min(self, decision_steps=1, distractor_steps=1, act_steps=1, distractors=0)
        blank = 2 * self.decision_steps
        if (low, high) != (0, 0) and not blank <= low <= high:
            raise ValueError(
                f"delay_steps: got {low} {high}, expected 0 0 (the cue stays visible) or "
                f"{blank} <= min <= max: a shorter blank lets an old action chunk carry the cue"
            )

    def longest_go(self, cue_steps: int) -> int:
        """Return the latest control step of go for a cue of `cue_steps`."""
        latest = MAX_CUE_START + cue_steps + self.delay_steps[1]
        return self.decision_steps * math.ceil(latest / self.decision_steps)


C = TypeVar("C", bound=MemoryTaskConfig)


class LockedTask(Generic[C]):
    """What memory tasks share: the arm is held at home until go."""

    def __init__(self, config: C, robot: RobotSpec, *, cue_steps: int, colours: int) -> None:
        """Build for a robot, with a cue of `cue_steps` control steps and `colours` lamp colours."""
        self.config = config
        self.robot = robot
        self.max_episode_steps = config.act_steps + config.longest_go(cue_steps)
        self._home = np.array(robot.home)
        self._palette = np.array(list(PALETTE.values())[:colours])

    def is_locked(self, worlds: Worlds) -> np.ndarray:
        """Return where the arm stays at home whatever is commanded, bool [n]: until go."""
        locked: np.ndarray = worlds.steps < worlds.episode.schedule.go
        return locked

    def control(self, worlds: Worlds, action: np.ndarray) -> np.ndarray:
        """Hold the arm at home while it is locked."""
        return np.where(self.is_locked(worlds)[:, None], self._home, action)

    def wait(self, world: World) -> Iterator[np.ndarray]:
        """Yield home until go."""
        go = world.episode.schedule.go
        while world.steps < go:
            yield self._home


def draw_schedule(
    rng: np.random.Generator, config: MemoryTaskConfig, *, cue_steps: int, colours: int
) -> Schedule:
    """Draw the times of an episode; nothing here depends on the cue.

    Go is moved up to the next decision. A delay of 0 leaves the cue visible.
    """
    cue_start = int(rng.integers(0, MAX_CUE_START + 1))
    delay = draw_delay(rng, config)
    cue_end = cue_start + cue_steps
    go = config.decision_steps * math.ceil((cue_end + delay) / config.decision_steps)
    flashes = draw_flashes(rng, config, go, colours)
    return Schedule(cue_start, cue_end if delay else 10**9, go, flashes)


def draw_flashes(
    rng: np.random.Generator, config: MemoryTaskConfig, steps: int, colours: int
) -> np.ndarray:
    """Draw the distractor events of so many control steps, one in each equal share of them.

    Returns:
        As `Schedule.flashes`; events that do not take place have no length.
    """
    flashes: np.ndarray = np.zeros((config.distractors, 3), np.int64)
    count = config.distractors
    if config.random_distractors:
        count = int(rng.integers(count + 1))
    for event in range(count):
        first, last = steps * event // count, steps * (event + 1) // count
        length = min(config.distractor_steps, last - first)
        start = int(rng.integers(first, last - length + 1))
        flashes[event] = start, start + length, rng.integers(colours)
    return flashes


def draw_delay(rng: np.random.Generator, config: MemoryTaskConfig) -> int:
    """Draw a delay in control steps, log-uniform; 0 if the cue stays visible."""
    low, high = config.delay_steps
    return 0 if high == 0 else round(math.exp(rng.uniform(math.log(low), math.log(high))))


def add_cue_lamp(scene: mujoco.MjSpec, robot: RobotSpec) -> None:
    """Add the lamp, to the left of the arm, that shows the cue."""
    add_lamp(scene, "lamp", (robot.reach_m[0] - 0.10, 0.18), LAMP_HALF_M)


def add_side_lamp(scene: mujoco.MjSpec, robot: RobotSpec) -> None:
    """Add the small lamp, to the right of the arm, that shows distractors."""
    add_lamp(scene, "side_lamp", (robot.reach_m[0] - 0.10, -0.18), SIDE_LAMP_HALF_M)


def add_lamp(scene: mujoco.MjSpec, name: str, xy_m: tuple[float, float], half_m: float) -> None:
    """Add a lamp that is off: a cube on the table that nothing collides with."""
    scene.worldbody.add_geom(
        name=name,
        type=mujoco.mjtGeom.mjGEOM_BOX,
        pos=(*xy_m, half_m),
        size=(half_m, half_m, half_m),
        rgba=(*OFF_RGB, 1.0),
        contype=0,
        conaffinity=0,
    )


def cued(choices: np.ndarray, cue: np.ndarray) -> np.ndarray:
    """Return from choices [n, K, ...] the choice that each world's cue, i64 [n], names."""
    return choices[np.arange(len(cue)), cue]


def after_go(worlds: Worlds, points_m: np.ndarray) -> np.ndarray:
    """Return points f64 [n, k, 3] as they are from go on, and NaN before."""
    waits = worlds.steps < worlds.episode.schedule.go
    return np.where(waits[:, None, None], np.nan, points_m)


def cue_lasts(worlds: Worlds) -> np.ndarray:
    """Return where the cue shows at this step, bool [n]."""
    schedule = worlds.episode.schedule
    lasts: np.ndarray = (schedule.cue_start <= worlds.steps) & (worlds.steps < schedule.cue_end)
    return lasts


def show_colour(worlds: Worlds, rows: Rows, rgb: np.ndarray) -> None:
    """Light the lamp of some rows in a colour f64 [n, 3] while the cue lasts; off otherwise."""
    worlds.paint("lamp", rows, np.where(cue_lasts(worlds)[:, None], rgb, OFF_RGB))


def flash(worlds: Worlds, rows: Rows, palette: np.ndarray) -> None:
    """Give side lamps the colour of the present distractor event, or switch them off."""
    flashes = worlds.episode.schedule.flashes
    if not flashes.shape[1]:
        return
    rgb: np.ndarray = np.full((len(worlds.steps), 3), OFF_RGB)
    for start, end, colour in flashes.transpose(1, 2, 0):
        lit = (start <= worlds.steps) & (worlds.steps < end)
        rgb = np.where(lit[:, None], palette[colour], rgb)
    worlds.paint("side_lamp", rows, rgb)


def arc(
    rng: np.random.Generator, radius_m: float, count: int, spacing_m: float, jitter_m: float
) -> np.ndarray:
    """Draw `count` points in random order along an arc around the base, shape (count, 3), z = 0."""
    angle = (np.arange(count) - (count - 1) / 2) * spacing_m / radius_m
    angle = angle[rng.permutation(count)]
    points = radius_m * np.stack([np.cos(angle), np.sin(angle), np.zeros(count)], axis=1)
    points[:, :2] += rng.uniform(-jitter_m, jitter_m, size=(count, 2))
    return points
