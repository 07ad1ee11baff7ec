"""One imported episode as a folder beside the data set to be: whole or absent, so a kill costs one.

A part holds the table, the videos that had to be encoded, and what the join must know. Joining is
in `vla.data.import_join`.
"""

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from vla.data import remux
from vla.data.plain_writer import Statistics, statistics
from vla.data.source import Source, SourceEpisode
from vla.data.video_writer import SAMPLE, VideoWriter, sample_statistics

TABLE, EPISODE = "table.parquet", "episode.json"
VECTORS = ("observation.state", "action")
INSTRUCTION, TIMESTAMP = "instruction", "timestamp"
"""Columns of a part beside those of the set."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """An episode that was read, or was left out."""

    folder: Path
    left_out: str
    """Why, empty if it was not."""
    length: int
    instructions: tuple[str, ...]
    videos: dict[str, Path]
    """By feature key: in the part, or the source's own where it is kept as it is."""
    encoded: dict[str, str]
    """Why a video of the source was encoded anew, by feature key."""
    statistics: Statistics

    def table(self) -> pa.Table:
        """Return its columns, with instruction and timestamp."""
        return pq.read_table(self.folder / TABLE)


def folder_of(parts: Path, number: int) -> Path:
    """Return where the part of an episode is."""
    return parts / f"episode-{number:07d}"


def read_part(folder: Path) -> Part:
    """Return a part that was written."""
    said = json.loads((folder / EPISODE).read_text())
    return Part(
        folder=folder, left_out=said["left_out"], length=said["length"],
        instructions=tuple(said["instructions"]), encoded=said["encoded"],
        videos={key: folder / name for key, name in said["videos"].items()},
        statistics={
            key: {name: np.array(values) for name, values in one.items()}
            for key, one in said["statistics"].items()
        },
    )  # fmt: skip


def write_part(source: Source, number: int, folder: Path, leave_out: bool) -> None:
    """Read an episode and write its part.

    Raises:
        ValueError: the episode is damaged, and `leave_out` is False.
    """
    fresh = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    try:
        said = _write(source, number, fresh)
    except ValueError as error:
        if not leave_out:
            raise ValueError(
                f"{error}; with --leave-out-damaged everything but such episodes is imported"
            ) from error
        shutil.rmtree(fresh)
        fresh.mkdir()
        said = _said(left_out=str(error))
    (fresh / EPISODE).write_text(json.dumps(said))
    os.replace(fresh, folder)


def _said(**known: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {
        "left_out": "", "length": 0, "instructions": [], "videos": {}, "encoded": {},
        "statistics": {},
    }  # fmt: skip
    return {**empty, **known}


def _write(source: Source, number: int, fresh: Path) -> dict[str, Any]:
    name = source.names[number]
    episode = source.read(number)
    length = len(episode.timestamp)
    _check(name, source, episode)
    videos, encoded, found = {}, {}, {}
    for place, key in enumerate(k for k, f in source.features.items() if f["dtype"] == "video"):
        pictures = episode.pictures[key]
        why = ""
        if isinstance(pictures, Path):
            why = remux.track(pictures).lacks(length, source.fps)
            if not why:
                videos[key] = str(pictures.resolve())
                found[key] = episode.statistics.get(key) or _video_statistics(pictures)
                continue
            encoded[key] = f"{pictures}: {why}"
            pictures = _at_times(pictures, episode.timestamp, source.fps)
        videos[key] = f"{place}.mp4"
        shape = tuple(source.features[key]["shape"])
        found[key] = _encode(fresh / videos[key], shape, source.fps, pictures, length, name)
    pq.write_table(
        episode.columns.append_column(INSTRUCTION, pa.array(episode.instruction, pa.int64()))
        .append_column(TIMESTAMP, pa.array(episode.timestamp, pa.float32())),
        fresh / TABLE,
    )  # fmt: skip
    found |= {
        key: episode.statistics[key]
        for key, feature in source.features.items()
        if feature["dtype"] == "image" and key in episode.statistics
    }
    found |= _column_statistics(source, episode.columns)
    return _said(
        length=length, instructions=list(episode.instructions), videos=videos, encoded=encoded,
        statistics={
            key: {n: np.asarray(v).tolist() for n, v in one.items()} for key, one in found.items()
        },
    )  # fmt: skip


def _check(name: str, source: Source, episode: SourceEpisode) -> None:
    """Raise ValueError where a reader of the data set would refuse the episode."""
    if not len(episode.timestamp):
        raise ValueError(f"{name}: has no frame; leave it out")
    if not all(text.strip() for text in episode.instructions):
        raise ValueError(f"{name}: has no instruction; give one with --task TEXT")
    for key in VECTORS:
        values = column_values(episode.columns[key])
        size = source.features[key]["shape"][0]
        if values.shape[1] != size:
            raise ValueError(f"{name}: {key!r} has {values.shape[1]} channels, expected {size}")
        bad = np.argwhere(~np.isfinite(values))
        if len(bad):
            raise ValueError(
                f"{name}: {key!r} of frame {bad[0][0]}, channel {bad[0][1]} is "
                f"{values[tuple(bad[0])]} ({len(bad)} such values); mend it or leave it out"
            )


def column_values(column: pa.ChunkedArray) -> np.ndarray:
    """Return a column of numbers or of lists of one length as f64 `t d`."""
    whole = column.combine_chunks()
    flat = whole
    while not (pa.types.is_primitive(flat.type) or pa.types.is_boolean(flat.type)):
        flat = flat.flatten()
    values = flat.to_numpy(zero_copy_only=False).astype(np.float64)
    if not len(whole) or values.size % len(whole):
        raise ValueError(f"got {values.size} numbers in {len(whole)} rows, expected as many in all")
    return values.reshape(len(whole), -1)


def _column_statistics(source: Source, columns: pa.Table) -> Statistics:
    kinds = ("float", "int", "uint", "bool")
    return {
        key: statistics(column_values(columns[key]))
        for key, feature in source.features.items()
        if key in columns.column_names
        and feature["dtype"].startswith(kinds)
        and len(feature["shape"]) == 1
    }


def _encode(
    path: Path, shape: tuple[int, ...], fps: int, pictures: Iterator[np.ndarray], length: int,
    name: str,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Write pictures as a video; return their statistics."""
    sample: list[np.ndarray] = []

    def checked() -> Iterator[np.ndarray]:
        for step, pixels in enumerate(pictures):
            if pixels.shape != shape:
                raise ValueError(f"{name}: picture {step} is {pixels.shape}, expected {shape}")
            if step % SAMPLE == 0:
                sample.append(pixels[::4, ::4].copy())
            yield pixels

    video = VideoWriter(path, (shape[0], shape[1], shape[2]), fps)
    try:
        video.write(checked())
    finally:
        video.close()
    if video.frames != length:
        raise ValueError(f"{name}: has {video.frames} pictures for {length} frames")
    return _shrunk_statistics(sample)


def _shrunk_statistics(sample: list[np.ndarray]) -> dict[str, np.ndarray]:
    # `sample_statistics` takes every fourth pixel, which was done to keep little in memory.
    return sample_statistics(np.stack(sample).repeat(4, axis=1).repeat(4, axis=2))


def _video_statistics(path: Path) -> dict[str, np.ndarray]:
    sample = [
        frame.to_ndarray(format="rgb24")[::4, ::4]
        for step, frame in enumerate(_frames(path))
        if step % SAMPLE == 0
    ]
    return _shrunk_statistics(sample)


def _frames(path: Path) -> Iterator[Any]:
    try:
        with av.open(str(path)) as container:
            yield from container.decode(container.streams.video[0])
    except av.FFmpegError as error:
        raise ValueError(f"{path}: cannot be decoded ({error}); copy it again") from error


def _at_times(path: Path, times: np.ndarray, fps: int) -> Iterator[np.ndarray]:
    """Yield the picture nearest to each time; frames of a video come in order of time.

    Raises:
        ValueError: a time has no picture within half a frame.
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
                f"{path}: has no picture within half a frame of {time:.3f} s (frame {step}); copy "
                "it again or leave it out"
            )
        yield now[1].to_ndarray(format="rgb24")
