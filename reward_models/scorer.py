"""One causal scorer for labelling, for reward and for monitoring: from judgements to curves.

Three kinds of curve are fused: absolute (each frame alone), forward (from the first frame) and
incremental (from frames a little earlier). Where they disagree, or a prediction is wide, confidence
is low; where it is too low, the scorer abstains. A stream scored step by step gives the numbers of
the same frames scored at once. Reading frames and writing labels is done elsewhere.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reward_models.calibrate import Calibration
from reward_models.critic import Critic, Moment, Shown
from reward_models.curves import (
    Compared,
    Curves,
    Judged,
    Past,
    ScorerConfig,
    advance,
    compare,
    in_order,
    labels,
    look_back,
    nothing,
)
from reward_models.truth import earlier
from vla.contracts.types import Example, Frames, Progress


@dataclass
class Stream:
    """What a scorer keeps of B running episodes; `step` returns a new one."""

    memory: Tensor
    """[b, m], the critic's own."""
    embeddings: Tensor
    """[b, r, d], the latest moments, newest last."""
    past: Past
    """What was made of them."""
    first: Tensor | None
    """[b, d]."""
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
            [earlier(row, time_s, lag) for lag in self.config.back_s] + [begin], 1
        )  # [f, k]
        judged, compared = [], []
        for start in range(0, len(row), self.config.chunk):
            part = slice(start, start + self.config.chunk)
            first = embeddings[begin[part]]
            judged.append(_judged(self.critic.judge(embeddings[part], first, shown)))
            compared.append(
                self._compare(
                    (embeddings[at] for at in anchors[part].T), embeddings[part], first, shown
                )
            )
        return in_order(
            Judged(*map(np.concatenate, zip(*judged, strict=True))),
            Compared(*map(np.concatenate, zip(*compared, strict=True))),
            anchors, begin, self.config,
        )  # fmt: skip

    def _compare(
        self, before: Iterable[Tensor], now: Tensor, first: Tensor, shown: Shown | None
    ) -> Compared:
        """Compare moments [n, d] with k earlier ones of their episodes, [n, d] each."""
        changes = [self.critic.compare(one, now, first, shown) for one in before]
        return compare(
            np.stack([_numpy(c.difference) for c in changes], 1),
            np.stack([_numpy(c.trend) for c in changes], 1),
        )

    # --- moment by moment ----------------------------------------------------------------------

    def start(self, batch: int, example: Example | None = None, task: str = "") -> Stream:
        """Return the empty state of `batch` streams, told of a reference episode of `task`."""
        return Stream(
            memory=self.critic.remember(batch), embeddings=torch.zeros(batch, 0, 0),
            past=nothing(batch), first=None, shown=self.show(example, (task,)),
        )  # fmt: skip

    @torch.no_grad()
    def step(self, state: Stream, frames: Frames, task: tuple[str, ...]) -> tuple[Progress, Stream]:
        """Judge the next moment of each of B streams; see `RewardModel.step`."""
        now, memory = self.critic.embed(frames, task, state.memory)
        look = look_back(state.past, _array(frames.time_s), self.config)
        if state.first is None:
            state = dataclasses.replace(
                state, first=now, embeddings=now.new_zeros(len(task), 0, now.shape[1])
            )
        fresh = torch.as_tensor(look.fresh, device=now.device)[:, None]
        first = torch.where(fresh, now, state.first)
        known = torch.cat([first[:, None], state.embeddings, now[:, None]], 1)
        rows = torch.arange(len(task))
        before = (known[rows, torch.as_tensor(at)] for at in look.at.T)
        compared = self._compare(before, now, first, state.shown)
        judged = _judged(self.critic.judge(now, first, state.shown))
        curves, past, old = advance(state.past, look, judged, compared, self.config)
        after = Stream(
            memory=memory, embeddings=known[:, 1 + old :], past=past, first=first,
            shown=state.shown,
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
        return labels(curves, self.config, self.calibration)


def _judged(moment: Moment) -> Judged:
    return Judged(*map(_numpy, moment))


def _part(frames: Frames, part: slice) -> Frames:
    cut = {f.name: getattr(frames, f.name) for f in dataclasses.fields(frames)}
    return Frames(**{name: None if v is None else v[part] for name, v in cut.items()})


def _rows_from_zero(frames: Frames, rows: np.ndarray) -> Frames:
    return dataclasses.replace(frames, row=np.searchsorted(rows, _array(frames.row)))


def _array(value: np.ndarray | Tensor) -> np.ndarray:
    return np.asarray(value)


def _numpy(value: Tensor) -> np.ndarray:
    return value.float().cpu().numpy()
