"""Episodes of a data set as entities: cameras, state, action, instruction and labels."""

from typing import Any

import numpy as np
import rich.progress

from training.view import drawing, layout
from vla.data.decode import FrameChoice, decode_views
from vla.data.info import Columns, DatasetInfo

BLOCK = 256
"""Frames decoded at once."""
LABELS = ("progress", "next.")
"""Prefixes of the columns of labels, such as those of `vla label`."""


def labels(info: DatasetInfo) -> list[str]:
    """Return the names of the label columns."""
    return [name for name in info.scalars if name.startswith(LABELS)]


def check(info: DatasetInfo, episodes: tuple[int, ...]) -> None:
    """Raise ValueError unless the data set has these episodes."""
    for number in episodes:
        if not 0 <= number < info.num_episodes:
            raise ValueError(
                f"episodes: got {number}, {info.path} has 0 to {info.num_episodes - 1}"
            )


def show(
    stream: Any, info: DatasetInfo, columns: Columns, episodes: tuple[int, ...],
    bar: rich.progress.Progress,
) -> None:  # fmt: skip
    """Log episodes under separate entities, and a layout with a tab for each."""
    line = bar.add_task("frames", total=int(info.lengths[list(episodes)].sum()))
    for number in episodes:
        _numbers(stream, info, columns, number)
        for begin in range(0, int(info.lengths[number]), BLOCK):
            steps = np.arange(begin, min(begin + BLOCK, int(info.lengths[number])))
            _images(stream, info, number, steps)
            bar.advance(line, len(steps))
    cameras = [camera.name for camera in info.cameras]
    tabs = [layout.episode(place(n), f"episode {n}", cameras, reward_model=bool(labels(info)))
             for n in episodes]  # fmt: skip
    layout.send(stream, tabs)


def place(number: int) -> str:
    """Return the entity path of an episode."""
    return f"episode_{number}"


def _numbers(stream: Any, info: DatasetInfo, columns: Columns, number: int) -> None:
    rows = slice(int(info.offsets[number]), int(info.offsets[number + 1]))
    at, times = place(number), _times(info, np.arange(info.lengths[number]))
    drawing.text(stream, f"{at}/task", info.tasks[number])
    drawing.scalars(stream, f"{at}/state", times, columns.state[rows], info.state_names)
    drawing.scalars(stream, f"{at}/action", times, columns.action[rows], info.action_names)
    for name in labels(info):
        values = columns.scalars[name][rows]
        drawing.scalars(stream, f"{at}/reward_model/{name}", times, values, (name,))


def _images(stream: Any, info: DatasetInfo, number: int, steps: np.ndarray) -> None:
    choice = FrameChoice(episode=np.full(len(steps), number), step=steps)
    for camera in info.cameras:
        images = decode_views(info, (camera,), choice, (camera.height_px, camera.width_px))
        path = f"{place(number)}/camera/{camera.name}"
        drawing.images(stream, path, _times(info, steps), images[:, 0])


def _times(info: DatasetInfo, steps: np.ndarray) -> drawing.Times:
    return {"time": steps / info.fps, "step": steps}
