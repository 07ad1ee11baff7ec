"""Description of a LeRobotDataset v3 as plain data; `vla.data.reader` creates it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FILES_PER_CHUNK = 1000
DATA = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"
RECORDING_FILE = "meta/recording.json"
"""Settings of the recording; LeRobot ignores the file."""
INDEX_COLUMNS = {
    "timestamp": "float32", "frame_index": "int64", "episode_index": "int64", "index": "int64",
    "task_index": "int64",
}  # fmt: skip
"""Standard columns of every data set with their dtype."""


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
    """A data set that passed every check: contents and positions of its episodes."""

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
    """Settings of the recording, if `vla demos` recorded the data set."""
    texts: tuple[str, ...] = ()
    """Instructions that `frame_text` refers to."""
    frame_text: np.ndarray | None = None
    """i64 `frames`, in order of episode and time: index in `texts` of each frame's instruction, if
    it changes within an episode; else None."""

    @property
    def instructions(self) -> tuple[str, ...]:
        """All instructions, sorted."""
        return tuple(sorted({*self.tasks, *self.texts}))

    def episode_instructions(self, episode: int) -> tuple[tuple[str, ...], np.ndarray]:
        """Return the instructions of an episode, and the index of that of each frame, i64 `t`."""
        begin, end = self.offsets[episode : episode + 2]
        if self.frame_text is None:
            return (self.tasks[episode],), np.zeros(end - begin, np.int64)
        used, index = np.unique(self.frame_text[begin:end], return_inverse=True)
        return tuple(self.texts[i] for i in used), index.astype(np.int64)

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return len(self.tasks)

    @property
    def num_frames(self) -> int:
        """Number of frames of all episodes."""
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
            ValueError: there is none; the message lists the cameras.
        """
        for camera in self.cameras:
            if name in (camera.name, camera.key):
                return camera
        names = ", ".join(c.name for c in self.cameras)
        raise ValueError(f"{self.path}: no camera {name!r}; it has {names}; name one of those")


@dataclass(frozen=True, kw_only=True)
class Columns:
    """Numeric columns of all frames of a data set, in order of episode and time."""

    state: np.ndarray
    """f32 `n s`."""
    action: np.ndarray
    """f32 `n u`."""
    scalars: dict[str, np.ndarray]
    """f32 `n` each; booleans as 0 and 1."""
