"""Small made-up episodes with the fields of `sim.episode.EpisodeRecord`; no simulator."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from vla.contracts.specs import CameraSpec, Channel, Gripper, RobotSpec

COLOURS = np.array([[220, 30, 30], [30, 200, 40], [40, 60, 220], [230, 210, 40]], np.uint8)


@dataclass(frozen=True, kw_only=True)
class FakeEpisode:
    images: np.ndarray
    proprio: np.ndarray
    action: np.ndarray
    success: np.ndarray
    progress: np.ndarray
    instruction: str
    behaviour: str


def fake_robot(size_px: int = 32) -> RobotSpec:
    """Return a two-channel arm with two cameras."""
    limits = dict(low=-2.0, high=2.0, velocity=1.0, acceleration=2.0, jerk=4.0, source="made up")
    channels = tuple(Channel(name=n, unit="rad", **limits) for n in ("joint", "gripper"))
    cameras = tuple(
        CameraSpec(
            name=n,
            body="world",
            pos_m=(0.5, 0.0, 0.5),
            target_m=(0.0, 0.0, 0.0),
            fovy_deg=50.0,
            width_px=size_px,
            height_px=size_px,
        )
        for n in ("front", "wrist")
    )
    return RobotSpec(
        name="fake",
        channels=channels,
        gripper=Gripper(channel="gripper", open=1.0, closed=0.0),
        home=(0.0, 0.0),
        cameras=cameras,
        control_hz=10.0,
        mjcf="none.xml",
    )


def fake_episode(
    task_name: str,
    seed: int,
    index: int,
    behaviour: str = "expert",
    robot: RobotSpec | None = None,
    task_config: Any = None,
) -> FakeEpisode:
    """Return episode (seed, index): a coloured square crosses a smooth background, a joint turns."""
    robot = robot or fake_robot()
    size = robot.cameras[0].height_px
    rng = np.random.default_rng([seed, index])
    steps = int(rng.integers(9, 15))
    column = np.linspace(80, 160, size, dtype=np.float32)
    images = np.empty((steps, 2, size, size, 3), np.uint8)
    images[:] = column[:, None].astype(np.uint8)
    colour = COLOURS[index % len(COLOURS)]
    for t in range(steps):
        images[t, 0, 8:12, 4 + t : 8 + t] = colour
        images[t, 1, 4 + t : 8 + t, 8:12] = colour
    action = np.cumsum(rng.normal(0, 0.1, (steps, 2)), axis=0).astype(np.float32)
    return FakeEpisode(
        images=images,
        proprio=np.vstack([np.zeros((1, 2), np.float32), action[:-1]]),
        action=action,
        success=np.arange(steps) == steps - 1,
        progress=np.linspace(0, 1, steps).astype(np.float32),
        instruction=f"{task_name} {index % 2}",
        behaviour=behaviour,
    )
