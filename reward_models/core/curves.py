"""From scores to progress, in numpy: curves, the past of a stream, and labels.

The scores come from a reward model in torch (`reward_models.core.scorer`) or from an exported one
(`deploy.reward_model.deployed`).
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from reward_models.core import calibration as fits
from reward_models.core.calibration import Calibration, sigmoid
from reward_models.core.truth import SLACK
from vla.contracts.config import validate_min
from vla.contracts.types import Progress

LEAST_SHARE = 0.05
"""Least work left (or done) by which a change is divided."""


@dataclass(frozen=True, kw_only=True)
class ScorerConfig:
    """How curves are made; times are in seconds, so the frame rate does not matter."""

    stride_s: float = 0.2
    """Time between scored frames."""
    horizon_s: float = 1.0
    """Time over which delta and trend are measured."""
    lags_s: tuple[float, ...] = (0.4, 1.0, 2.0)
    """Times before now at which the incremental curves start."""
    absolute_share: float = 0.5
    """Weight of the absolute curve; the others share the rest."""
    abstain_below: float = 0.2
    """Confidence below which progress is NaN."""
    chunk: int = 256
    """Frames encoded or compared at once: bounds memory."""

    def __post_init__(self) -> None:
        validate_min(self, absolute_share=0, abstain_below=0, chunk=1)
        for name in ("stride_s", "horizon_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected more than 0")
        if not self.absolute_share <= 1:
            raise ValueError(f"absolute_share: got {self.absolute_share}, expected at most 1")
        if not self.lags_s or not min(self.lags_s) > 0:
            raise ValueError(f"lags_s: got {self.lags_s}, expected one or more above 0")

    @property
    def back_s(self) -> tuple[float, ...]:
        """Times before now that a frame is compared with: the horizon, then the lags."""
        return self.horizon_s, *self.lags_s


class Scored(NamedTuple):
    """Scores of single frames, f32 [n]; see `reward_models.core.interface.FrameScores`."""

    value: np.ndarray
    """Progress in [0, 1]."""
    spread: np.ndarray
    """Standard deviation of the predicted distribution."""
    done: np.ndarray
    """Logit, uncalibrated."""
    match: np.ndarray
    """Logit."""


class Compared(NamedTuple):
    """Changes since k earlier frames: those of `back_s`, then the first of the episode."""

    difference: np.ndarray
    """f32 [n, k], change of progress, weighed by `weigh_changes`."""
    trend: np.ndarray
    """f32 [n, 3], logits of regress, stagnation, progress over the horizon."""


class Curves(NamedTuple):
    """Everything the scorer computed of F frames, before abstaining; f32 [f] except `trend`."""

    value: np.ndarray
    """Fused progress."""
    absolute: np.ndarray
    """Progress of each frame scored alone."""
    forward: np.ndarray
    """Progress counted from the first frame."""
    incremental: np.ndarray
    """Mean of the curves counted from earlier frames."""
    spread: np.ndarray
    """Standard deviation of the predicted distribution."""
    disagreement: np.ndarray
    """Standard deviation among the curves."""
    difference: np.ndarray
    """Change of progress over the horizon, as compared in a pair."""
    before: np.ndarray
    """Fused progress at the beginning of the horizon."""
    trend: np.ndarray
    """[f, 3] logits of regress, stagnation, progress."""
    done: np.ndarray
    """Logit, uncalibrated."""
    match: np.ndarray
    """Logit."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Past:
    """The latest r frames of B running episodes, newest last, from which curves continue."""

    time_s: np.ndarray
    """f64 [b, r]; NaN where there was none."""
    fused: np.ndarray
    """f32 [b, r]."""
    first_fused: np.ndarray
    """f32 [b], of the first frame of each episode."""
    has_first: bool
    """Whether there was a first frame."""


class LookBack(NamedTuple):
    """Frames that the next frame of B episodes is compared with."""

    is_first: np.ndarray
    """bool [b], True where an episode begins."""
    at: np.ndarray
    """i64 [b, k], place of each earlier frame: 0 for the first of the episode, i for the i-th of
    the past, counted from 1."""
    times: np.ndarray
    """f64 [b, r + 1], of the past and of now."""


def empty_past(batch: int) -> Past:
    """Return the past of `batch` episodes before their first frame."""
    none = np.zeros((batch, 0))
    first = np.zeros(batch, np.float32)
    return Past(time_s=none, fused=none.astype(np.float32), first_fused=first, has_first=False)


def look_back(past: Past, time_s: np.ndarray, config: ScorerConfig) -> LookBack:
    """Return the frames that those at `time_s` f64 [b] are compared with.

    The curves of a stream begin at its first frame, whatever its time.
    """
    is_first = (time_s == 0) | (not past.has_first)
    before = np.where(is_first[:, None], np.nan, past.time_s)
    times = np.concatenate([before, time_s[:, None]], 1)
    at = [_newest(times, time_s, lag) + 1 for lag in config.back_s]
    return LookBack(is_first, np.stack([*at, np.zeros_like(at[0])], 1), times)


def advance(
    past: Past, look: LookBack, scored: Scored, compared: Compared, config: ScorerConfig
) -> tuple[Curves, Past, int]:
    """Return the curves of the frames now, the new past, and how many of its oldest were dropped.

    `look` is the result of `look_back` for the past; `compared` are changes since `look.at`.
    """
    start = np.where(look.is_first, scored.value, past.first_fused)
    history = np.concatenate([start[:, None], past.fused, scored.value[:, None]], 1)
    base = np.take_along_axis(history, look.at, 1)
    fused, parts = _fuse(scored.value, base, compared.difference, look.is_first, config)
    before = np.where(look.is_first, fused, base[:, 0])
    old = _dropped(look.times, max(config.back_s))
    after = Past(
        time_s=look.times[:, old:], fused=np.concatenate([past.fused, fused[:, None]], 1)[:, old:],
        first_fused=np.where(look.is_first, fused, past.first_fused), has_first=True,
    )  # fmt: skip
    return _curves(fused, parts, before, scored, compared), after, old


def fuse_episodes(
    scored: Scored, compared: Compared, anchors: np.ndarray, begin: np.ndarray,
    config: ScorerConfig,
) -> Curves:  # fmt: skip
    """Return the curves of whole episodes, fused frame by frame, since each builds on earlier ones.

    Frames are in order of episode and time; `compared` are changes since the earlier frames
    `anchors` i64 [f, k], and `begin` i64 [f] is the first frame of each one's episode.
    """
    at = np.arange(len(begin)) - begin
    fused = np.zeros(len(begin), np.float32)
    parts = np.zeros((3, len(begin)), np.float32)
    for step in range(int(at.max(initial=-1)) + 1):
        now = np.flatnonzero(at == step)  # of all episodes
        fused[now], parts[:, now] = _fuse(
            scored.value[now], fused[anchors[now]], compared.difference[now], step == 0, config
        )
    return _curves(fused, parts, fused[anchors[:, 0]], scored, compared)


def weigh_changes(difference: np.ndarray, trend: np.ndarray) -> Compared:
    """Weigh changes [n, k] by the probability that they are no stagnation, of trends [n, k, 3].

    Without it, small errors would add up to a random walk while nothing happens.
    """
    odds = np.exp(trend - trend.max(2, keepdims=True))
    still = odds[..., 1] / odds.sum(2)
    return Compared(difference * (1 - still), trend[:, 0])


def labels(curves: Curves, config: ScorerConfig, calibration: Calibration) -> Progress:
    """Return calibrated labels; NaN where confidence is too low."""
    weights = np.array(calibration.confidence)
    inputs = fits.features(curves.value, curves.spread, curves.disagreement)
    confidence = sigmoid(inputs @ weights).astype(np.float32)
    abstains = confidence < config.abstain_below
    offset, factor = calibration.done
    trend = fits.trend_probability(calibration.trend, *trend_evidence(curves))
    delta = share_of_work(curves.before, curves.value, curves.difference)
    return Progress(
        value=np.where(abstains, np.nan, curves.value).astype(np.float32),
        delta=np.where(abstains, np.nan, delta).astype(np.float32),
        trend=trend.astype(np.float32),
        done_prob=sigmoid(offset + factor * curves.done).astype(np.float32),
        match=sigmoid(curves.match).astype(np.float32),
        confidence=confidence,
    )


def trend_evidence(curves: Curves) -> tuple[np.ndarray, np.ndarray]:
    """Return the features for regress and for progress of every frame; see `trend_features`."""
    return fits.trend_features(curves.trend, curves.difference, curves.value - curves.before)


def share_of_work(before: np.ndarray, after: np.ndarray, difference: np.ndarray) -> np.ndarray:
    """Return a change of progress as a share of the work: signed, in [-1, 1].

    A gain is a share of what was left to do, a loss a share of what had been done, so that
    `a + (1 - a) * delta` or `a + a * delta` leads from a to b, and swapping the two gives the
    inverse (VLAC's pairwise label; gain and loss as in Robo-Dopamine). No difference gives 0.
    Progress at both ends [n] places the compared change [n].
    """
    middle = 0.5 * (before + after)
    start = np.clip(middle - 0.5 * difference, 0.0, 1.0)
    work = np.where(difference >= 0, 1.0 - start, start)
    return np.clip(difference / np.maximum(work, LEAST_SHARE), -1.0, 1.0)


def _fuse(
    value: np.ndarray, base: np.ndarray, difference: np.ndarray, first: bool | np.ndarray,
    config: ScorerConfig,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return fused progress [n] and [3, n]: forward, incremental, disagreement.

    `base` f32 [n, k] is fused progress at the horizon, the lags and the first frame.
    """
    counted = np.clip(base + difference, 0.0, 1.0)
    forward, incremental = counted[:, -1], counted[:, 1:-1].mean(1)
    others = counted[:, 1:].mean(1)
    share = np.float32(config.absolute_share)
    fused = np.where(first, value, share * value + (1 - share) * others)
    spread = np.std(np.stack([value, forward, incremental]), axis=0)
    parts = [np.where(first, value, forward), np.where(first, value, incremental)]
    parts.append(np.where(first, 0.0, spread))
    return fused.astype(np.float32), np.stack(parts).astype(np.float32)


def _curves(
    fused: np.ndarray, parts: np.ndarray, before: np.ndarray, scored: Scored, compared: Compared
) -> Curves:
    forward, incremental, disagreement = parts
    return Curves(
        value=fused, absolute=scored.value, forward=forward, incremental=incremental,
        spread=scored.spread, disagreement=disagreement, difference=compared.difference[:, 0],
        before=before, trend=compared.trend, done=scored.done, match=scored.match,
    )  # fmt: skip


def _newest(times: np.ndarray, now: np.ndarray, lag_s: float) -> np.ndarray:
    """Return per row the last column of `times` at least `lag_s` before `now`, -1 if none."""
    with np.errstate(invalid="ignore"):
        old = times <= now[:, None] - lag_s + SLACK
    last = times.shape[1] - 1 - np.argmax(old[:, ::-1], axis=1)
    return np.where(old.any(1), last, -1)


def _dropped(times: np.ndarray, lag_s: float) -> int:
    """Return how many leading columns no row needs any more."""
    oldest = _newest(times, times[:, -1], lag_s)
    empty = np.isnan(times).sum(1)  # leading columns before the row's episode
    return int(np.where(oldest < 0, empty, oldest).min(initial=times.shape[1] - 1))
