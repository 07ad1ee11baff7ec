"""Buttons of different colours that appear in a new order at go, to be pressed."""

import mujoco
import numpy as np

from sim.core import rewards
from sim.core.task import Rows, World, Worlds
from sim.experts.motions import Motion
from sim.tasks import _lock
from vla.contracts.specs import RobotSpec

RADIUS_M = 0.03
HALF_HEIGHT_M = 0.012
SPACING_M = 0.085
WIDEST_RAD = 2.1
ROOMY_CHOICES = 5
"""With more buttons, an open hand would touch two at once."""
JITTER_M = 0.006
HIDDEN_Z_M = -1.0


def add(scene: mujoco.MjSpec, palette: np.ndarray) -> None:
    """Add a button for each colour f64 [K, 3]; they wait under the floor."""
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
