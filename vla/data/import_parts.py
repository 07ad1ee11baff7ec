"""Imported episodes as folders (parts) next to the new data set, written atomically.

A part holds the table, the videos that were encoded again, and a description for `join`.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla.data import remux
from vla.data.episode import EpisodeData
from vla.data.info import DatasetInfo
from vla.data.parquet import write_table
from vla.data.source import Source
from vla.data.stats import (
    SAMPLE,
    THIN,
    FeatureStats,
    Statistics,
    as_lists,
    column_values,
    has_stats,
    image_stats,
)
from vla.data.video_writer import VideoWriter
from vla.data.writer import DatasetWriter
from vla.utils import files

TABLE, EPISODE = "table.parquet", "episode.json"
VECTORS = ("observation.state", "action")
INSTRUCTION, TIMESTAMP = "instruction", "timestamp"
"""Columns of a part in addition to those of the data set."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """An imported or left-out episode."""

    folder: Path
    left_out: str
    """Why the episode is left out; empty if it is not."""
    length: int
    instructions: tuple[str, ...]
    videos: dict[str, Path]
    """Video by feature key: in the part, or in the source if it is joined without encoding."""
    encoded: dict[str, str]
    """Why a video of the source was encoded again, by feature key."""
    statistics: Statistics
    """Statistics of images."""

    def episode(self, names: set[tuple[str, str]]) -> EpisodeData:
        """Return the episode with the image statistics in `names`: pairs (feature key, name)."""
        table = pq.read_table(self.folder / TABLE)
        statistics = {
            key: {name: value for name, value in stats.items() if (key, name) in names}
            for key, stats in self.statistics.items()
        }
        return EpisodeData(
            tasks=self.instructions, task=table[INSTRUCTION].to_numpy(),
            columns=table.drop_columns([INSTRUCTION, TIMESTAMP]),
            timestamp=table[TIMESTAMP].to_numpy(), images=self.videos,
            statistics={key: stats for key, stats in statistics.items() if stats},
        )  # fmt: skip


def part_folder(parts: Path, number: int) -> Path:
    """Return where the part of an episode is."""
    return parts / f"episode-{number:07d}"


def read_part(folder: Path) -> Part:
    """Return a part that was written."""
    stored = json.loads((folder / EPISODE).read_text())
    return Part(
        folder=folder, left_out=stored["left_out"], length=stored["length"],
        instructions=tuple(stored["instructions"]), encoded=stored["encoded"],
        videos={key: folder / name for key, name in stored["videos"].items()},
        statistics={
            key: {name: np.array(values) for name, values in stats.items()}
            for key, stats in stored["statistics"].items()
        },
    )  # fmt: skip


def write_part(source: Source, number: int, folder: Path, leave_out: bool) -> None:
    """Read an episode and write its part; ValueError if it is damaged and not left out."""
    temporary = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    part: dict[str, Any] = {
        "left_out": "", "length": 0, "instructions": [], "videos": {}, "encoded": {},
        "statistics": {},
    }  # fmt: skip
    try:
        part |= _write(source, number, temporary)
    except ValueError as error:
        if not leave_out:
            raise ValueError(
                f"{error}; add --leave-out-damaged to import all other episodes"
            ) from error
        shutil.rmtree(temporary)
        temporary.mkdir()
        part["left_out"] = str(error)
    (temporary / EPISODE).write_text(json.dumps(part))
    os.replace(temporary, folder)


def _write(source: Source, number: int, folder: Path) -> dict[str, Any]:
    name = source.names[number]
    with files.parsing(name):
        episode = source.read(number)
    length = len(episode.timestamp)
    _check(name, source, episode)
    videos, encoded, statistics = {}, {}, dict(episode.statistics)
    for place, key in enumerate(k for k, f in source.features.items() if f["dtype"] == "video"):
        images = episode.images[key]
        if isinstance(images, Path):
            reason = remux.read_track(images).mismatch(length, source.fps)
            if not reason:
                videos[key] = str(images.resolve())
                statistics[key] = statistics.get(key) or _video_stats(images)
                continue
            encoded[key] = f"{images}: {reason}"
            images = _at_times(images, episode.timestamp, source.fps)
        assert isinstance(images, Iterator)
        videos[key] = f"{place}.mp4"
        video = VideoWriter(folder / videos[key], source.features[key]["shape"], source.fps)
        try:
            statistics[key] = video.write(_parsed(images, name), length, name)
        finally:
            video.close()
    write_table(
        episode.columns.append_column(INSTRUCTION, pa.array(episode.task, pa.int64()))
        .append_column(TIMESTAMP, pa.array(episode.timestamp, pa.float32())),
        folder / TABLE,
    )  # fmt: skip
    return {
        "length": length, "instructions": list(episode.tasks), "videos": videos,
        "encoded": encoded, "statistics": as_lists(statistics),
    }  # fmt: skip


def _parsed(images: Iterator[np.ndarray], name: str) -> Iterator[np.ndarray]:
    with files.parsing(name):
        yield from images


def _check(name: str, source: Source, episode: EpisodeData) -> None:
    """Raise ValueError if readers of the data set would refuse the episode."""
    if not len(episode.timestamp):
        raise ValueError(f"{name}: has no frame; leave it out")
    for text in episode.tasks:
        if not isinstance(text, str) or not text.strip() or "\0" in text:
            raise ValueError(
                f"{name}: has {text!r:.80} as instruction, expected text; give one with --task TEXT"
            )
    if not np.isfinite(episode.timestamp).all():
        raise ValueError(f"{name}: has timestamps that are no numbers; repair it or leave it out")
    for key in (k for k, f in source.features.items() if k in VECTORS or has_stats(f)):
        values = column_values(episode.columns[key])
        if key not in VECTORS:
            continue
        size = source.features[key]["shape"][0]
        if values.shape[1] != size:
            raise ValueError(f"{name}: {key!r} has {values.shape[1]} channels, expected {size}")
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            raise ValueError(
                f"{name}: {key!r} of frame {bad[0][0]}, channel {bad[0][1]} is "
                f"{values[tuple(bad[0])]} ({len(bad)} such values); repair it or leave it out"
            )


def join(
    folders: Sequence[Path], out: Path, source: Source, recording: dict[str, Any],
    advance: Callable[[], None],
) -> DatasetInfo:  # fmt: skip
    """Write the data set at `out` from the parts of its episodes, in order.

    Raises:
        OSError: the disk is full; nothing is left at `out`.
    """
    # Every row must have the same statistics: images of LeRobotDataset v2 have no quantiles, images
    # that are encoded again have them.
    names = set.intersection(*(
        {(key, name) for key, stats in read_part(folder).statistics.items() for name in stats}
        for folder in folders
    ))  # fmt: skip
    with DatasetWriter(
        out, robot=source.robot, fps=source.fps, features=source.features, recording=recording
    ) as writer:
        for folder in folders:
            writer.add(read_part(folder).episode(names))
            advance()
    return writer.info


def _video_stats(path: Path) -> FeatureStats:
    sample = [
        frame.to_ndarray(format="rgb24")[::THIN, ::THIN]
        for step, frame in enumerate(_frames(path))
        if step % SAMPLE == 0
    ]
    return image_stats(np.stack(sample))


def _frames(path: Path) -> Iterator[Any]:
    try:
        with av.open(str(path)) as container:
            yield from container.decode(container.streams.video[0])
    except av.FFmpegError as error:
        raise ValueError(f"{path}: cannot be decoded ({error}); copy it again") from error


def _at_times(path: Path, times: np.ndarray, fps: int) -> Iterator[np.ndarray]:
    """Yield the image nearest to each time of frames in time order, or raise ValueError if a time
    has none within half a frame.
    """
    frames = ((float(frame.pts * frame.time_base), frame) for frame in _frames(path))
    now: tuple[float, Any] | None = next(frames, None)
    if now is None:
        raise ValueError(f"{path}: holds no frame; copy it again")
    start, after = now[0], next(frames, None)
    for step, time in enumerate(times.tolist()):
        while after is not None and abs(after[0] - start - time) <= abs(now[0] - start - time):
            now, after = after, next(frames, None)
        if abs(now[0] - start - time) > 0.5 / fps:
            raise ValueError(
                f"{path}: has no image within half a frame of {time:.3f} s (frame {step}); copy "
                "it again or leave it out"
            )
        yield now[1].to_ndarray(format="rgb24")
