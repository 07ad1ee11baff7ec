"""One causal scorer for labelling, for reward and for monitoring: from judgements to curves.

Three kinds of curve are fused: absolute (each frame alone), forward (from the first frame) and
incremental (from frames a little earlier). Where they disagree, or a prediction is wide, confidence
is low; where it is too low, the scorer abstains. A stream scored step by step gives the numbers of
the same frames scored at once. Reading frames and writing labels is done elsewhere.
"""

import dataclasses
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from reward_models.calibrate import (
    Calibration,
    features,
    sigmoid,
    trend_features,
    trend_probability,
)
from reward_models.critic import Change, Critic, Shown
from reward_models.truth import SLACK, earlier
from vla.contracts.config import check_least
from vla.contracts.types import Example, Frames, Progress

LEAST_SHARE = 0.05
"""Least work left (or done) that a delta is a share of: below it shares say nothing."""


@dataclass(frozen=True, kw_only=True)
class ScorerConfig:
    """How curves are made; times are in seconds, so the frame rate does not matter."""

    stride_s: float = 0.2
    """Time between scored frames."""
    horizon_s: float = 1.0
    """What delta and trend look back over."""
    lags_s: tuple[float, ...] = (0.4, 1.0, 2.0)
    """How far back the incremental curves start."""
    absolute_share: float = 0.5
    """Weight of the absolute curve; the others share the rest."""
    abstain_below: float = 0.2
    """Confidence below which progress is NaN."""
    chunk: int = 256
    """Frames encoded or compared at once: bounds memory."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, absolute_share=0, abstain_below=0, chunk=1)
        for name in ("stride_s", "horizon_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}: got {getattr(self, name)}, expected more than 0")
        if not self.absolute_share <= 1:
            raise ValueError(f"absolute_share: got {self.absolute_share}, expected at most 1")
        if not self.lags_s or not min(self.lags_s) > 0:
            raise ValueError(f"lags_s: got {self.lags_s}, expected one or more above 0")


class Curves(NamedTuple):
    """Everything the scorer computed of F moments, before abstaining; f32 [f] but for `trend`."""

    value: np.ndarray
    """Fused progress."""
    absolute: np.ndarray
    """Progress of each frame judged alone."""
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


@dataclass
class Stream:
    """What a scorer keeps of B running episodes; `step` returns a new one."""

    memory: Tensor
    """[b, m], the critic's own."""
    embeddings: Tensor
    """[b, r, d], the latest moments, newest last."""
    time_s: np.ndarray
    """f64 [b, r]; NaN where there was none."""
    fused: np.ndarray
    """f32 [b, r]."""
    first: Tensor | None
    """[b, d]."""
    first_fused: np.ndarray
    """f32 [b]."""
    shown: Shown | None
    """The reference episode, encoded."""


class Scorer:
    """Satisfies `vla.contracts.protocols.RewardModel`."""

    def __init__(
        self,
        critic: Critic,
        config: ScorerConfig | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.critic = critic
        self.config = config or ScorerConfig()
        self.calibration = calibration or Calibration()
        # The horizon first, then what the curves start from.
        self._lags_s = (self.config.horizon_s, *self.config.lags_s)

    # --- all at once ---------------------------------------------------------------------------

    def score(
        self, frames: Frames, task: tuple[str, ...], example: Example | None = None
    ) -> Progress:
        """Judge every moment of B whole episodes; see `RewardModel.score`.

        Raises:
            ValueError: frames of an episode are out of order, or the critic lacks something.
        """
        return self.progress(self.curves(frames, task, example))

    @torch.no_grad()
    def curves(
        self, frames: Frames, task: tuple[str, ...], example: Example | None = None
    ) -> Curves:
        """Return what `score` is made of."""
        row, time_s = _array(frames.row), _array(frames.time_s)
        if np.any((np.diff(row) == 0) & (np.diff(time_s) <= 0)) or np.any(np.diff(row) < 0):
            raise ValueError("frames must be in order of episode and, within it, of time")
        embeddings = self.embed(frames, task)
        return self.curves_of(embeddings, row, time_s, self.show(example, task[:1]))

    @torch.no_grad()
    def embed(self, frames: Frames, task: tuple[str, ...]) -> Tensor:
        """Encode each frame once, [f, d], in chunks of bounded memory."""
        row = _array(frames.row)
        memory = self.critic.remember(len(task))
        done = []
        for start in range(0, len(row), self.config.chunk):
            part = slice(start, start + self.config.chunk)
            rows = np.unique(row[part])
            local = _rows_from_zero(_part(frames, part), rows)
            names = tuple(task[r] for r in rows)
            embedded, kept = self.critic.embed(local, names, memory[rows])
            memory[rows] = kept
            done.append(embedded)
        return torch.cat(done)

    @torch.no_grad()
    def curves_of(
        self, embeddings: Tensor, row: np.ndarray, time_s: np.ndarray, shown: Shown | None
    ) -> Curves:
        """Return the curves of encoded frames [f, d] in order of row and time."""
        begin = np.searchsorted(row, row, side="left")  # the first frame of each one's episode
        anchors = np.stack(
            [earlier(row, time_s, lag) for lag in self._lags_s] + [begin], 1
        )  # [f, lags + 1]
        judged, compared = [], []
        for start in range(0, len(row), self.config.chunk):
            part = slice(start, start + self.config.chunk)
            first = embeddings[begin[part]]
            judged.append(self.critic.judge(embeddings[part], first, shown))
            compared.append(
                self._compare(embeddings, anchors[part], embeddings[part], first, shown)
            )
        moment = {k: _join(judged, k) for k in ("value", "spread", "done", "match")}
        difference = np.concatenate([c[0] for c in compared])
        trend = np.concatenate([c[1] for c in compared])
        return self._fuse_in_order(moment, difference, trend, anchors, begin)

    def _compare(
        self, embeddings: Tensor, anchors: np.ndarray, now: Tensor, first: Tensor,
        shown: Shown | None,
    ) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
        """Return differences f32 [n, lags + 1] and the horizon's trend logits [n, 3]."""
        changes = [
            self.critic.compare(embeddings[anchors[:, k]], now, first, shown)
            for k in range(anchors.shape[1])
        ]
        return _numpy(torch.stack([counted(c) for c in changes], 1)), _numpy(changes[0].trend)

    def _fuse_in_order(
        self,
        moment: dict[str, np.ndarray],
        difference: np.ndarray,
        trend: np.ndarray,
        anchors: np.ndarray,
        begin: np.ndarray,
    ) -> Curves:
        """Fuse moment by moment, all episodes side by side: each starts from earlier results."""
        at = np.arange(len(begin)) - begin
        fused = np.zeros(len(begin), np.float32)
        parts = np.zeros((3, len(begin)), np.float32)
        for step in range(int(at.max(initial=-1)) + 1):
            now = np.flatnonzero(at == step)
            fused[now], parts[:, now] = self._fuse(
                moment["value"][now], fused[anchors[now]], difference[now], step == 0
            )
        forward, incremental, disagreement = parts
        return Curves(
            value=fused, absolute=moment["value"], forward=forward, incremental=incremental,
            spread=moment["spread"], disagreement=disagreement, difference=difference[:, 0],
            before=fused[anchors[:, 0]], trend=trend, done=moment["done"], match=moment["match"],
        )  # fmt: skip

    def _fuse(
        self, value: np.ndarray, base: np.ndarray, difference: np.ndarray, first: bool | np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return fused progress [n] and [3, n]: forward, incremental, disagreement.

        Args:
            value: Absolute progress f32 [n].
            base: Fused progress f32 [n, lags + 1] at the horizon, the lags and the first frame.
            difference: Compared change f32 [n, lags + 1] since then.
            first: True where the moment begins an episode: there is nothing to compare with.
        """
        counted = np.clip(base + difference, 0.0, 1.0)
        forward, incremental = counted[:, -1], counted[:, 1:-1].mean(1)
        others = counted[:, 1:].mean(1)
        share = np.float32(self.config.absolute_share)
        fused = np.where(first, value, share * value + (1 - share) * others)
        spread = np.std(np.stack([value, forward, incremental]), axis=0)
        parts = [np.where(first, value, forward), np.where(first, value, incremental)]
        parts.append(np.where(first, 0.0, spread))
        return fused.astype(np.float32), np.stack(parts).astype(np.float32)

    # --- moment by moment ----------------------------------------------------------------------

    def start(self, batch: int, example: Example | None = None, task: str = "") -> Stream:
        """Return the empty state of `batch` streams, told of a reference episode of `task`."""
        return Stream(
            memory=self.critic.remember(batch), embeddings=torch.zeros(batch, 0, 0),
            time_s=np.zeros((batch, 0)), fused=np.zeros((batch, 0), np.float32), first=None,
            first_fused=np.zeros(batch, np.float32), shown=self.show(example, (task,)),
        )  # fmt: skip

    @torch.no_grad()
    def step(self, state: Stream, frames: Frames, task: tuple[str, ...]) -> tuple[Progress, Stream]:
        """Judge the next moment of each of B streams; see `RewardModel.step`."""
        now, memory = self.critic.embed(frames, task, state.memory)
        time_s, batch = _array(frames.time_s), np.arange(len(task))
        # A stream may be joined late, but what it is first shown is where its curves begin.
        fresh = (time_s == 0) | (state.first is None)
        if state.first is None:
            state = dataclasses.replace(
                state, first=now, embeddings=now.new_zeros(len(task), 0, now.shape[1])
            )
        first = torch.where(torch.as_tensor(fresh, device=now.device)[:, None], now, state.first)
        past = np.where(fresh[:, None], np.nan, state.time_s)
        # Anchors: index r of the ring, or -1 for the first frame.
        ring = torch.cat([state.embeddings, now[:, None]], 1)
        times = np.concatenate([past, time_s[:, None]], 1)
        found = np.stack([_newest_in_ring(times, time_s, lag) for lag in self._lags_s], 1)
        pairs = []
        for k in range(found.shape[1]):
            at = torch.as_tensor(np.maximum(found[:, k], 0))
            anchor = ring[torch.as_tensor(batch), at]
            begun = torch.as_tensor(found[:, k] < 0, device=now.device)[:, None]
            pairs.append(torch.where(begun, first, anchor))
        changes = [self.critic.compare(a, now, first, state.shown) for a in (*pairs, first)]
        moment = self.critic.judge(now, first, state.shown)
        value = _numpy(moment.value)
        difference = _numpy(torch.stack([counted(c) for c in changes], 1))
        start = np.where(fresh, value, state.first_fused)
        history = np.concatenate([state.fused, value[:, None]], 1)
        base = np.where(found < 0, start[:, None], history[batch[:, None], np.maximum(found, 0)])
        base = np.concatenate([base, start[:, None]], 1)
        fused, (forward, incremental, disagreement) = self._fuse(value, base, difference, fresh)
        curves = Curves(
            value=fused, absolute=value, forward=forward, incremental=incremental,
            spread=_numpy(moment.spread), disagreement=disagreement, difference=difference[:, 0],
            before=np.where(fresh, fused, base[:, 0]), trend=_numpy(changes[0].trend),
            done=_numpy(moment.done), match=_numpy(moment.match),
        )  # fmt: skip
        history[:, -1] = fused
        keep = _still_needed(times, time_s, max(self._lags_s))
        after = Stream(
            memory=memory, embeddings=ring[:, keep:], time_s=times[:, keep:],
            fused=history[:, keep:], first=first,
            first_fused=np.where(fresh, fused, state.first_fused), shown=state.shown,
        )  # fmt: skip
        return self.progress(curves), after

    # --- what both share -----------------------------------------------------------------------

    def show(self, example: Example | None, task: tuple[str, ...]) -> Shown | None:
        """Encode a reference episode of a task."""
        if example is None:
            return None
        embeddings = self.embed(example.frames, (example.task,) if example.task else task)
        return Shown(embeddings, torch.as_tensor(example.progress, device=embeddings.device))

    def progress(self, curves: Curves) -> Progress:
        """Return calibrated labels; NaN where confidence is too low."""
        weights = np.array(self.calibration.confidence)
        seen = features(curves.value, curves.spread, curves.disagreement)
        confidence = sigmoid(seen @ weights).astype(np.float32)
        abstains = confidence < self.config.abstain_below
        offset, factor = self.calibration.done
        trend = trend_probability(self.calibration.trend, *trend_evidence(curves))
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
    """Return what speaks for regress and for progress at every moment."""
    return trend_features(curves.trend, curves.difference, curves.value - curves.before)


def counted(change: Change) -> Tensor:
    """Return what of a change counts, [n]: as much as it is probably not stagnation.

    Small errors of the differences would otherwise add up to a random walk while nothing happens.
    """
    return change.difference * (1.0 - change.trend.softmax(1)[:, 1])


def share_of_work(before: np.ndarray, after: np.ndarray, difference: np.ndarray) -> np.ndarray:
    """Return a change of progress as a share of the work: signed, in [-1, 1].

    A gain is a share of what was left to do, a loss a share of what had been done, so that
    `a + (1 - a) * delta` or `a + a * delta` leads from a to b, and swapping the two gives the
    inverse (VLAC's pairwise label; gain and loss as in Robo-Dopamine). No difference gives 0.

    Args:
        before: Progress at the start, [n].
        after: Progress at the end; with `before` it places the compared change, [n].
        difference: The compared change itself, [n].
    """
    middle = 0.5 * (before + after)
    start = np.clip(middle - 0.5 * difference, 0.0, 1.0)
    work = np.where(difference >= 0, 1.0 - start, start)
    return np.clip(difference / np.maximum(work, LEAST_SHARE), -1.0, 1.0)


def _newest_in_ring(times: np.ndarray, now: np.ndarray, lag_s: float) -> np.ndarray:
    """Return per row the last column of `times` at least `lag_s` before `now`, -1 if none."""
    with np.errstate(invalid="ignore"):
        old = times <= now[:, None] - lag_s + SLACK
    last = times.shape[1] - 1 - np.argmax(old[:, ::-1], axis=1)
    return np.where(old.any(1), last, -1)


def _still_needed(times: np.ndarray, now: np.ndarray, lag_s: float) -> int:
    """Return how many leading columns no row will ask for again."""
    found = _newest_in_ring(times, now, lag_s)
    empty = np.isnan(times).sum(1)  # leading columns before the row's episode
    return int(np.where(found < 0, empty, found).min(initial=times.shape[1] - 1))


def _part(frames: Frames, part: slice) -> Frames:
    cut = {f.name: getattr(frames, f.name) for f in dataclasses.fields(frames)}
    return Frames(**{name: None if v is None else v[part] for name, v in cut.items()})


def _rows_from_zero(frames: Frames, rows: np.ndarray) -> Frames:
    return dataclasses.replace(frames, row=np.searchsorted(rows, _array(frames.row)))


def _array(value: np.ndarray | Tensor) -> np.ndarray:
    return np.asarray(value)


def _numpy(value: Tensor) -> np.ndarray:
    return value.float().cpu().numpy()


def _join(parts: list, name: str) -> np.ndarray:
    return np.concatenate([_numpy(getattr(part, name)) for part in parts])
