"""Recorded observations for verification and calibration: one row, one unbroken episode."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from vla.contracts.types import Observation
from vla.data import check
from vla.data.store import EpisodeStore, load_episodes
from vla.policies.vla import VLAPolicy


def load(data: Path, policy: VLAPolicy) -> EpisodeStore:
    """Return the frames of a data set for a policy's cameras, one per decision.

    Raises:
        ValueError: the data are damaged, or lack a camera or a channel of its robot.
    """
    robot = policy.robot
    store = load_episodes(
        data, cameras=tuple(camera.name for camera in robot.cameras),
        image_hw=(robot.cameras[0].height_px, robot.cameras[0].width_px),
        stride=policy.n_action_steps, phase_seed=0, phases=1,
        cache_dir=data.parent / f"{data.name}-cache",
    )  # fmt: skip
    check.fits_robot(store, robot, data)
    return store


def observations(store: EpisodeStore, hz: float, count: int) -> Iterator[Observation]:
    """Yield `count` observations of one row: recorded frames in order, as one episode."""
    for i in range(count):
        frame = i % len(store.frames)
        episode, step = store.frame_episode[frame : frame + 1], store.frame_time[frame : frame + 1]
        images = store.frames[frame : frame + 1]
        yield Observation(
            images=images, image_ok=np.ones(images.shape[:2], np.bool_),
            proprio=store.state_at(episode, step), task=(store.tasks[int(episode[0])],),
            time_s=np.array([i * store.stride / hz]),
        )  # fmt: skip
