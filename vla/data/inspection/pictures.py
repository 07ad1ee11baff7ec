"""Looks at every picture of a data set once, in order, made small; finds black and frozen cameras.

What is kept of a file is a few numbers per frame and some pictures for the page, so memory does not
grow with the size of pictures. A file that is done stays done when an inspection is interrupted.
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
from vla.data.decode import decoded
from vla.data.info import Camera, DatasetInfo
from vla.data.inspection.finding import ERROR, WARNING, Finding, count, named
from vla.data.inspection.numbers import MOVES, Numbers, ranges
from vla.data.reader import table_files

SMALL_PX = 32
"""Side of the pictures that are compared."""
SAME = 2
"""Largest difference, of 255, of any pixel of two pictures that show the same."""
BLACK_MEAN, FLAT_STD = 12.0, 3.0
"""Of 255: below both a picture is black; a picture below the second alone shows one colour."""
SHOWN_EPISODES, SHOWN_PX = 4, 240
"""Of how many episodes the page shows pictures, and how wide."""
MOST = 0.5
"""Share of an episode's frames that are most of it."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One file and what of one camera is in it."""

    camera: Camera
    file: Path
    episodes: np.ndarray
    """i64 `e`: those whose frames are in it, in the order in which they are."""
    starts: np.ndarray
    """i64 `e`: position of the first frame of each."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was seen in one file."""

    rows: np.ndarray
    """i64 `f`: rows of the data set whose pictures were there."""
    mean: np.ndarray
    """f32 `f`, brightness of 255."""
    std: np.ndarray
    """f32 `f`."""
    runs: np.ndarray
    """i64 `r 2`: first row and end of stretches that show the same."""
    shown: dict[int, bytes]
    """Pictures for the page as JPEG, by row."""
    wrong: str
    """Why the file could not be read to its end, empty if it could."""


def jobs(info: DatasetInfo) -> list[Job]:
    """Return every file to look at."""
    found = []
    every = np.arange(info.num_episodes)
    for camera in info.cameras:
        if not camera.video:
            found += [
                Job(camera=camera, file=file, episodes=every, starts=info.offsets[:-1])
                for file in table_files(info.path, "data")
            ]
            continue
        names = np.array([str(name) for name in info.video_file[camera.key]])
        for name in dict.fromkeys(names.tolist()):
            inside = np.flatnonzero(names == name)
            inside = inside[np.argsort(info.video_start[camera.key][inside], kind="stable")]
            found.append(Job(
                camera=camera, file=info.path / name, episodes=inside,
                starts=info.video_start[camera.key][inside],
            ))  # fmt: skip
    return found


def shown_rows(info: DatasetInfo) -> dict[int, str]:
    """Return which frames the page shows, with what they are: first, middle and last of some."""
    chosen = np.unique(np.linspace(0, info.num_episodes - 1, SHOWN_EPISODES).astype(int))
    return {
        int(info.offsets[e]) + step: f"episode {e}, frame {step}"
        for e in chosen.tolist()
        for step in (0, int(info.lengths[e]) // 2, int(info.lengths[e]) - 1)
    }


def look(
    info: DatasetInfo, job: Job, wanted: dict[int, str], advance: Callable[[int], None]
) -> Seen:
    """Decode a file once.

    Args:
        info: The data set.
        job: The file.
        wanted: Rows that the page shows.
        advance: Called with 1 for each frame.
    """
    rows, mean, std, runs, shown = [], [], [], [], {}
    anchor: tuple[int, np.ndarray] | None = None  # where the present stretch began
    wrong, ends = "", set(info.offsets[1:].tolist())
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
        wrong = str(error) or type(error).__name__
    if anchor is not None:
        runs.append((anchor[0], rows[-1] + 1))
    return Seen(
        rows=np.array(rows, np.int64), mean=np.array(mean, np.float32),
        std=np.array(std, np.float32), runs=np.array(runs, np.int64).reshape(-1, 2), shown=shown,
        wrong=wrong,
    )  # fmt: skip


def _video(info: DatasetInfo, job: Job) -> Iterator[tuple[int, Any]]:
    """Yield (row, frame) of the frames of a video that belong to an episode."""
    ends = job.starts + info.lengths[job.episodes]
    mp4.frames_and_rate(job.file)  # says whether it is whole
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


def _table(info: DatasetInfo, job: Job) -> Iterator[tuple[int, Any]]:
    """Yield (row, frame) of the pictures inside a table."""
    with pq.ParquetFile(job.file) as parquet:
        columns = ["episode_index", "frame_index", job.camera.key]
        for batch in parquet.iter_batches(64, columns=columns):
            for episode, step, cell in zip(
                *(batch[name].to_pylist() for name in columns), strict=True
            ):
                data = cell.get("bytes") if isinstance(cell, dict) else cell
                try:
                    pixels = decoded(data, (job.camera.height_px, job.camera.width_px))
                except ValueError as error:
                    raise ValueError(
                        f"{job.file}: the picture of frame {step} of episode {episode} cannot be "
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


# --- what is kept between runs -------------------------------------------------------------------


def keep(seen: Seen, file: Path) -> None:
    """Write what was seen in a file of the data set, whole or not at all."""
    fresh = file.with_name(f".{file.name}.tmp")
    arrays: dict[str, Any] = {
        "rows": seen.rows, "mean": seen.mean, "std": seen.std, "runs": seen.runs,
        "wrong": np.array(seen.wrong), "shown": np.array(sorted(seen.shown), np.int64),
    }  # fmt: skip
    for row, data in seen.shown.items():
        arrays[f"picture{row}"] = np.frombuffer(data, np.uint8)
    with fresh.open("wb") as out:
        np.savez(out, **arrays)
    os.replace(fresh, file)


def kept(file: Path) -> Seen | None:
    """Return what was written by `keep`, or None if there is nothing that can be read."""
    try:
        with np.load(file, allow_pickle=False) as found:
            return Seen(
                rows=found["rows"], mean=found["mean"], std=found["std"], runs=found["runs"],
                wrong=str(found["wrong"]),
                shown={int(row): found[f"picture{row}"].tobytes() for row in found["shown"]},
            )  # fmt: skip
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None


# --- findings ------------------------------------------------------------------------------------


def find(numbers: Numbers, camera: Camera, seen: list[Seen]) -> Iterator[Finding]:
    """Yield what is wrong with the pictures of one camera."""
    yield from _missing(numbers, camera, seen)
    yield from _dark(numbers, camera, seen)
    yield from _frozen(numbers, camera, seen)


def _missing(numbers: Numbers, camera: Camera, seen: list[Seen]) -> Iterator[Finding]:
    info = numbers.info
    there = np.zeros(info.num_frames, bool)
    for one in seen:
        there[one.rows] = True
    where = numbers.episodes(np.flatnonzero(~there))
    reasons = [one.wrong for one in seen if one.wrong]
    if where or reasons:
        why = f" ({'; '.join(reasons[:3])})" if reasons else ""
        lost = (
            f"{count(len(where), 'frame')} of {named(where)}" if where else "no frame that is used"
        )
        yield Finding(
            severity=ERROR, kind="missing frames", episodes=tuple(sorted(set(where))),
            sentence=f"camera {camera.name!r} lacks {lost}{why}: copy the videos again or drop "
            "the episodes",
        )  # fmt: skip


def _dark(numbers: Numbers, camera: Camera, seen: list[Seen]) -> Iterator[Finding]:
    if not any(len(one.rows) for one in seen):
        return
    rows, mean, std = (
        np.concatenate([getattr(s, n) for s in seen]) for n in ("rows", "mean", "std")
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
            severity=ERROR if shares.max() > MOST else WARNING, kind="black camera",
            episodes=tuple(np.unique(where).tolist()),
            sentence=f"camera {camera.name!r} {what} in {count(len(where), 'frame')} of "
            f"{named(where.tolist())}, first in frame {first - numbers.info.offsets[episode]} of "
            f"episode {episode}: it was covered, unplugged or unlit; drop the episodes or frames",
        )  # fmt: skip


def _frozen(numbers: Numbers, camera: Camera, seen: list[Seen]) -> Iterator[Finding]:
    scale = ranges(numbers.state)
    moving = scale > 0
    found = []
    lit = np.zeros(numbers.info.num_frames, bool)  # what is black is told as that
    for one in seen:
        lit[one.rows] = one.std >= FLAT_STD
    for first, end in np.concatenate([one.runs for one in seen]).tolist():
        if end - first < numbers.long or not moving.any() or not lit[first]:
            continue
        state = numbers.state[first : end - 2, moving] / scale[moving]
        if np.nanmax(np.ptp(state, axis=0)) > MOVES:
            found.append((first, end))
    if found:
        where = numbers.episodes(np.array([first for first, _ in found]))
        first, end = found[0]
        begin = int(numbers.info.offsets[where[0]])
        most = max(
            (end - first) / numbers.info.lengths[e]
            for (first, end), e in zip(found, where, strict=True)
        )
        yield Finding(
            severity=ERROR if most > MOST else WARNING, kind="frozen camera",
            episodes=tuple(sorted(set(where))),
            sentence=f"camera {camera.name!r} shows the same picture while the arm moves in "
            f"{named(where)}, first in frames {first - begin} to {end - 1 - begin} of episode "
            f"{where[0]}: its driver hung; drop them",
        )  # fmt: skip
