"""A data set in memory for training: images of decisions and numbers of every control step.

Videos are decoded once and cached in a zarr store, or, beyond memory, in a file that is mapped.
`training.data.sampler` selects batches.
"""

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import math
import mmap
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.codecs import BloscCodec, Crc32cCodec

from vla.data.decode import FrameChoice, decode_views
from vla.data.info import Camera, DatasetInfo
from vla.data.reader import open_dataset, read_columns
from vla.utils.memory import available_bytes

_CACHE_VERSION = 2
_CACHE_CHUNK_FRAMES = 256
MEMORY_SHARE = 0.5
"""Share of the free memory beyond which frames stay on disk."""


@dataclass(frozen=True, kw_only=True)
class Statistics:
    """Per-channel statistics of a column, f32 `d` each, in physical units."""

    min: np.ndarray
    max: np.ndarray
    mean: np.ndarray
    std: np.ndarray


class JoinedFrames:
    """Frames of several data sets, one set after another, without a copy: what is in a file stays
    there.
    """

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts = tuple(parts)
        self.offsets = np.cumsum([0, *(len(part) for part in parts)])
        self.shape = (int(self.offsets[-1]), *parts[0].shape[1:])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> np.ndarray:
        """Return u8 `n v h w 3` by row numbers i64 `n`, or a slice."""
        rows = np.arange(len(self))[rows]
        frames = np.empty((len(rows), *self.shape[1:]), np.uint8)
        part = np.searchsorted(self.offsets, rows, side="right") - 1
        for number in np.unique(part):
            inside = part == number
            frames[inside] = _read(self.parts[number], rows[inside] - self.offsets[number])
        return frames


def _read(frames: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Return frames by their rows; those in a file are read at once."""
    mapped: Any = frames.base
    if isinstance(mapped, mmap.mmap) and isinstance(frames, np.memmap):
        size = frames[0].nbytes
        for begin in (frames.offset + rows * size).tolist():
            page = begin - begin % mmap.PAGESIZE
            mapped.madvise(mmap.MADV_WILLNEED, page, begin + size - page)
    return frames[rows]


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeStore:
    """Sequences of decisions of one data set.

    A sequence is one episode seen every `stride` control steps: from its first step on, as on a
    robot, and with `phases` > 1 from random offsets as well. Frames of sequence q are rows
    `seq_offsets[q]` to `seq_offsets[q+1]` of `frames` and `frame_time`, in order of time. Steps
    of episode e are rows `step_offsets[e]` to `step_offsets[e+1]` of `states`, `actions` and
    `scalars`.
    """

    info: DatasetInfo
    cameras: tuple[str, ...]
    """Names of the cameras in view order."""
    stride: int
    """Control steps from one decision to the next."""
    frames: np.ndarray | JoinedFrames
    """u8 `f v h w 3`, RGB."""
    frame_time: np.ndarray
    """i64 `f`, control steps since the episode began."""
    seq_offsets: np.ndarray
    """i64 `q+1`."""
    seq_episode: np.ndarray
    """i64 `q`, episode of each sequence."""
    step_offsets: np.ndarray
    """i64 `n+1`."""
    states: np.ndarray
    """f32 `steps s`, measured before the action."""
    actions: np.ndarray
    """f32 `steps u`."""
    scalars: dict[str, np.ndarray]
    """f32 `steps` each: other columns, such as success and progress."""

    @property
    def tasks(self) -> tuple[str, ...]:
        """Instruction of each episode, at its first step."""
        return self.info.tasks

    def instructions_at(self, episode: np.ndarray, step: np.ndarray) -> tuple[str, ...]:
        """Return the instruction at steps of episodes, both i64 `n`."""
        which = self.info.frame_text
        if which is None:
            return tuple(self.tasks[e] for e in episode)
        return tuple(self.info.texts[i] for i in which[self.rows(episode, step)])

    @property
    def seq_lengths(self) -> np.ndarray:
        """i64 `q`: decisions of each sequence."""
        return np.diff(self.seq_offsets)

    @functools.cached_property
    def frame_episode(self) -> np.ndarray:
        """i64 `f`: episode of each frame."""
        return np.repeat(self.seq_episode, self.seq_lengths)

    def rows(self, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return rows of `states`, `actions` and `scalars` for steps of episodes, any shape.

        Raises:
            ValueError: a step lies outside its episode.
        """
        row = self.step_offsets[episode] + step
        if np.any(step < 0) or np.any(row >= self.step_offsets[episode + 1]):
            raise ValueError(f"a step is outside its episode: steps up to {np.max(step)}")
        return row

    def images(self, rows: np.ndarray) -> np.ndarray:
        """Return frames u8 `n v h w 3` by their rows i64 `n`; those in a file are read at once."""
        frames = self.frames
        return frames[rows] if isinstance(frames, JoinedFrames) else _read(frames, rows)

    def state_at(self, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
        """Return the measured state f32 `... s` at steps of episodes."""
        return self.states[self.rows(episode, step)]

    def action_chunks(
        self, episode: np.ndarray, step: np.ndarray, horizon: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the next `horizon` actions at steps of episodes.

        Args:
            episode: i64 `...`.
            step: i64 `...`, control steps since the episode began.
            horizon: K, actions per chunk.

        Returns:
            Actions f32 `... k u`, the last one of the episode repeated beyond its end, and bool
            `... k`, True where an action is such padding.
        """
        wanted = self.rows(episode, step)[..., None] + np.arange(horizon)
        end = self.step_offsets[episode + 1][..., None]
        return self.actions[np.minimum(wanted, end - 1)], wanted >= end


def concatenate(stores: Sequence[EpisodeStore]) -> EpisodeStore:
    """Return one store of the episodes of several data sets of one arm, in their order.

    Where one lacks a scalar of another, it is NaN; `info` is that of the first, with all
    instructions.

    Raises:
        ValueError: cameras, image sizes, strides, channels or rates differ.
    """
    first = stores[0]
    if len(stores) == 1:
        return first
    for store in stores[1:]:
        for what, there, here in (
            ("cameras", store.cameras, first.cameras),
            ("image shape", store.frames.shape[1:], first.frames.shape[1:]),
            ("decisions every", store.stride, first.stride),
            ("actions", store.info.action_names, first.info.action_names),
            ("frames per second", store.info.fps, first.info.fps),
        ):
            if there != here:
                raise ValueError(
                    f"{store.info.path}: {what} {there}, expected {here} as in {first.info.path}; "
                    "learn from data sets of one arm"
                )

    def joined(offsets: list[np.ndarray]) -> np.ndarray:
        lengths = np.concatenate([np.diff(part) for part in offsets])
        return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)

    tasks = tuple(task for store in stores for task in store.tasks)
    episodes = np.cumsum([0, *(len(store.tasks) for store in stores)])
    names = set.union(*(set(store.scalars) for store in stores))
    missing = [np.full(len(store.states), np.nan, np.float32) for store in stores]
    step_offsets = joined([store.step_offsets for store in stores])
    return EpisodeStore(
        info=dataclasses.replace(
            first.info, tasks=tasks, offsets=step_offsets, **_joined_texts(stores)
        ),
        cameras=first.cameras, stride=first.stride,
        frames=JoinedFrames([np.asanyarray(store.frames) for store in stores]),
        frame_time=np.concatenate([store.frame_time for store in stores]),
        seq_offsets=joined([store.seq_offsets for store in stores]),
        seq_episode=np.concatenate(
            [store.seq_episode + first for store, first in zip(stores, episodes, strict=False)]
        ),
        step_offsets=step_offsets,
        states=np.concatenate([store.states for store in stores]),
        actions=np.concatenate([store.actions for store in stores]),
        scalars={
            name: np.concatenate(
                [s.scalars.get(name, nothing) for s, nothing in zip(stores, missing, strict=True)]
            )
            for name in sorted(names)
        },
    )  # fmt: skip


def _joined_texts(stores: Sequence[EpisodeStore]) -> dict[str, Any]:
    """Return `texts` and `frame_text` of the episodes of several data sets."""
    if all(store.info.frame_text is None for store in stores):
        return {}
    texts = sorted({text for store in stores for text in store.info.instructions})
    number = {text: i for i, text in enumerate(texts)}
    index = []
    for info in (store.info for store in stores):
        of_episode = np.repeat([number[text] for text in info.tasks], info.lengths)
        own = np.array([number[text] for text in info.texts])
        index.append(of_episode if info.frame_text is None else own[info.frame_text])
    return {"texts": tuple(texts), "frame_text": np.concatenate(index)}


def statistics(values: np.ndarray) -> Statistics:
    """Return per-channel statistics of values `n d`."""
    return Statistics(
        min=values.min(axis=0), max=values.max(axis=0),
        mean=values.mean(axis=0, dtype=np.float64).astype(np.float32),
        std=values.std(axis=0, dtype=np.float64).astype(np.float32),
    )  # fmt: skip


def load_episodes(
    path: Path | str, *, cameras: tuple[str, ...] | None = None,
    image_hw: tuple[int, int] = (96, 96), stride: int = 1, phase_seed: int = 0, phases: int = 1,
    cache_dir: Path | None = None,
) -> EpisodeStore:  # fmt: skip
    """Read a LeRobotDataset v3. Frames that would take more than half of the free memory stay in a
    file of the cache, which is mapped into memory.

    Args:
        path: Directory of the data set.
        cameras: Names or keys of the cameras in view order; all of them if None.
        image_hw: Height and width to deliver; other sizes are stretched.
        stride: Control steps from one decision to the next.
        phase_seed: Seed of the offsets below `stride` of the further sequences of an episode.
        phases: Sequences per episode, at most `stride`: the first starts at step 0.
        cache_dir: Folder of the cache of decoded frames; no cache if None.

    Raises:
        ValueError: the data set is damaged or lacks something (see `open_dataset`), or an argument
            does not fit it.
    """
    info = open_dataset(path)
    views = tuple(info.camera(name) for name in cameras or (c.name for c in info.cameras))
    if not 1 <= phases <= stride:
        raise ValueError(f"expected phases from 1 to the stride {stride}, got {phases}")
    choice, seq_offsets, seq_episode = choose_decisions(info.lengths, stride, phase_seed, phases)
    if cache_dir is None:
        frames = decode_views(info, views, choice, image_hw)
    else:
        key = {
            "version": _CACHE_VERSION, "data": content_hash(info),
            "cameras": [c.key for c in views], "image_hw": list(image_hw),
            "decisions": [stride, phase_seed, phases],
        }  # fmt: skip
        frames = _cached_frames(cache_dir, key, info, views, choice, image_hw)
    columns = read_columns(info)
    return EpisodeStore(
        info=info, cameras=tuple(c.name for c in views), stride=stride, frames=frames,
        frame_time=choice.step, seq_offsets=seq_offsets, seq_episode=seq_episode,
        step_offsets=info.offsets, states=columns.state, actions=columns.action,
        scalars=columns.scalars,
    )  # fmt: skip


def choose_decisions(
    lengths: np.ndarray, stride: int, phase_seed: int, phases: int
) -> tuple[FrameChoice, np.ndarray, np.ndarray]:
    """Return the decisions of every sequence, sequence offsets `q+1` and episodes `q`.

    Sequences that would start beyond the end of a short episode are left out.
    """
    episodes, steps = [], []
    for episode, length in enumerate(lengths.tolist()):
        rng = np.random.default_rng([phase_seed, episode])
        starts = np.sort([0, *(1 + rng.permutation(stride - 1)[: phases - 1])])
        for start in starts[starts < length].tolist():
            episodes.append(episode)
            steps.append(np.arange(start, length, stride))
    offsets = np.concatenate([[0], np.cumsum([len(s) for s in steps])]).astype(np.int64)
    seq_episode = np.array(episodes, np.int64)
    choice = FrameChoice(
        episode=np.repeat(seq_episode, np.diff(offsets)),
        step=np.concatenate(steps).astype(np.int64),
    )
    return choice, offsets, seq_episode


def content_hash(info: DatasetInfo) -> str:
    """Return a hash of all files that determine what `load_episodes` returns."""
    digest = hashlib.blake2b(digest_size=16)
    names = sorted(
        file.relative_to(info.path)
        for pattern in ("meta/info.json", "meta/episodes/*/*.parquet", "data/*/*", "videos/*/*/*")
        for file in info.path.glob(pattern)
    )
    for name in names:
        with (info.path / name).open("rb") as file:
            digest.update(f"{name} {hashlib.file_digest(file, 'blake2b').hexdigest()}\n".encode())
    return digest.hexdigest()


def _cached_frames(
    cache_dir: Path, key: dict[str, object], info: DatasetInfo, cameras: tuple[Camera, ...],
    choice: FrameChoice, image_hw: tuple[int, int],
) -> np.ndarray:  # fmt: skip
    name = hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=16).hexdigest()
    place = cache_dir / f"{name}.zarr"
    shape = (len(choice.step), len(cameras), *image_hw, 3)
    if math.prod(shape) > MEMORY_SHARE * available_bytes():
        return _mapped_frames(place.with_suffix(".npy"), shape, info, cameras, choice)
    frames = _read_cache(place, shape)
    if frames is None:
        frames = decode_views(info, cameras, choice, image_hw)
        _write_cache(place, frames)
    return frames


def _mapped_frames(
    place: Path, shape: tuple[int, ...], info: DatasetInfo, cameras: tuple[Camera, ...],
    choice: FrameChoice,
) -> np.ndarray:  # fmt: skip
    """Return frames in a file, mapped into memory; they are decoded into it if there is none.

    Of several processes one decodes, the others wait. The lock ends with its process: the next one
    removes what a killed one left.
    """
    # Without the lock first: a cache that is there may be in a folder that cannot be written.
    if (frames := _read_mapped(place, shape)) is not None:
        return frames
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (frames := _read_mapped(place, shape)) is not None:
            return frames
        part = place.with_suffix(".part")
        part.unlink(missing_ok=True)
        free = shutil.disk_usage(place.parent).free
        if math.prod(shape) > free:
            raise ValueError(
                f"{place.parent}: {shape[0]} decoded frames need {math.prod(shape) / 1e9:.1f} GB, "
                f"{free / 1e9:.1f} GB are free; free some, or learn from fewer episodes or smaller "
                "images"
            )
        try:
            written = np.lib.format.open_memmap(part, "w+", np.uint8, shape)
            decode_views(info, cameras, choice, (shape[2], shape[3]), written)
            written.flush()
            part.rename(place)
        finally:
            part.unlink(missing_ok=True)
    mapped: np.ndarray = np.load(place, mmap_mode="r")
    return mapped


def _read_mapped(place: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return frames of a file, or None if there is none or it was cut."""
    with contextlib.suppress(ValueError, OSError):
        frames: np.ndarray = np.load(place, mmap_mode="r")
        if frames.shape == shape and frames.dtype == np.uint8:
            return frames
    return None


def _read_cache(place: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Return cached frames, or None if there are none or they are damaged."""
    if not place.is_dir():
        return None
    try:
        array = zarr.open_array(place, mode="r")
        # zarr reads a missing chunk as zeros; a damaged one fails its checksum.
        if array.shape != shape or array.nchunks_initialized != array.nchunks:
            return None
        return np.asarray(array[:])
    except (ValueError, OSError, KeyError, RuntimeError):
        return None


def _write_cache(place: Path, frames: np.ndarray) -> None:
    """Write a cache atomically."""
    temporary = place.with_name(f".{place.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        array = zarr.create_array(
            temporary, shape=frames.shape, dtype=frames.dtype,
            chunks=(min(_CACHE_CHUNK_FRAMES, len(frames)), *frames.shape[1:]),
            compressors=[BloscCodec(cname="lz4", clevel=1, shuffle="noshuffle"), Crc32cCodec()],
            config={"write_empty_chunks": True},
        )  # fmt: skip
        array[:] = frames
        shutil.rmtree(place, ignore_errors=True)
        temporary.rename(place)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
