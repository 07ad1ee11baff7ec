"""Gives a data set its name once it is complete, so that there is never half of one."""

import os
import re
from pathlib import Path

from vla.data.info import DatasetInfo
from vla.data.reader import open_dataset


def check_whole(path: Path, episodes: int) -> DatasetInfo:
    """Open a data set just written and check that it holds `episodes` episodes."""
    info = open_dataset(path)
    if info.num_episodes != episodes:
        raise ValueError(f"{path}: wrote {episodes} episodes but {info.num_episodes} are readable")
    return info


def publish(temporary: Path, path: Path) -> None:
    """Flush a finished directory to disk and give it its name: it now survives a power cut."""
    for place, _, files in os.walk(temporary):
        for name in [*(os.path.join(place, f) for f in files), place]:
            _flush(name)
    temporary.rename(path)
    _flush(path.parent)


def leftovers(path: Path) -> list[Path]:
    """Return what killed processes had begun to write for `path`, and only for that.

    Another set beside it may be called NAME.SOMETHING and be written right now.
    """
    mine = re.compile(re.escape(f".{path.name}.") + r"\d+\.tmp")
    return [place for place in path.parent.iterdir() if mine.fullmatch(place.name)]


def _flush(name: str | Path) -> None:
    handle = os.open(name, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
