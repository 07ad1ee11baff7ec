"""Scores groups of episodes: each video decoded once, each frame encoded once, judged together.

The groups follow from the data set and the memory allowed, never from what is done already, so that
a run that was killed and goes on computes the same batches and thus the same bits.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reward_models.critic import Shown
from reward_models.curves import Curves
from reward_models.label.source import Segment, Source
from reward_models.scorer import Scorer
from vla.contracts.types import Example, Frames, Progress
from vla.data.decode import FrameChoice, decode_views
from vla.data.info import Camera

IMAGE_HW = (96, 96)
"""What images are stretched to, unless the critic has an `image_hw` of its own."""
GROUP_FRAMES = 2048
"""Most frames scored together: what a kill may cost."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """How everything is scored."""

    scorer: Scorer
    source: Source
    cameras: tuple[Camera | None, ...]
    """For each view of the critic; None is dark."""
    agreement: bool = False
    """Score through each camera alone, too."""
    example: tuple[str, Shown] | None = None
    """A task, and an encoded episode that shows it."""
    memory_mb: int = 512
    """For decoded images."""

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of images as the critic wants them."""
        height, width = getattr(self.scorer.critic, "image_hw", IMAGE_HW)
        return height, width

    @property
    def frames_in_memory(self) -> int:
        """Frames decoded at once, a multiple of the scorer's chunk unless memory is smaller."""
        height, width = self.image_hw
        # Three: what is encoded, what is decoded meanwhile, and a copy for each camera alone.
        room = self.memory_mb * 2**20 // (3 * max(1, len(self.cameras)) * height * width * 3)
        chunk = self.scorer.config.chunk
        return max(1, room // chunk * chunk if room >= chunk else room)


def groups(job: Job) -> list[tuple[int, ...]]:
    """Cut the episodes of a data set into groups that are scored together."""
    most = min(GROUP_FRAMES, job.frames_in_memory)
    cut: list[tuple[int, ...]] = []
    group: list[int] = []
    held = 0
    for episode, frames in enumerate(job.source.scored_frames.tolist()):
        if group and held + frames > most:
            cut.append(tuple(group))
            group, held = [], 0
        group.append(episode)
        held += frames
    return [*cut, tuple(group)]


def score_groups(
    job: Job, cut: Sequence[tuple[int, ...]]
) -> Iterator[dict[int, dict[str, np.ndarray]]]:
    """Yield what `score_group` returns for each group; the next one is decoded meanwhile."""
    wanted = (place for group in cut for place in _slices(job, _segments_of(job, group)))
    images = _decoded(job, wanted)
    for group in cut:
        yield score_group(job, group, images)


def score_group(
    job: Job, episodes: Sequence[int], images: Iterator[np.ndarray] | None = None
) -> dict[int, dict[str, np.ndarray]]:
    """Return, for each episode, columns of its scored frames (see `columns_of`).

    Args:
        job: What to score and how.
        episodes: The group.
        images: The group's frames, slice by slice; decoded here if None.
    """
    segments = _segments_of(job, episodes)
    row = np.repeat(np.arange(len(segments)), [len(s.steps) for s in segments])
    time_s = np.concatenate([(s.steps - s.first) / job.source.info.fps for s in segments])
    embedded = encode(job, segments, images)
    whole = _curves(job, embedded[0], row, time_s, segments)
    if len(embedded) > 2:  # through each of several cameras alone
        alone = [_curves(job, e, row, time_s, segments).value for e in embedded[1:]]
        apart = np.hypot(whole.disagreement, np.std(np.stack(alone), axis=0))
        whole = whole._replace(disagreement=apart.astype(np.float32))
    said = job.scorer.progress(whole)
    of_frame = np.array([s.episode for s in segments])[row]
    step = np.concatenate([s.steps for s in segments])
    return {e: columns_of(said, step, row, of_frame == e) for e in episodes}


def columns_of(
    said: Progress, step: np.ndarray, row: np.ndarray, mine: np.ndarray
) -> dict[str, np.ndarray]:
    """Return what was said of an episode: frame, segment (from 0) and the labels, [k] each."""
    return {
        "frame": step[mine],
        "segment": row[mine] - row[mine][0],
        "progress": said.value[mine],
        "delta": said.delta[mine],
        "trend": (np.argmax(said.trend[mine], axis=1) - 1).astype(np.int8),
        "done_prob": said.done_prob[mine],
        "match": said.match[mine],
        "confidence": said.confidence[mine],
    }


def encode(
    job: Job, segments: Sequence[Segment], images: Iterator[np.ndarray] | None = None
) -> list[Tensor]:
    """Return embeddings [f, d] through all cameras, and if asked for through each one alone."""
    lit = [view for view, camera in enumerate(job.cameras) if camera is not None]
    alone = [[view] for view in lit] if job.agreement and len(lit) > 1 else []
    looks = [lit, *alone]
    memories = [job.scorer.critic.remember(len(segments)) for _ in looks]
    done: list[list[Tensor]] = [[] for _ in looks]
    names = tuple(segment.task for segment in segments)
    for frames in _chunks(job, segments, images):
        rows = np.unique(frames.row)
        tasks = tuple(names[r] for r in rows)
        for look, memory, parts in zip(looks, memories, done, strict=True):
            embedded, kept = _embed(job, _through(frames, rows, look), tasks, memory[rows])
            memory[rows] = kept
            parts.append(embedded)
    return [torch.cat(parts) for parts in done]


@torch.no_grad()
def _embed(
    job: Job, frames: Frames, tasks: tuple[str, ...], memory: Tensor
) -> tuple[Tensor, Tensor]:
    return job.scorer.critic.embed(frames, tasks, memory)


def _through(frames: Frames, rows: np.ndarray, views: list[int]) -> Frames:
    """Return frames numbered from 0 as seen through some views; the others are dark."""
    hidden = np.ones(frames.image_ok.shape[1], np.bool_)
    hidden[views] = False
    images = frames.images
    if hidden.any():
        images = images.copy()
        images[:, hidden] = 0
    return Frames(
        images=images, image_ok=frames.image_ok & ~hidden, time_s=frames.time_s,
        row=np.searchsorted(rows, frames.row), end_s=frames.end_s, truth=frames.truth,
    )  # fmt: skip


def _segments_of(job: Job, episodes: Sequence[int]) -> list[Segment]:
    return [segment for e in episodes for segment in job.source.segments[e]]


def _slices(job: Job, segments: Sequence[Segment]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield episodes and steps of the frames to score, as many at once as memory holds."""
    episode = np.repeat([s.episode for s in segments], [len(s.steps) for s in segments])
    step = np.concatenate([s.steps for s in segments])
    for begin in range(0, len(step), job.frames_in_memory):
        part = slice(begin, begin + job.frames_in_memory)
        yield episode[part], step[part]


def _decoded(job: Job, wanted: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[np.ndarray]:
    """Yield decoded slices; the next one is decoded while the last one is used."""
    with ThreadPoolExecutor(1) as pool:
        before = None
        for episode, step in wanted:
            after = pool.submit(decode, job, episode, step)
            if before is not None:
                yield before.result()
            before = after
        if before is not None:
            yield before.result()


def _chunks(
    job: Job, segments: Sequence[Segment], decoded: Iterator[np.ndarray] | None = None
) -> Iterator[Frames]:
    """Yield the frames to score, in the chunks that a scorer makes."""
    chunk = job.scorer.config.chunk
    decoded = decoded or _decoded(job, _slices(job, segments))
    info = job.source.info
    row = np.repeat(np.arange(len(segments)), [len(s.steps) for s in segments])
    step = np.concatenate([s.steps for s in segments])
    episode, first, length = (
        np.array([getattr(s, name) for s in segments])[row]
        for name in ("episode", "first", "frames")
    )
    for begin in range(0, len(row), job.frames_in_memory):
        images = next(decoded)
        for at in range(0, len(images), chunk):
            now = slice(begin + at, min(begin + at + chunk, begin + len(images)))
            here = slice(at, at + chunk)
            truth = None
            if job.source.truth is not None:
                truth = job.source.truth[info.offsets[episode[now]] + step[now]]
            lit = np.array([camera is not None for camera in job.cameras], np.bool_)
            yield Frames(
                images=images[here],
                image_ok=np.broadcast_to(lit, (len(images[here]), len(lit))).copy(),
                time_s=(step[now] - first[now]) / info.fps,
                row=row[now],
                end_s=(length[now] - 1) / info.fps,
                truth=truth,
            )


def decode(job: Job, episode: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Return images u8 [f, v, h, w, 3] of frames of episodes; dark views are 0."""
    lit = [view for view, camera in enumerate(job.cameras) if camera is not None]
    cameras = tuple(camera for camera in job.cameras if camera is not None)
    images = np.zeros((len(step), len(job.cameras), *job.image_hw, 3), np.uint8)
    if cameras:
        choice = FrameChoice(episode=episode, step=step)
        images[:, lit] = decode_views(job.source.info, cameras, choice, job.image_hw)
    return images


def _curves(
    job: Job, embedded: Tensor, row: np.ndarray, time_s: np.ndarray, segments: Sequence[Segment]
) -> Curves:
    """Return curves of encoded frames; those of the example's task are told of it."""
    if job.example is None:
        return job.scorer.curves_of(embedded, row, time_s, None)
    task, shown = job.example
    told = np.array([segment.task == task for segment in segments])[row]
    parts = []
    for mask, reference in ((told, shown), (~told, None)):
        if mask.any():
            chosen = embedded[torch.as_tensor(np.flatnonzero(mask), device=embedded.device)]
            parts.append((mask, job.scorer.curves_of(chosen, row[mask], time_s[mask], reference)))
    if len(parts) == 1:
        return parts[0][1]
    joined = []
    for values in zip(*(curves for _, curves in parts), strict=True):
        both = np.empty((len(row), *values[0].shape[1:]), values[0].dtype)
        for (mask, _), value in zip(parts, values, strict=True):
            both[mask] = value
        joined.append(both)
    return Curves(*joined)


def show(job: Job, episode: int, column: str, progress: np.ndarray | None) -> tuple[str, Shown]:
    """Encode the first segment of an episode as a reference of its task.

    Args:
        job: How frames are read.
        episode: Its number.
        column: Name of where `progress` comes from, for messages.
        progress: f32 of every frame of the episode, in [0, 1]; grows with time if None.

    Raises:
        ValueError: the progress is not within [0, 1].
    """
    segment = job.source.segments[episode][0]
    at = segment.steps - segment.first
    known = at / max(1, segment.frames - 1) if progress is None else progress[segment.steps]
    if not (np.all(known >= 0) and np.all(known <= 1)):
        raise ValueError(
            f"example_progress: {column!r} of episode {episode} leaves [0, 1] ({known.min():g} to "
            f"{known.max():g}); name a column of progress"
        )
    frames = list(_chunks(job, [segment]))
    whole = Frames(
        **{
            name: None if getattr(frames[0], name) is None
            else np.concatenate([getattr(f, name) for f in frames])
            for name in ("images", "image_ok", "time_s", "row", "end_s", "truth")
        }
    )  # fmt: skip
    example = Example(frames=whole, progress=known.astype(np.float32))
    shown = job.scorer.show(example, (segment.task,))
    assert shown is not None
    return segment.task, shown
