"""Scores groups of episodes: each video is decoded once, each frame is encoded once.

The groups depend on the data set and the memory alone, not on what is scored already: a resumed run
computes the same batches and thus bit-identical scores.
"""

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reward_models.core.curves import Curves
from reward_models.core.interface import Reference
from reward_models.core.scorer import Scorer
from reward_models.label.source import Segment, Source
from vla.contracts.types import Example, Frames, Progress
from vla.data.decode import FrameChoice, decode_views
from vla.data.info import Camera

IMAGE_HW = (96, 96)
"""Size to which images are resized, unless the reward model has an `image_hw`."""
GROUP_FRAMES = 2048
"""Most frames scored together: the most that a kill may cost."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Job:
    """Data set, reward model and settings of scoring."""

    scorer: Scorer
    source: Source
    cameras: tuple[Camera | None, ...]
    """For each view of the reward model; None is dark."""
    agreement: bool = False
    """Score with each camera alone, too."""
    example: tuple[str, Reference] | None = None
    """A task and its encoded reference episode."""
    memory_mb: int = 512
    """Memory for decoded images."""

    @property
    def image_hw(self) -> tuple[int, int]:
        """Height and width of the reward model's input images."""
        height, width = getattr(self.scorer.reward_model, "image_hw", IMAGE_HW)
        return height, width

    @property
    def frames_in_memory(self) -> int:
        """Frames decoded at once, a multiple of the scorer's chunk unless memory is smaller."""
        height, width = self.image_hw
        # Three copies: being encoded, being decoded, and masked to one camera.
        room = self.memory_mb * 2**20 // (3 * max(1, len(self.cameras)) * height * width * 3)
        chunk = self.scorer.config.chunk
        return max(1, room // chunk * chunk if room >= chunk else room)


def groups(job: Job) -> list[tuple[int, ...]]:
    """Cut the episodes of a data set into groups that are scored together."""
    limit = min(GROUP_FRAMES, job.frames_in_memory)
    cut: list[tuple[int, ...]] = []
    group: list[int] = []
    count = 0
    for episode, frames in enumerate(job.source.scored_frames.tolist()):
        if group and count + frames > limit:
            cut.append(tuple(group))
            group, count = [], 0
        group.append(episode)
        count += frames
    return [*cut, tuple(group)]


def score_groups(
    job: Job, cut: Sequence[tuple[int, ...]]
) -> Iterator[dict[int, dict[str, np.ndarray]]]:
    """Yield the result of `score_group` for each group; the next one is decoded meanwhile."""
    slices = (place for group in cut for place in _slices(job, _segments_of(job, group)))
    images = _decoded(job, slices)
    for group in cut:
        yield score_group(job, group, images)


def score_group(
    job: Job, episodes: Sequence[int], images: Iterator[np.ndarray] | None = None
) -> dict[int, dict[str, np.ndarray]]:
    """Return, for each episode of a group, columns of its scored frames (see `columns_of`).

    Images are the group's frames, slice by slice; decoded here if None.
    """
    segments = _segments_of(job, episodes)
    row = np.repeat(np.arange(len(segments)), [len(s.steps) for s in segments])
    time_s = np.concatenate([(s.steps - s.first) / job.source.info.fps for s in segments])
    embedded = encode(job, segments, images)
    whole = _curves(job, embedded[0], row, time_s, segments)
    if len(embedded) > 2:  # with each of several cameras alone
        single = [_curves(job, e, row, time_s, segments).value for e in embedded[1:]]
        disagreement = np.hypot(whole.disagreement, np.std(np.stack(single), axis=0))
        whole = whole._replace(disagreement=disagreement.astype(np.float32))
    progress = job.scorer.progress(whole)
    of_frame = np.array([s.episode for s in segments])[row]
    step = np.concatenate([s.steps for s in segments])
    return {e: columns_of(progress, step, row, of_frame == e) for e in episodes}


def columns_of(
    progress: Progress, step: np.ndarray, row: np.ndarray, chosen: np.ndarray
) -> dict[str, np.ndarray]:
    """Return the columns of the chosen frames: frame, segment (from 0) and labels, [k] each."""
    return {
        "frame": step[chosen],
        "segment": row[chosen] - row[chosen][0],
        "progress": progress.value[chosen],
        "delta": progress.delta[chosen],
        "trend": (np.argmax(progress.trend[chosen], axis=1) - 1).astype(np.int8),
        "done_prob": progress.done_prob[chosen],
        "match": progress.match[chosen],
        "confidence": progress.confidence[chosen],
    }


@torch.no_grad()
def encode(
    job: Job, segments: Sequence[Segment], images: Iterator[np.ndarray] | None = None
) -> list[Tensor]:
    """Return embeddings [f, d] with all cameras; for `job.agreement` with each one alone, too."""
    lit = [view for view, camera in enumerate(job.cameras) if camera is not None]
    single = [[view] for view in lit] if job.agreement and len(lit) > 1 else []
    subsets = [lit, *single]
    memories = [job.scorer.reward_model.initial_memory(len(segments)) for _ in subsets]
    parts: list[list[Tensor]] = [[] for _ in subsets]
    names = tuple(segment.task for segment in segments)
    for frames in _chunks(job, segments, images):
        rows = np.unique(frames.episode_index)
        tasks = tuple(names[r] for r in rows)
        for views, memory, done in zip(subsets, memories, parts, strict=True):
            shown = _mask_views(frames, rows, views)
            embedded, memory[rows] = job.scorer.reward_model.embed(shown, tasks, memory[rows])
            done.append(embedded)
    return [torch.cat(done) for done in parts]


def _mask_views(frames: Frames, rows: np.ndarray, views: list[int]) -> Frames:
    """Return frames with only some views, the others black, and episodes numbered from 0."""
    hidden = np.ones(frames.image_ok.shape[1], np.bool_)
    hidden[views] = False
    images = frames.images
    if hidden.any():
        images = images.copy()
        images[:, hidden] = 0
    return Frames(
        images=images, image_ok=frames.image_ok & ~hidden, time_s=frames.time_s,
        episode_index=np.searchsorted(rows, frames.episode_index), end_s=frames.end_s,
        truth=frames.truth,
    )  # fmt: skip


def _segments_of(job: Job, episodes: Sequence[int]) -> list[Segment]:
    return [segment for e in episodes for segment in job.source.segments[e]]


def _slices(job: Job, segments: Sequence[Segment]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield episodes and steps of the frames to score, as many at once as fit in memory."""
    episode = np.repeat([s.episode for s in segments], [len(s.steps) for s in segments])
    step = np.concatenate([s.steps for s in segments])
    for begin in range(0, len(step), job.frames_in_memory):
        part = slice(begin, begin + job.frames_in_memory)
        yield episode[part], step[part]


def _decoded(job: Job, slices: Iterable[tuple[np.ndarray, np.ndarray]]) -> Iterator[np.ndarray]:
    """Yield decoded slices; the next one is decoded while the last one is used."""
    with ThreadPoolExecutor(1) as pool:
        pending = None
        for episode, step in slices:
            following = pool.submit(decode, job, episode, step)
            if pending is not None:
                yield pending.result()
            pending = following
        if pending is not None:
            yield pending.result()


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
                episode_index=row[now],
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
    """Return curves of encoded frames; those of the example's task use it as the reference."""
    if job.example is None:
        return job.scorer.curves_of(embedded, row, time_s, None)
    task, example = job.example
    of_task = np.array([segment.task == task for segment in segments])[row]
    parts = []
    for mask, reference in ((of_task, example), (~of_task, None)):
        if mask.any():
            chosen = embedded[torch.as_tensor(np.flatnonzero(mask), device=embedded.device)]
            parts.append((mask, job.scorer.curves_of(chosen, row[mask], time_s[mask], reference)))
    joined = []
    for values in zip(*(curves for _, curves in parts), strict=True):
        both = np.empty((len(row), *values[0].shape[1:]), values[0].dtype)
        for (mask, _), value in zip(parts, values, strict=True):
            both[mask] = value
        joined.append(both)
    return Curves(*joined)


def encode_example(
    job: Job, episode: int, column: str, progress: np.ndarray | None
) -> tuple[str, Reference]:
    """Encode the first segment of an episode as a reference of its task.

    Progress f32 [t] of every frame, in [0, 1], comes from a column; None is linear in time.

    Raises:
        ValueError: the progress is not within [0, 1].
    """
    segment = job.source.segments[episode][0]
    at = segment.steps - segment.first
    value = at / max(1, segment.frames - 1) if progress is None else progress[segment.steps]
    if not (np.all(value >= 0) and np.all(value <= 1)):
        raise ValueError(
            f"example_progress: {column!r} of episode {episode} leaves [0, 1] ({value.min():g} to "
            f"{value.max():g}); name a column of progress"
        )
    frames = list(_chunks(job, [segment]))
    whole = Frames(
        **{
            name: None if getattr(frames[0], name) is None
            else np.concatenate([getattr(f, name) for f in frames])
            for name in ("images", "image_ok", "time_s", "episode_index", "end_s", "truth")
        }
    )  # fmt: skip
    example = Example(frames=whole, progress=value.astype(np.float32))
    reference = job.scorer.encode_reference(example, (segment.task,))
    assert reference is not None
    return segment.task, reference
