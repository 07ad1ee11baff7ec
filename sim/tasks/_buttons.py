"""Buttons, and tasks in which the first one touched decides."""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeVar

import mujoco
import numpy as np

from sim.core import rewards
from sim.core.task import Rows, World, Worlds
from sim.experts.motions import Motion
from sim.tasks import _lock
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Array

RADIUS_M = 0.03
HALF_HEIGHT_M = 0.012
SPACING_M = 0.085
WIDEST_RAD = 2.1
ROOMY_CHOICES = 5
"""With more buttons, an open hand would touch two at once."""
JITTER_M = 0.006
HIDDEN_Z_M = -1.0
RAISED_M = 0.05
C = TypeVar("C", bound=_lock.MemoryTaskConfig)


def add(scene: mujoco.MjSpec, palette: np.ndarray) -> None:
    """Add a button of each colour f64 [K, 3]; they wait under the floor."""
    for k, rgb in enumerate(palette):
        body = scene.worldbody.add_body(name=f"button{k}", mocap=True, pos=(0.2, 0.0, HIDDEN_Z_M))
        body.add_geom(
            name=f"button{k}",
            type=mujoco.mjtGeom.mjGEOM_CYLINDER,
            size=(RADIUS_M, HALF_HEIGHT_M, 0),
            rgba=(*rgb, 1.0),
        )


def draw(rng: np.random.Generator, robot: RobotSpec, count: int) -> np.ndarray:
    """Draw where each of `count` buttons will stand, on an arc in front of the arm, f64 [K, 3]."""
    near, far = robot.reach_m
    radius_m = near + 0.65 * (far - near)
    # Many buttons move closer together: the outer ones must not hide the lamps.
    spacing_m = min(SPACING_M, WIDEST_RAD * radius_m / (count - 1))
    buttons = _lock.arc(rng, radius_m, count, spacing_m, JITTER_M)
    buttons[:, 2] = HALF_HEIGHT_M
    return buttons


def show(worlds: Worlds, rows: Rows, buttons_m: np.ndarray) -> None:
    """Put the buttons of some rows where they stand, f64 [n, K, 3]."""
    level = np.zeros(len(worlds.steps))
    for k in range(buttons_m.shape[1]):
        worlds.place(f"button{k}", rows, buttons_m[:, k], level)
    worlds.refresh()


def touched(worlds: Worlds, buttons_m: np.ndarray) -> np.ndarray:
    """Return which buttons, standing at f64 [n, K, 3], the arm touches now, bool [n, K]."""
    names = [f"button{k}" for k in range(buttons_m.shape[1])]
    contact = np.stack([worlds.touching(name) > 0 for name in names], axis=1)
    offset = worlds.tool_m[:, None] - buttons_m
    inside = (rewards.length(offset[:, :, :2]) < RADIUS_M) & (
        np.abs(offset[:, :, 2]) < HALF_HEIGHT_M
    )
    return contact | inside


def distance_m(worlds: Worlds, button_m: np.ndarray) -> np.ndarray:
    """Return the distance of the tool from the top of one button each, f64 [n, 3], as f64 [n]."""
    return rewards.length(worlds.tool_m - (button_m + (0.0, 0.0, HALF_HEIGHT_M)))


def motion(world: World, count: int) -> Motion:
    """Return an expert's motion among `count` buttons, with a hand that touches one at a time."""
    made = Motion(world)
    if count > ROOMY_CHOICES:
        made.opening = world.robot.gripper.closed
    return made


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Episode:
    """What happens in one episode with buttons; in many, with a leading axis on every field."""

    schedule: _lock.Schedule
    """When cue, distractors and go come; in a blank after a press, its own."""
    buttons_m: np.ndarray
    """Where each button stands from go on, shape (K, 3)."""
    start_distance_m: Array = 1.0
    """Distance of the tool from the button to press next, when the arm came free."""


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class TouchEpisode(Episode):
    """An episode in which the first touch decides."""

    touched: np.ndarray
    """Which buttons were touched first, bool, shape (K,): a single one in practice."""


class ButtonTask(_lock.LockedTask[C], ABC):
    """What tasks share whose buttons come when the arm is free; their episodes are of `Episode`."""

    has_lamp = True
    """Whether a lamp, to the left of the arm, shows the cue."""
    button_rgb: Any = None
    """Colour of all buttons at first, or of each; those of the lamp if None."""

    def build(self, scene: mujoco.MjSpec) -> None:
        """Add lamp, side lamp and buttons, which wait under the floor."""
        if self.has_lamp:
            _lock.add_cue_lamp(scene, self.robot)
        _lock.add_side_lamp(scene, self.robot)
        rgb = self._palette if self.button_rgb is None else np.array(self.button_rgb)
        add(scene, rgb if rgb.ndim == 2 else np.tile(rgb, (self.config.choices, 1)))

    @abstractmethod
    def right(self, episode: Any) -> Any:
        """Return the index of the button to press next; of many episodes, with a leading axis."""

    @abstractmethod
    def show_cue(self, worlds: Worlds, rows: Rows) -> None:
        """Show cue and distractors as they are at this step, in rows whose arm is locked."""

    def hold(self, worlds: Worlds, locked: np.ndarray, ends: np.ndarray) -> None:
        """Keep the lock in rows bool [n] and show the cue; where it `ends`, set the scene."""
        if locked.any():
            worlds.hold_home(locked)
            self.show_cue(worlds, locked)
            if ends.any():
                worlds.go_home(ends)
                show(worlds, ends, worlds.episode.buttons_m)
                worlds.episode.start_distance_m[ends] = self.distance_m(worlds)[ends]
            worlds.refresh()

    def referents(self, worlds: Worlds) -> np.ndarray:
        """See `sim.core.task.HasReferents`: the button to press next, from go on."""
        button = self.right_m(worlds)
        return _lock.after_go(worlds, np.stack([button, button], 1))

    def right_m(self, worlds: Worlds) -> np.ndarray:
        """Return where the button to press next stands, f64 [n, 3]."""
        return _lock.cued(worlds.episode.buttons_m, self.right(worlds.episode))

    def distance_m(self, worlds: Worlds) -> np.ndarray:
        """Return the distance of the tool from that button, f64 [n]."""
        return distance_m(worlds, self.right_m(worlds))


class FirstTouch(ButtonTask[C]):
    """What tasks share in which one of K buttons is right, and the first touch after go decides.

    Its episodes are of `TouchEpisode`.
    """

    instructions: tuple[str, ...]
    variants = ("wrong_object", "near_miss", "hover")
    waits_in_view = False
    """Whether the buttons stand before the arm from the beginning; else they come at go."""

    def draw(self, rng: np.random.Generator, cue_steps: int) -> dict[str, Any]:
        """Draw the times of an episode and the layout at go: fields of the episode."""
        config = self.config
        colours = len(self._palette)
        schedule = _lock.draw_schedule(rng, config, cue_steps=cue_steps, colours=colours)
        buttons = draw(rng, self.robot, config.choices)
        touched = np.zeros(config.choices, np.bool_)
        return {"schedule": schedule, "buttons_m": buttons, "touched": touched}

    def begin(self, world: World, episode: TouchEpisode, instruction: int | None = None) -> None:
        """Begin an episode; draw the index of its instruction if not given."""
        world.episode = episode
        if instruction is None:
            instruction = int(world.rng.integers(len(self.instructions)))
        world.instruction = self.instructions[instruction]
        world.time_limit = episode.schedule.go + self.config.act_steps
        worlds = world.as_batch
        if self.waits_in_view:
            show(worlds, np.ones(1, np.bool_), worlds.episode.buttons_m)
        self.show_cue(worlds, True)

    def advance(self, worlds: Worlds) -> None:
        """Keep the lock, show the cue, set the scene at go, then watch for a touch."""
        episode, go = worlds.episode, worlds.episode.schedule.go
        until_go, at_go = worlds.steps <= go, worlds.steps == go
        if not until_go.all():
            watched = ~until_go & ~episode.touched.any(1)
            episode.touched[watched] = touched(worlds, episode.buttons_m)[watched]
        self.hold(worlds, until_go, at_go)

    def success(self, worlds: Worlds) -> np.ndarray:
        """True if the right button was touched first."""
        hit = worlds.episode.touched
        if not hit.any():
            return np.zeros(len(hit), np.bool_)
        return _lock.cued(hit, self.right(worlds.episode)) & (hit.sum(1) == 1)

    def failure(self, worlds: Worlds) -> np.ndarray:
        """True if any other button was touched first, or with it."""
        decided = worlds.episode.touched.any(1)
        return decided & ~self.success(worlds) if decided.any() else decided

    def progress(self, worlds: Worlds) -> np.ndarray:
        """0 until go, then the share of the way to the right button, below 0.95 until success."""
        episode = worlds.episode
        nothing = (worlds.steps < episode.schedule.go) | self.failure(worlds)
        if nothing.all():
            return np.zeros(len(nothing))
        way = rewards.share_done(self.distance_m(worlds), episode.start_distance_m)
        return np.where(self.success(worlds), 1.0, np.where(nothing, 0.0, 0.95 * way))

    def script(self, world: World, variant: str) -> Iterator[np.ndarray]:
        """Wait for go, then press the right button; the variants press wrong or not at all."""
        episode = world.episode
        yield from self.wait(world)
        arm = motion(world, self.config.choices)
        number = (self.right(episode) + (variant == "wrong_object")) % self.config.choices
        button = episode.buttons_m[number]
        if variant == "hover":
            yield from arm.hover(button + (0.0, 0.0, RAISED_M), max_steps=12)
        elif variant == "near_miss":
            # Miss it on the far side: its neighbours stand to the left and right.
            beside = button * (1.0 + 0.055 / np.linalg.norm(button[:2]))
            yield from arm.press(beside, clearance_m=0.06)
            yield from arm.wait(4)
        else:
            yield from arm.press(button)
