"""What memory tasks share: a clock of cue, delay and go, a locked arm, and a lamp for distractors.

The lock makes memory the only way from cue to choice: until go the arm is held at home whatever
the policy asks, at go everything but the lesson of the cue is set to a state that does not depend
on it. Two decisions or more of blank before go empty the tail of old action chunks.
"""

import dataclasses
import math

import mujoco
import numpy as np

from sim.task import Rows, Worlds
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


def draw_schedule(
    rng: np.random.Generator,
    *,
    cue_steps: int,
    delay_steps: tuple[int, int],
    decision_steps: int,
    distractors: int,
    distractor_steps: int,
    colours: int,
) -> Schedule:
    """Draw the times of an episode; nothing here depends on the cue.

    The delay is log-uniform, and go is moved up to the next decision. A delay of 0 leaves the cue
    visible. Distractors fall one into each equal share of the time before go.
    """
    cue_start = int(rng.integers(0, MAX_CUE_START + 1))
    low, high = delay_steps
    delay = 0 if high == 0 else round(math.exp(rng.uniform(math.log(low), math.log(high))))
    cue_end = cue_start + cue_steps
    go = decision_steps * math.ceil((cue_end + delay) / decision_steps)
    flashes: np.ndarray = np.zeros((distractors, 3), np.int64)
    for event in range(distractors):
        first, last = go * event // distractors, go * (event + 1) // distractors
        length = min(distractor_steps, last - first)
        start = int(rng.integers(first, last - length + 1))
        flashes[event] = start, start + length, rng.integers(colours)
    return Schedule(cue_start, cue_end if delay else 10**9, go, flashes)


def longest_go(cue_steps: int, delay_steps: tuple[int, int], decision_steps: int) -> int:
    """Return the latest control step at which an episode can be let go."""
    return decision_steps * math.ceil((MAX_CUE_START + cue_steps + delay_steps[1]) / decision_steps)


def check_timing(
    *,
    cue_steps: int,
    delay_steps: tuple[int, int],
    decision_steps: int,
    distractors: int,
    distractor_steps: int,
    act_steps: int,
) -> None:
    """Check what a user may set.

    Raises:
        ValueError: the cue or the delay is too short for the ceiling to hold, or a number is out
            of range.
    """
    low, high = delay_steps
    if cue_steps < 16:
        raise ValueError(f"cue_steps: got {cue_steps}, expected at least 16 (two decisions)")
    for name, value in (
        ("decision_steps", decision_steps),
        ("distractor_steps", distractor_steps),
        ("act_steps", act_steps),
    ):
        if value < 1:
            raise ValueError(f"{name}: got {value}, expected at least 1")
    blank = 2 * decision_steps
    if (low, high) != (0, 0) and not blank <= low <= high:
        raise ValueError(
            f"delay_steps: got {low} {high}, expected 0 0 (the cue stays visible) or "
            f"{blank} <= min <= max: a shorter blank lets an old action chunk carry the cue"
        )
    if distractors < 0:
        raise ValueError(f"distractors: got {distractors}, expected 0 or more")


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


def locked(worlds: Worlds, action: np.ndarray, home: np.ndarray) -> np.ndarray:
    """Return the actions f64 [n, u] to apply: home, f64 [u], until go."""
    free = worlds.steps >= worlds.episode.schedule.go
    return np.where(free[:, None], action, home)


def own(choices: np.ndarray, cue: np.ndarray) -> np.ndarray:
    """Return of choices [n, K, ...] the one that each world's cue i64 [n] names."""
    return choices[np.arange(len(cue)), cue]


def flash_(worlds: Worlds, rows: Rows, palette: np.ndarray) -> None:
    """Give side lamps the colour of the distractor event of now; off at any other time."""
    flashes = worlds.episode.schedule.flashes
    if not flashes.shape[1]:
        return
    rgb: np.ndarray = np.full((len(worlds.steps), 3), OFF_RGB)
    for start, end, colour in flashes.transpose(1, 2, 0):
        lit = (start <= worlds.steps) & (worlds.steps < end)
        rgb = np.where(lit[:, None], palette[colour], rgb)
    worlds.paint_("side_lamp", rows, rgb)


def arc(
    rng: np.random.Generator, radius_m: float, count: int, spacing_m: float, jitter_m: float
) -> np.ndarray:
    """Draw `count` points in random order along an arc around the base, shape (count, 3), z = 0."""
    angle = (np.arange(count) - (count - 1) / 2) * spacing_m / radius_m
    angle = angle[rng.permutation(count)]
    points = radius_m * np.stack([np.cos(angle), np.sin(angle), np.zeros(count)], axis=1)
    points[:, :2] += rng.uniform(-jitter_m, jitter_m, size=(count, 2))
    return points


def palette_array(count: int) -> np.ndarray:
    """Return the first `count` palette colours, shape (count, 3)."""
    return np.array(list(PALETTE.values())[:count])
