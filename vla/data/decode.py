"""Decodes selected frames of the videos or embedded images of a data set, each file once.

Groups of frames without a selected frame are skipped. `vla.data.store` selects and caches frames.
"""

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from vla.contracts.specs import MAX_IMAGE_PX
from vla.data.info import Camera, DatasetInfo
from vla.data.reader import table_files

THREADS = 2
"""Files decoded at the same time; FFmpeg releases the interpreter lock."""


@dataclass(frozen=True, kw_only=True)
class FrameChoice:
    """Frames to decode: row r of the result is step `step[r]` of episode `episode[r]`."""

    episode: np.ndarray
    """i64 `f`."""
    step: np.ndarray
    """i64 `f`, control steps since the episode began."""


def decode_views(
    info: DatasetInfo, cameras: tuple[Camera, ...], choice: FrameChoice,
    image_hw: tuple[int, int], out: np.ndarray | None = None,
) -> np.ndarray:  # fmt: skip
    """Return the selected frames of some cameras, in view order, as u8 `f v h w 3` RGB.

    Images of another size are stretched to `image_hw` (area average). `out` is an array of zeros of
    the result's shape to write into, if one array holds several sets.

    Raises:
        ValueError: a file cannot be decoded or lacks a frame.
    """
    shape = (len(choice.step), len(cameras), *image_hw, 3)
    frames = np.zeros(shape, np.uint8) if out is None else out
    jobs = []
    for view, camera in enumerate(cameras):
        fill = _fill_from_videos if camera.video else _fill_from_tables
        jobs += fill(info, camera, choice, frames[:, view])
    with ThreadPoolExecutor(THREADS) as pool:
        for job in [pool.submit(job) for job in jobs]:
            job.result()
    return frames


def _fill_from_videos(
    info: DatasetInfo, camera: Camera, choice: FrameChoice, out: np.ndarray
) -> list[partial[None]]:
    """Return one job per video file of a camera; each writes its frames into rows of `out`."""
    position = info.video_start[camera.key][choice.episode] + choice.step
    names = list(dict.fromkeys(info.video_file[camera.key]))
    number = {name: i for i, name in enumerate(names)}
    file = np.array([number[name] for name in info.video_file[camera.key]])[choice.episode]
    jobs = []
    for i, name in enumerate(names):
        rows = np.flatnonzero(file == i)
        rows = rows[np.argsort(position[rows], kind="stable")]
        if len(rows):
            path = info.path / name
            jobs.append(partial(_decode_file, path, position[rows], rows, info.fps, out))
    return jobs


def _decode_file(
    path: Path, position: np.ndarray, rows: np.ndarray, fps: float, out: np.ndarray
) -> None:
    """Write the frames at sorted positions of a video into `out[rows]`."""
    height, width = out.shape[1:3]
    first = np.searchsorted(position, position, side="left")  # repeated positions share one decode
    row_of = {int(p): int(rows[i]) for p, i in zip(position, first, strict=True)}
    missing = set(row_of)
    try:
        for at, frame in _frames(path, missing, fps):
            if at in missing:
                out[row_of[at]] = _to_rgb(frame, height, width)
                missing.discard(at)
    except av.FFmpegError as error:
        raise ValueError(f"{path}: cannot be decoded ({error}); copy the data set again") from error
    if missing:
        raise ValueError(
            f"{path}: has no frame {min(missing)} ({len(missing)} wanted ones are missing); copy "
            "the data set again or record it again"
        )
    repeated = first != np.arange(len(position))
    out[rows[repeated]] = out[rows[first[repeated]]]


def _to_rgb(frame: av.VideoFrame, height: int, width: int) -> np.ndarray:
    if (frame.height, frame.width) == (height, width):
        return frame.to_ndarray(format="rgb24")
    return frame.to_ndarray(format="rgb24", width=width, height=height, interpolation="AREA")


def _frames(path: Path, wanted: set[int], fps: float) -> Iterator[tuple[int, av.VideoFrame]]:
    """Yield (position, frame) of at least the wanted frames of a video, in order.

    A group of frames starts at a key frame and is decoded completely or skipped. Skipping requires
    closed groups: no frame of a group is displayed before its key frame.
    """
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        scale = float(stream.time_base) * fps
        groups: list[list[av.Packet]] = []
        for packet in container.demux(stream):
            if packet.size == 0:  # the flush packet at the end
                continue
            if packet.is_keyframe or not groups:
                groups.append([])
            groups[-1].append(packet)
        closed = all(p.pts >= group[0].pts for group in groups for p in group)
        for group in groups:
            if closed and not any(round(p.pts * scale) in wanted for p in group):
                continue
            for packet in group:
                for frame in stream.codec_context.decode(packet):
                    yield round(frame.pts * scale), frame
        for frame in stream.codec_context.decode(None):
            yield round(frame.pts * scale), frame


def _fill_from_tables(
    info: DatasetInfo, camera: Camera, choice: FrameChoice, out: np.ndarray
) -> list[partial[None]]:
    """Return one job per table; each decodes the wanted images embedded in it."""
    row = {
        (int(e), int(t)): r
        for r, (e, t) in enumerate(zip(choice.episode, choice.step, strict=True))
    }
    files = table_files(info.path, "data")
    return [partial(_decode_table, file, camera.key, row, out) for file in files]


def _decode_table(path: Path, key: str, row: dict[tuple[int, int], int], out: np.ndarray) -> None:
    height, width = out.shape[1:3]
    with pq.ParquetFile(path) as parquet:
        if key not in parquet.schema_arrow.names:
            raise ValueError(f"{path}: has no column {key!r}; copy the data set again")
        for batch in parquet.iter_batches(256, columns=["episode_index", "frame_index", key]):
            steps = zip(
                batch["episode_index"].to_pylist(), batch["frame_index"].to_pylist(), strict=True
            )
            for i, at in enumerate(steps):
                if at in row:
                    out[row[at]] = _decode_image(
                        batch[key][i], f"{path}: image {key!r} of {at}", height, width
                    )


def decode_image(data: Any, size_hw: tuple[int, int] | None = None) -> np.ndarray:
    """Return a compressed image as RGB u8 `h w 3`.

    Args:
        data: The bytes; other types are refused.
        size_hw: Expected sides in either order, because data sets do not always say which is which;
            guards against small files with huge images. None accepts all but huge images.

    Raises:
        ValueError: why it cannot be decoded.
    """
    if not isinstance(data, bytes) or not data:
        got = "nothing" if not data else f"a value of type {type(data).__name__}"
        raise ValueError(f"got {got}, expected the bytes of an image")
    try:
        with Image.open(io.BytesIO(data)) as image:
            if size_hw is not None and sorted(image.size) != sorted(size_hw):
                raise ValueError(
                    f"it is {image.height} x {image.width}, expected {size_hw[0]} x {size_hw[1]}"
                )
            if image.height * image.width > MAX_IMAGE_PX:
                raise ValueError(
                    f"it is {image.height} x {image.width}, expected at most {MAX_IMAGE_PX:,} "
                    "pixels"
                )
            return np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ValueError(str(error) or type(error).__name__) from error


def _decode_image(cell: pa.StructScalar, what: str, height: int, width: int) -> np.ndarray:
    data = cell["bytes"].as_py()
    if not data:
        raise ValueError(f"{what}: is not embedded in the table; embed images or use videos")
    try:
        pixels = decode_image(data)
    except ValueError as error:
        raise ValueError(f"{what}: cannot be decoded ({error}); copy the data set again") from error
    return _to_rgb(av.VideoFrame.from_ndarray(pixels, format="rgb24"), height, width)
