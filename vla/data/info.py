"""What a LeRobotDataset v3 holds, as plain data; `vla.data.reader` checks and fills it in."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Camera:
    """One camera of a data set."""

    name: str
    """Key without "observation.images." or "observation."."""
    key: str
    """Feature key, such as "observation.images.front"."""
    height_px: int
    width_px: int
    video: bool
    """True if stored in MP4 files, False if as encoded images within the tables."""


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """A data set that passed every check: what it holds and where each episode lies."""

    path: Path
    fps: float
    """Control steps per second; frame i of an episode is at i / fps seconds."""
    robot: str | None
    """LeRobot's robot type, if the recorder named one."""
    cameras: tuple[Camera, ...]
    state_names: tuple[str, ...]
    action_names: tuple[str, ...]
    scalars: tuple[str, ...]
    """Names of the other numeric or boolean columns with one value per frame."""
    tasks: tuple[str, ...]
    """Instruction of each episode, that of its first frame."""
    offsets: np.ndarray
    """i64 `n+1`: frames of episode e are offsets[e] to offsets[e+1] of the columns."""
    video_start: dict[str, np.ndarray]
    """Per video key, i64 `n`: position of each episode's first frame in its file."""
    video_file: dict[str, tuple[Path, ...]]
    """Per video key, the file that holds each episode, relative to `path`."""
    recording: dict[str, Any] | None
    """What `vla demos` was asked for, if it recorded the set."""

    @property
    def num_episodes(self) -> int:
        """Episodes."""
        return len(self.tasks)

    @property
    def num_frames(self) -> int:
        """Frames, over all episodes."""
        return int(self.offsets[-1])

    @property
    def lengths(self) -> np.ndarray:
        """i64 `n`: control steps of each episode."""
        return np.diff(self.offsets)

    @property
    def state_dim(self) -> int:
        """S, channels of the state."""
        return len(self.state_names)

    @property
    def action_dim(self) -> int:
        """U, channels of the action."""
        return len(self.action_names)

    def camera(self, name: str) -> Camera:
        """Return the camera called `name` (or whose key it is).

        Raises:
            ValueError: there is none; the message lists those there are.
        """
        for camera in self.cameras:
            if name in (camera.name, camera.key):
                return camera
        known = ", ".join(c.name for c in self.cameras)
        raise ValueError(f"{self.path}: no camera {name!r}; it has {known}; name one of those")

    def moved_to(self, path: Path) -> "DatasetInfo":
        """Return the same description of a data set that was renamed to `path`."""
        return dataclasses.replace(self, path=path)


@dataclass(frozen=True, kw_only=True)
class Columns:
    """The numbers of every frame of a data set, in order of episode and time."""

    state: np.ndarray
    """f32 `n s`."""
    action: np.ndarray
    """f32 `n u`."""
    scalars: dict[str, np.ndarray]
    """f32 `n` each; booleans as 0 and 1."""
