"""Predictions of a reward model for every test of an evaluation set.

`reward_models.metrics` computes metrics of them; `training.reward_model.datasets` has the sets.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from reward_models.core.curves import Curves
from reward_models.core.scorer import Scorer
from reward_models.metrics.episodes import Episodes, unpredicted, with_predictions
from reward_models.metrics.table import Predictions
from training.reward_model.batches import mismatched_instruction, swap_colour
from training.reward_model.clips import Clips, colour_of
from vla.contracts.types import Example, Frames

FROZEN_S = 10.0
"""Duration of the still image in the test for false gain."""
FROZEN_EPISODES = 24
STRIDES = (1, 2, 5, 10)
"""In scored frames."""


def predict_all(
    scorer: Scorer, clips: Clips, example: Example | None = None, pool: Sequence[str] = ()
) -> Predictions:
    """Return the predictions for the episodes of a test split and for its variants, with a
    reference episode of their task if given.

    `pool` has further instructions of other tasks, for the mismatched ones.
    """
    matched, curves = predict(scorer, clips, tuple(clips.instruction), example)
    rng = np.random.default_rng(0)
    other = tuple(
        mismatched_instruction(str(text), clips, rng, colours=False, pool=pool)
        for text in clips.instruction
    )
    return Predictions(
        matched=matched,
        abstaining=with_predictions(matched, scorer.progress(curves)),
        backward=predict(scorer, reverse(clips), tuple(clips.instruction), example)[0],
        mismatched=predict(scorer, _without_progress(clips), other, None)[0],
        recolored=predict_recolored(scorer, clips, rng),
        frozen=predict_frozen(scorer, clips, example),
        curves=curves_at_strides(scorer, clips, example),
        changes=compare_both_ways(scorer, clips, example),
    )


def predict_recolored(scorer: Scorer, clips: Clips, rng: np.random.Generator) -> Episodes | None:
    """Return predictions under instructions with another colour; None if no instruction names one.

    Sometimes another object has that colour and the arm came near it by chance: a perfect reward
    model would not reject all of them. Episodes of behaviour `wrong_object` are left out.
    """
    named = np.array([colour_of(text) is not None for text in clips.instruction])
    chosen = np.flatnonzero(named & (clips.behaviour != "wrong_object"))
    if not len(chosen):
        return None
    some = clips.pick(chosen)
    task = tuple(swap_colour(str(text), rng) for text in some.instruction)
    return predict(scorer, _without_progress(some), task, None)[0]


def _without_progress(clips: Clips) -> Clips:
    """Return episodes with true progress 0, as under another instruction."""
    zero = np.zeros_like(clips.progress)
    return dataclasses.replace(clips, progress=zero, success=zero > 0)


@torch.no_grad()
def predict(
    scorer: Scorer, clips: Clips, task: tuple[str, ...], example: Example | None
) -> tuple[Episodes, Curves]:
    """Return the predictions for whole episodes without abstention, and the curves behind them."""
    curves = scorer.curves(clips.frames(), task, example)
    predicted = with_predictions(unpredicted_clips(clips), _never_abstain(scorer).progress(curves))
    return dataclasses.replace(predicted, horizon_s=scorer.config.horizon_s), curves


def unpredicted_clips(clips: Clips) -> Episodes:
    """Return the truth of episodes, without predictions."""
    return unpredicted(
        episode=clips.episode, time_s=clips.time_s, progress=clips.progress,
        success=clips.success, task=tuple(clips.task), behaviour=tuple(clips.behaviour),
    )  # fmt: skip


def _never_abstain(scorer: Scorer) -> Scorer:
    config = dataclasses.replace(scorer.config, abstain_below=0.0)
    return Scorer(scorer.reward_model, config, scorer.calibration)


def reverse(clips: Clips) -> Clips:
    """Return the episodes with their frames, and the truth, in reversed order."""
    ends = zip(clips.offsets[:-1], clips.offsets[1:], strict=True)
    order = np.concatenate([np.arange(e - 1, b - 1, -1) for b, e in ends])
    end_s = clips.time_s[clips.offsets[1:] - 1][clips.episode]
    names = ("images", "progress", "success", "proprio")
    return dataclasses.replace(
        clips, time_s=end_s - clips.time_s[order],
        **{name: getattr(clips, name)[order] for name in names},
    )  # fmt: skip


def predict_frozen(scorer: Scorer, clips: Clips, example: Example | None) -> Episodes:
    """Return predictions for a still image that follows a random frame of some episodes."""
    rng = np.random.default_rng(1)
    count = min(FROZEN_EPISODES, clips.episodes)
    chosen = np.sort(rng.choice(clips.episodes, count, replace=False))
    stride = scorer.config.stride_s
    hold = round(FROZEN_S / stride)
    parts, still = [], []
    for e in chosen:
        begin, end = int(clips.offsets[e]), int(clips.offsets[e + 1])
        stop = int(rng.integers(begin, end))
        parts.append(np.concatenate([np.arange(begin, stop + 1), np.full(hold, stop)]))
        still.append(np.arange(stop + 1 - begin + hold) >= stop - begin)
    index, lengths = np.concatenate(parts), np.array([len(p) for p in parts])
    time_s = np.concatenate([np.arange(n) * stride for n in lengths])
    episode = np.repeat(np.arange(len(parts)), lengths)
    curves = scorer.curves(
        _frames(clips, index, time_s, episode), tuple(clips.instruction[chosen]), example
    )
    truth = unpredicted(
        episode=episode, time_s=time_s, progress=clips.progress[index],
        success=clips.success[index], task=tuple(clips.task[chosen]),
        behaviour=tuple(clips.behaviour[chosen]),
    )  # fmt: skip
    predicted = with_predictions(truth, _never_abstain(scorer).progress(curves))
    rows = np.concatenate(still)
    cut: dict[str, Any] = {
        field.name: value[rows] for field in dataclasses.fields(Episodes)
        if isinstance(value := getattr(predicted, field.name), np.ndarray)
    }  # fmt: skip
    return dataclasses.replace(predicted, **cut)


def _frames(clips: Clips, index: np.ndarray, time_s: np.ndarray, episode: np.ndarray) -> Frames:
    """Return frames of clips, at other times and in other episodes."""
    image_ok = np.ones((len(index), clips.images.shape[1]), np.bool_)
    return Frames(
        images=clips.images[index], image_ok=image_ok, time_s=time_s, episode_index=episode
    )


def curves_at_strides(scorer: Scorer, clips: Clips, example: Example | None) -> np.ndarray:
    """Return progress f32 [c, f] of every n-th frame, for each of `STRIDES`; NaN elsewhere."""
    place = np.arange(len(clips.time_s)) - clips.offsets[clips.episode]
    out = np.full((len(STRIDES), len(place)), np.nan, np.float32)
    for k, stride in enumerate(STRIDES):
        index = np.flatnonzero(place % stride == 0)
        frames = _frames(clips, index, clips.time_s[index], clips.episode[index])
        out[k, index] = scorer.curves(frames, tuple(clips.instruction), example).value
    return out


@torch.no_grad()
def compare_both_ways(scorer: Scorer, clips: Clips, example: Example | None) -> np.ndarray:
    """Return changes f32 [2, f]: from 5 frames earlier (or the first) to each, and back."""
    embedded = scorer.embed(clips.frames(), tuple(clips.instruction))
    first = clips.offsets[clips.episode]
    before = np.maximum(np.arange(len(first)) - 5, first)
    reference = scorer.encode_reference(example, tuple(clips.instruction[:1]))
    compare = scorer.reward_model.compare
    forward = compare(embedded[before], embedded, embedded[first], reference)
    backward = compare(embedded, embedded[before], embedded[first], reference)
    return np.stack([forward.difference.numpy(), backward.difference.numpy()])
