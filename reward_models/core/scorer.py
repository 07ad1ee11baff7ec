"""The causal scorer of labelling, reward and monitoring: from frame and pair scores to progress.

Three kinds of curve are fused: absolute (each frame alone), forward (from the first frame) and
incremental (from frames a little earlier). Confidence is low where they disagree or a prediction is
wide; where it is too low, the scorer abstains. Frames scored step by step and all at once give
equal results.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from reward_models.core.calibration import Calibration
from reward_models.core.curves import (
    Compared,
    Curves,
    Past,
    Scored,
    ScorerConfig,
    advance,
    empty_past,
    fuse_episodes,
    labels,
    look_back,
    weigh_changes,
)
from reward_models.core.interface import FrameScores, Reference, RewardModelNetwork
from reward_models.core.truth import frame_at_lag
from vla.contracts.types import Example, Frames, Progress


@dataclass
class Stream:
    """State of B running episodes; `step` returns a new one."""

    memory: Tensor
    """[b, m], of the reward model."""
    embeddings: Tensor
    """[b, r, d], of the latest frames, newest last."""
    past: Past
    """Their times and fused progress."""
    first: Tensor | None
    """[b, d], embeddings of the first frames; None before the first step."""
    reference: Reference | None
    """The reference episode."""


class Scorer:
    """Satisfies `vla.contracts.protocols.RewardModel`."""

    def __init__(
        self,
        reward_model: RewardModelNetwork,
        config: ScorerConfig | None = None,
        calibration: Calibration | None = None,
    ) -> None:
        self.reward_model = reward_model
        self.config = config or ScorerConfig()
        self.calibration = calibration or Calibration()

    def score(
        self, frames: Frames, task: tuple[str, ...], example: Example | None = None
    ) -> Progress:
        """Score every frame of B whole episodes; see `RewardModel.score`.

        Raises:
            ValueError: frames are out of order, or lack something that the reward model needs.
        """
        return self.progress(self.curves(frames, task, example))

    @torch.no_grad()
    def curves(
        self, frames: Frames, task: tuple[str, ...], example: Example | None = None
    ) -> Curves:
        """Return the curves behind `score`."""
        index, time_s = _array(frames.episode_index), _array(frames.time_s)
        if np.any((np.diff(index) == 0) & (np.diff(time_s) <= 0)) or np.any(np.diff(index) < 0):
            raise ValueError("frames must be in order of episode and, within it, of time")
        embeddings = self.embed(frames, task)
        reference = self.encode_reference(example, task[:1])
        return self.curves_of(embeddings, index, time_s, reference)

    @torch.no_grad()
    def embed(self, frames: Frames, task: tuple[str, ...]) -> Tensor:
        """Encode each frame once, [f, d], in chunks of bounded memory."""
        index = _array(frames.episode_index)
        memory = self.reward_model.initial_memory(len(task))
        parts = []
        for start in range(0, len(index), self.config.chunk):
            part = slice(start, start + self.config.chunk)
            rows = np.unique(index[part])
            names = tuple(task[r] for r in rows)
            local = _part(frames, part, rows)
            embedded, memory[rows] = self.reward_model.embed(local, names, memory[rows])
            parts.append(embedded)
        return torch.cat(parts)

    @torch.no_grad()
    def curves_of(
        self, embeddings: Tensor, episode_index: np.ndarray, time_s: np.ndarray,
        reference: Reference | None,
    ) -> Curves:  # fmt: skip
        """Return the curves of encoded frames [f, d] in order of episode and time."""
        begin = np.searchsorted(episode_index, episode_index)  # first frame of the episode
        anchors = np.stack(
            [frame_at_lag(episode_index, time_s, lag) for lag in self.config.back_s] + [begin], 1
        )  # [f, k]
        scored, compared = [], []
        for start in range(0, len(embeddings), self.config.chunk):
            part = slice(start, start + self.config.chunk)
            now, first = embeddings[part], embeddings[begin[part]]
            scored.append(_to_numpy(self.reward_model.score(now, first, reference)))
            before = (embeddings[at] for at in anchors[part].T)
            compared.append(self._compare(before, now, first, reference))
        return fuse_episodes(
            Scored(*map(np.concatenate, zip(*scored, strict=True))),
            Compared(*map(np.concatenate, zip(*compared, strict=True))),
            anchors, begin, self.config,
        )  # fmt: skip

    def _compare(
        self, before: Iterable[Tensor], now: Tensor, first: Tensor, reference: Reference | None
    ) -> Compared:
        """Compare frames [n, d] with k earlier ones of their episodes, [n, d] each."""
        changes = [self.reward_model.compare(then, now, first, reference) for then in before]
        return weigh_changes(
            np.stack([_numpy(c.difference) for c in changes], 1),
            np.stack([_numpy(c.trend) for c in changes], 1),
        )

    def start(self, batch: int, example: Example | None = None, task: str = "") -> Stream:
        """Return the initial state of `batch` streams, with a reference episode if given."""
        return Stream(
            memory=self.reward_model.initial_memory(batch), embeddings=torch.zeros(batch, 0, 0),
            past=empty_past(batch), first=None, reference=self.encode_reference(example, (task,)),
        )  # fmt: skip

    @torch.no_grad()
    def step(self, state: Stream, frames: Frames, task: tuple[str, ...]) -> tuple[Progress, Stream]:
        """Score the next frame of each of B streams; see `RewardModel.step`."""
        now, memory = self.reward_model.embed(frames, task, state.memory)
        look = look_back(state.past, _array(frames.time_s), self.config)
        if state.first is None:
            state = dataclasses.replace(
                state, first=now, embeddings=now.new_zeros(len(task), 0, now.shape[1])
            )
        is_first = torch.as_tensor(look.is_first, device=now.device)[:, None]
        first = torch.where(is_first, now, state.first)
        history = torch.cat([first[:, None], state.embeddings, now[:, None]], 1)
        rows = torch.arange(len(task))
        before = (history[rows, torch.as_tensor(at)] for at in look.at.T)
        compared = self._compare(before, now, first, state.reference)
        scored = _to_numpy(self.reward_model.score(now, first, state.reference))
        curves, past, old = advance(state.past, look, scored, compared, self.config)
        after = Stream(
            memory=memory, embeddings=history[:, 1 + old :], past=past, first=first,
            reference=state.reference,
        )  # fmt: skip
        return self.progress(curves), after

    def encode_reference(self, example: Example | None, task: tuple[str, ...]) -> Reference | None:
        """Encode a reference episode of a task; None without one."""
        if example is None:
            return None
        embeddings = self.embed(example.frames, (example.task,) if example.task else task)
        return Reference(embeddings, torch.as_tensor(example.progress, device=embeddings.device))

    def progress(self, curves: Curves) -> Progress:
        """Return calibrated labels; NaN where confidence is too low."""
        return labels(curves, self.config, self.calibration)


def _to_numpy(scores: FrameScores) -> Scored:
    return Scored(*map(_numpy, scores))


def _part(frames: Frames, part: slice, rows: np.ndarray) -> Frames:
    """Return some frames, of the episodes `rows`, numbered from 0."""
    cut = {name: None if v is None else v[part] for name, v in vars(frames).items()}
    index = np.searchsorted(rows, _array(frames.episode_index)[part])
    return Frames(**{**cut, "episode_index": index})


def _array(value: np.ndarray | Tensor) -> np.ndarray:
    return np.asarray(value)


def _numpy(value: Tensor) -> np.ndarray:
    return value.float().cpu().numpy()
