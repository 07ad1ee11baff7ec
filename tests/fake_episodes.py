"""Small made-up episodes with the fields of `sim.experts.episode.EpisodeRecord`; no simulator."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vla.contracts.config import PluginConfig
from vla.contracts.specs import CameraSpec, Channel, Gripper, RobotSpec

COLOURS = np.array([[220, 30, 30], [30, 200, 40], [40, 60, 220], [230, 210, 40]], np.uint8)
"""Red, green, blue, yellow."""
SQUARE_PX = 4


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Configuration of the made-up task."""

    difficulty: int = 1


@dataclass(frozen=True, kw_only=True)
class FakeEpisode:
    """See `sim.experts.episode.EpisodeRecord`."""

    images: np.ndarray
    proprio: np.ndarray
    action: np.ndarray
    success: np.ndarray
    progress: np.ndarray
    instruction: str
    behaviour: str
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    instructions: tuple[str, ...] = ()


def fake_robot(size_px: int = 32) -> RobotSpec:
    """Return a two-channel arm with two cameras."""
    channels = tuple(
        Channel(
            name=name,
            unit="rad",
            low=-2.0,
            high=2.0,
            velocity=1.0,
            acceleration=2.0,
            jerk=4.0,
            source="made up",
        )
        for name in ("joint", "gripper")
    )
    cameras = tuple(
        CameraSpec(
            name=name,
            body="world",
            pos_m=(0.5, 0.0, 0.5),
            target_m=(0.0, 0.0, 0.0),
            fovy_deg=50.0,
            width_px=size_px,
            height_px=size_px,
        )
        for name in ("front", "wrist")
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
    task: str,
    seed: int,
    index: int,
    behaviour: str = "expert",
    robot: RobotSpec | None = None,
    task_config: Any = None,
    visual_shift: str = "none",
    recovery_fraction: float = 0.0,
) -> FakeEpisode:
    """Return episode (seed, index): a square of `COLOURS[index % 4]` crosses a grey slope."""
    robot = robot or fake_robot()
    size, channels = robot.cameras[0].height_px, len(robot.channels)
    rng = np.random.default_rng([seed, index])
    steps = int(rng.integers(9, 15))
    images = np.empty((steps, 2, size, size, 3), np.uint8)
    images[:] = np.linspace(80, 160, size).astype(np.uint8)[:, None]
    for t in range(steps):
        images[t, 0, 8 : 8 + SQUARE_PX, 4 + t : 4 + t + SQUARE_PX] = COLOURS[index % 4]
        images[t, 1, 4 + t : 4 + t + SQUARE_PX, 8 : 8 + SQUARE_PX] = COLOURS[index % 4]
    action = np.cumsum(rng.normal(0, 0.1, (steps, channels)), axis=0).astype(np.float32)
    return FakeEpisode(
        images=images,
        proprio=np.vstack([np.zeros((1, channels), np.float32), action[:-1]]),
        action=action,
        success=np.arange(steps) == steps - 1,
        progress=np.linspace(0, 1, steps).astype(np.float32),
        instruction=f"{task} {index % 2}",
        behaviour=behaviour,
    )


def failing_episode(
    task: str, seed: int, index: int, behaviour: str, robot: RobotSpec, task_config: Any,
    visual_shift: str, recovery_fraction: float,
) -> FakeEpisode:  # fmt: skip
    """Like `fake_episode`, but the disk is full when episode 3 is due."""
    if index == 3:
        raise OSError(28, "No space left on device")
    return fake_episode(task, seed, index, behaviour, robot, task_config)
