"""Scans every image of a data set once and finds black and frozen cameras.

A scan keeps a few numbers per frame and some images for the page, so memory does not grow with the
image size. Scans of files are saved, so an interrupted inspection resumes.
"""

import io
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from vla.data import mp4
from vla.data.decode import decode_image
from vla.data.info import Camera, DatasetInfo
from vla.data.inspection.finding import ERROR, WARNING, Finding, count, named
from vla.data.inspection.numbers import MOVES, Numbers, ranges
from vla.data.reader import table_files

SMALL_PX = 32
"""Side of the downscaled images that are compared."""
SAME = 2
"""Largest pixel difference, of 255, between two images that count as equal."""
BLACK_MEAN, FLAT_STD = 12.0, 3.0
"""Of 255: an image below both is black, an image below the second alone is uniform."""
SHOWN_EPISODES, SHOWN_PX = 4, 240
"""Number of episodes with images on the page, and the width of the images."""
MAJORITY = 0.5
"""Fraction of an episode's frames from which a fault is an error."""


@dataclass(frozen=True, kw_only=True)
class ScanJob:
    """One file to scan for one camera."""

    camera: Camera
    file: Path
    episodes: np.ndarray
    """i64 `e`: episodes whose frames are in the file, in their order."""
    starts: np.ndarray
    """i64 `e`: position of the first frame of each."""


@dataclass(frozen=True, kw_only=True)
class FileScan:
    """Result of scanning one file."""

    rows: np.ndarray
    """i64 `f`: rows of the data set whose images were found."""
    mean: np.ndarray
    """f32 `f`, mean brightness, of 255."""
    std: np.ndarray
    """f32 `f`."""
    runs: np.ndarray
    """i64 `r 2`: first row and end of runs of equal images."""
    shown: dict[int, bytes]
    """Images for the page as JPEG, by row."""
    error: str
    """Why the file could not be read to its end; empty if it could."""


def jobs(info: DatasetInfo) -> list[ScanJob]:
    """Return a job for every file."""
    result = []
    every = np.arange(info.num_episodes)
    for camera in info.cameras:
        if not camera.video:
            result += [
                ScanJob(camera=camera, file=file, episodes=every, starts=info.offsets[:-1])
                for file in table_files(info.path, "data")
            ]
            continue
        names = np.array([str(name) for name in info.video_file[camera.key]])
        for name in dict.fromkeys(names.tolist()):
            inside = np.flatnonzero(names == name)
            inside = inside[np.argsort(info.video_start[camera.key][inside], kind="stable")]
            result.append(ScanJob(
                camera=camera, file=info.path / name, episodes=inside,
                starts=info.video_start[camera.key][inside],
            ))  # fmt: skip
    return result


def sample_rows(info: DatasetInfo) -> dict[int, str]:
    """Return the rows and captions of the frames that the page shows: first, middle and last."""
    episodes = np.unique(np.linspace(0, info.num_episodes - 1, SHOWN_EPISODES).astype(int))
    return {
        int(info.offsets[e]) + step: f"episode {e}, frame {step}"
        for e in episodes.tolist()
        for step in (0, int(info.lengths[e]) // 2, int(info.lengths[e]) - 1)
    }


def scan(
    info: DatasetInfo, job: ScanJob, wanted: dict[int, str], advance: Callable[[int], None]
) -> FileScan:
    """Decode a file and return its scan, with the images of the `wanted` rows; `advance` is called
    with 1 for every frame.
    """
    rows, mean, std, runs, shown = [], [], [], [], {}
    anchor: tuple[int, np.ndarray] | None = None  # start of the current run
    problem, ends = "", set(info.offsets[1:].tolist())
    try:
        source = _video(info, job) if job.camera.video else _table(info, job)
        for row, frame in source:
            small = frame.reformat(SMALL_PX, SMALL_PX, format="gray", interpolation="AREA")
            pixels = small.to_ndarray()
            rows.append(row)
            mean.append(pixels.mean())
            std.append(pixels.std())
            if anchor is not None and (
                row in ends or row != rows[-2] + 1
                or np.abs(pixels.astype(int) - anchor[1]).max() > SAME
            ):  # fmt: skip
                runs.append((anchor[0], rows[-2] + 1))
                anchor = None
            anchor = anchor or (row, pixels.astype(int))
            if row in wanted:
                shown[row] = _jpeg(frame)
            advance(1)
    except (ValueError, av.FFmpegError, OSError) as error:
        problem = str(error) or type(error).__name__
    if anchor is not None:
        runs.append((anchor[0], rows[-1] + 1))
    return FileScan(
        rows=np.array(rows, np.int64), mean=np.array(mean, np.float32),
        std=np.array(std, np.float32), runs=np.array(runs, np.int64).reshape(-1, 2), shown=shown,
        error=problem,
    )  # fmt: skip


def _video(info: DatasetInfo, job: ScanJob) -> Iterator[tuple[int, Any]]:
    """Yield (row, frame) of the frames of a video that belong to an episode."""
    ends = job.starts + info.lengths[job.episodes]
    mp4.frames_and_rate(job.file)  # checks that the file is complete
    with av.open(str(job.file)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "AUTO"
        for frame in container.decode(stream):
            position = round(float(frame.pts * frame.time_base) * info.fps)
            place = int(np.searchsorted(job.starts, position, side="right")) - 1
            if place >= 0 and position < ends[place]:
                episode = job.episodes[place]
                yield int(info.offsets[episode] + position - job.starts[place]), frame
    mp4.check_video(job.file, info.fps, int(ends.max()))


def _table(info: DatasetInfo, job: ScanJob) -> Iterator[tuple[int, Any]]:
    """Yield (row, frame) of the images inside a table."""
    with pq.ParquetFile(job.file) as parquet:
        columns = ["episode_index", "frame_index", job.camera.key]
        for batch in parquet.iter_batches(64, columns=columns):
            for episode, step, cell in zip(
                *(batch[name].to_pylist() for name in columns), strict=True
            ):
                data = cell.get("bytes") if isinstance(cell, dict) else cell
                try:
                    pixels = decode_image(data, (job.camera.height_px, job.camera.width_px))
                except ValueError as error:
                    raise ValueError(
                        f"{job.file}: the image of frame {step} of episode {episode} cannot be "
                        f"decoded: {error}"
                    ) from error
                yield int(info.offsets[episode]) + step, av.VideoFrame.from_ndarray(pixels, "rgb24")


def _jpeg(frame: Any) -> bytes:
    width = min(SHOWN_PX, frame.width)
    height = max(1, round(frame.height * width / frame.width))
    pixels = frame.to_ndarray(format="rgb24", width=width, height=height, interpolation="AREA")
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "jpeg", quality=85)
    return buffer.getvalue()


# --- saved scans ---------------------------------------------------------------------------------


def save(result: FileScan, file: Path) -> None:
    """Write a scan atomically."""
    temporary = file.with_name(f".{file.name}.tmp")
    arrays: dict[str, Any] = {
        "rows": result.rows, "mean": result.mean, "std": result.std, "runs": result.runs,
        "error": np.array(result.error), "shown": np.array(sorted(result.shown), np.int64),
    }  # fmt: skip
    for row, data in result.shown.items():
        arrays[f"image{row}"] = np.frombuffer(data, np.uint8)
    with temporary.open("wb") as out:
        np.savez(out, **arrays)
    os.replace(temporary, file)


def load(file: Path) -> FileScan | None:
    """Return a saved scan, None if there is none or it is damaged."""
    try:
        with np.load(file, allow_pickle=False) as saved:
            return FileScan(
                rows=saved["rows"], mean=saved["mean"], std=saved["std"], runs=saved["runs"],
                error=str(saved["error"]),
                shown={int(row): saved[f"image{row}"].tobytes() for row in saved["shown"]},
            )  # fmt: skip
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


# --- findings ------------------------------------------------------------------------------------


def find(numbers: Numbers, camera: Camera, scans: list[FileScan]) -> Iterator[Finding]:
    """Yield the findings about the images of one camera."""
    yield from _missing(numbers, camera, scans)
    yield from _dark(numbers, camera, scans)
    yield from _frozen(numbers, camera, scans)


def _missing(numbers: Numbers, camera: Camera, scans: list[FileScan]) -> Iterator[Finding]:
    info = numbers.info
    there = np.zeros(info.num_frames, bool)
    for s in scans:
        there[s.rows] = True
    rows = np.flatnonzero(~there)
    where = numbers.episodes(rows)
    reasons = [s.error for s in scans if s.error]
    if where or reasons:
        why = f" ({'; '.join(reasons[:3])})" if reasons else ""
        lost = numbers.place(rows) if where else "no frame that is used"
        yield Finding(
            severity=ERROR, kind="missing frames", episodes=tuple(sorted(set(where))),
            message=f"camera {camera.name!r} lacks {lost}{why}: copy the videos again or drop "
            "the episodes",
        )  # fmt: skip


def _dark(numbers: Numbers, camera: Camera, scans: list[FileScan]) -> Iterator[Finding]:
    if not any(len(s.rows) for s in scans):
        return
    rows, mean, std = (
        np.concatenate([getattr(s, n) for s in scans]) for n in ("rows", "mean", "std")
    )
    flat = std < FLAT_STD
    for what, chosen in (
        ("is black", flat & (mean < BLACK_MEAN)),
        ("shows one colour", flat & (mean >= BLACK_MEAN)),
    ):
        if not chosen.any():
            continue
        where = np.array(numbers.episodes(rows[chosen]))
        shares = np.bincount(where) / numbers.info.lengths[: where.max() + 1]
        first = int(rows[chosen].min())
        episode = numbers.episodes(np.array([first]))[0]
        yield Finding(
            severity=ERROR if shares.max() > MAJORITY else WARNING, kind="black camera",
            episodes=tuple(np.unique(where).tolist()),
            message=f"camera {camera.name!r} {what} in {count(len(where), 'frame')} of "
            f"{named(where.tolist())}, first in frame {first - numbers.info.offsets[episode]} of "
            f"episode {episode}: it was covered, unplugged or unlit; drop the episodes or frames",
        )  # fmt: skip


def _frozen(numbers: Numbers, camera: Camera, scans: list[FileScan]) -> Iterator[Finding]:
    scale = ranges(numbers.state)
    moving = scale > 0
    frozen = []
    lit = np.zeros(numbers.info.num_frames, bool)  # black images are another finding
    for s in scans:
        lit[s.rows] = s.std >= FLAT_STD
    for first, end in np.concatenate([s.runs for s in scans]).tolist():
        if end - first < numbers.long or not moving.any() or not lit[first]:
            continue
        state = numbers.state[first : end - 2, moving] / scale[moving]
        if np.nanmax(np.ptp(state, axis=0)) > MOVES:
            frozen.append((first, end))
    if frozen:
        where = numbers.episodes(np.array([first for first, _ in frozen]))
        first, end = frozen[0]
        begin = int(numbers.info.offsets[where[0]])
        most = max(
            (end - first) / numbers.info.lengths[e]
            for (first, end), e in zip(frozen, where, strict=True)
        )
        yield Finding(
            severity=ERROR if most > MAJORITY else WARNING, kind="frozen camera",
            episodes=tuple(sorted(set(where))),
            message=f"camera {camera.name!r} shows the same image while the arm moves in "
            f"{named(where)}, first in frames {first - begin} to {end - 1 - begin} of episode "
            f"{where[0]}: its driver hung; drop them",
        )  # fmt: skip
