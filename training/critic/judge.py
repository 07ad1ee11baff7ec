"""Puts a critic to every test: forwards, backwards, under foreign words, standing still.

What the figures are is in `reward_models.metrics`; which sets there are, in `training.critic.sets`.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from reward_models.curves import Curves
from reward_models.metrics.episodes import Episodes, say, silent
from reward_models.metrics.table import Judged
from reward_models.scorer import Scorer
from training.critic.batches import foreign, recolour
from training.critic.clips import Clips, colour_of
from vla.contracts.types import Example, Frames

FROZEN_S = 10.0
"""How long a picture stands still in the test for false gain."""
FROZEN_EPISODES = 24
STRIDES = (1, 2, 5, 10)
"""In scored frames."""


def judged(
    scorer: Scorer, clips: Clips, example: Example | None = None, pool: Sequence[str] = ()
) -> Judged:
    """Return all that a critic says of a set of episodes.

    Args:
        scorer: The critic.
        clips: Episodes of a test split.
        example: A reference episode of their task, shown to the critic.
        pool: Instructions of other tasks, to be foreign here.
    """
    own = said(scorer, clips, tuple(clips.instruction), example)
    rng = np.random.default_rng(0)
    words = [foreign(str(t), clips, rng, colours=False, pool=pool) for t in clips.instruction]
    return Judged(
        own=own[0],
        spoken=say(own[0], scorer.progress(own[1])),
        backward=said(scorer, backwards(clips), tuple(clips.instruction), example)[0],
        foreign=said(scorer, _undone(clips), tuple(words), None)[0],
        recoloured=recoloured(scorer, clips, rng),
        frozen=frozen(scorer, clips, example),
        curves=curves_at_strides(scorer, clips, example),
        changes=mirrored(scorer, clips, own[1], example),
    )


def recoloured(scorer: Scorer, clips: Clips, rng: np.random.Generator) -> Episodes | None:
    """Return what is said when the instruction names another colour; None where none names any.

    Now and then that is the colour of something else in view, to which the arm came near by chance:
    a perfect critic would not refuse all of them. Where the arm went there on purpose is left out.
    """
    named = np.array([colour_of(text) is not None for text in clips.instruction])
    chosen = np.flatnonzero(named & (clips.behaviour != "wrong_object"))
    if not len(chosen):
        return None
    some = clips.pick(chosen)
    words = tuple(recolour(str(text), rng) for text in some.instruction)
    return said(scorer, _undone(some), words, None)[0]


def _undone(clips: Clips) -> Clips:
    """Return episodes of which, under other instructions, nothing is done."""
    nothing = np.zeros_like(clips.progress)
    return dataclasses.replace(clips, progress=nothing, success=nothing > 0)


@torch.no_grad()
def said(
    scorer: Scorer, clips: Clips, task: tuple[str, ...], example: Example | None
) -> tuple[Episodes, Curves]:
    """Return what a critic says of whole episodes, and the curves behind it."""
    curves = scorer.curves(clips.frames(), task, example)
    return episodes(scorer, clips, curves), curves


def episodes(scorer: Scorer, clips: Clips, curves: Curves) -> Episodes:
    """Lay what a critic said beside the truth; nothing abstains here: figures need every frame."""
    return dataclasses.replace(
        say(silent_of(clips), _eager(scorer).progress(curves)), horizon_s=scorer.config.horizon_s
    )


def silent_of(clips: Clips) -> Episodes:
    """Return episodes of which nothing was said yet."""
    return silent(
        episode=clips.episode, time_s=clips.time_s, progress=clips.progress,
        success=clips.success, task=tuple(clips.task), behaviour=tuple(clips.behaviour),
    )  # fmt: skip


def _eager(scorer: Scorer) -> Scorer:
    """Return a scorer that never abstains."""
    config = dataclasses.replace(scorer.config, abstain_below=0.0)
    return Scorer(scorer.critic, config, scorer.calibration)


def backwards(clips: Clips) -> Clips:
    """Return the episodes with their frames, and the truth, in reversed order."""
    ends = zip(clips.offsets[:-1], clips.offsets[1:], strict=True)
    order = np.concatenate([np.arange(e - 1, b - 1, -1) for b, e in ends])
    end_s = clips.time_s[clips.offsets[1:] - 1][clips.episode]
    names = ("images", "progress", "success", "proprio")
    return dataclasses.replace(
        clips, time_s=end_s - clips.time_s[order],
        **{name: getattr(clips, name)[order] for name in names},
    )  # fmt: skip


def frozen(scorer: Scorer, clips: Clips, example: Example | None) -> Episodes:
    """Return what is said while the picture stands still after a random moment of an episode."""
    rng = np.random.default_rng(1)
    chosen = rng.choice(clips.episodes, min(FROZEN_EPISODES, clips.episodes), replace=False)
    stride = scorer.config.stride_s
    hold = round(FROZEN_S / stride)
    parts, still = [], []
    for e in np.sort(chosen):
        begin, end = int(clips.offsets[e]), int(clips.offsets[e + 1])
        stop = int(rng.integers(begin, end))
        parts.append(np.concatenate([np.arange(begin, stop + 1), np.full(hold, stop)]))
        still.append(np.arange(stop + 1 - begin + hold) >= stop - begin)
    rows, lengths = np.concatenate(parts), np.array([len(p) for p in parts])
    time_s = np.concatenate([np.arange(n) * stride for n in lengths])
    row = np.repeat(np.arange(len(parts)), lengths)
    frames = Frames(
        images=clips.images[rows], image_ok=np.ones((len(rows), clips.images.shape[1]), np.bool_),
        time_s=time_s, row=row,
    )  # fmt: skip
    chosen = np.sort(chosen)
    curves = scorer.curves(frames, tuple(clips.instruction[chosen]), example)
    whole = silent(
        episode=row, time_s=time_s, progress=clips.progress[rows], success=clips.success[rows],
        task=tuple(clips.task[chosen]), behaviour=tuple(clips.behaviour[chosen]),
    )  # fmt: skip
    said = say(whole, _eager(scorer).progress(curves))
    keep = np.concatenate(still)
    found = {f.name: getattr(said, f.name) for f in dataclasses.fields(Episodes)}
    cut: dict[str, Any] = {k: v[keep] for k, v in found.items() if isinstance(v, np.ndarray)}
    return dataclasses.replace(said, **cut)


def curves_at_strides(scorer: Scorer, clips: Clips, example: Example | None) -> np.ndarray:
    """Return progress f32 [c, f] when only every so many frames are looked at; NaN elsewhere."""
    place = np.arange(len(clips.time_s)) - clips.offsets[clips.episode]
    out = np.full((len(STRIDES), len(place)), np.nan, np.float32)
    for k, stride in enumerate(STRIDES):
        rows = np.flatnonzero(place % stride == 0)
        frames = Frames(
            images=clips.images[rows],
            image_ok=np.ones((len(rows), clips.images.shape[1]), np.bool_),
            time_s=clips.time_s[rows], row=clips.episode[rows],
        )  # fmt: skip
        out[k, rows] = scorer.curves(frames, tuple(clips.instruction), example).value
    return out


@torch.no_grad()
def mirrored(scorer: Scorer, clips: Clips, curves: Curves, example: Example | None) -> np.ndarray:
    """Return changes f32 [2, f]: from 5 frames earlier (or the first) to each, and back."""
    embedded = scorer.embed(clips.frames(), tuple(clips.instruction))
    first = clips.offsets[clips.episode]
    before = np.maximum(np.arange(len(first)) - 5, first)
    shown = scorer.show(example, tuple(clips.instruction[:1]))
    forth = scorer.critic.compare(embedded[before], embedded, embedded[first], shown)
    back = scorer.critic.compare(embedded, embedded[before], embedded[first], shown)
    return np.stack([forth.difference.numpy(), back.difference.numpy()])
