"""One rollout as it is stored, and batches of rollouts to learn from.

An episode stores observations, not features of the memory: an update replays the memory from the
start of the episode with the current weights (`VLAPolicy.contexts`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int8, Int64, UInt8

from vla.contracts.types import EpisodeBatch, Frames

EMPTY = np.zeros((0, 0), np.float32)
NO_REFERENTS = np.zeros((0, 0, 0, 2), np.float32)


class ActionSource(IntEnum):
    """Who acted in a decision."""

    POLICY = 0
    INTERVENTION = 1
    RETRACE = 2
    """A retry on its way back to the first pose (`training.rl.intervention.retry`)."""
    OFFSET_RETRY = 3
    """The policy, with its targets displaced by a retry."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """T decisions of one episode and its M frames: those at the decisions and at the end, and for a
    policy without memory every control step between them.
    """

    images: UInt8[np.ndarray, "_ v h w 3"]
    """Of every frame, M; the last is the end, before any reset. None where they were dropped."""
    proprio: Float32[np.ndarray, "m s"]
    """Measured channel positions."""
    time_s: Float64[np.ndarray, " m"]
    """Seconds since the episode began."""
    progress: Float32[np.ndarray, " m"]
    """The simulator's, 0 at the start: for `dense_oracle` and the audit alone."""
    step: Int64[np.ndarray, " m"]
    """Control steps before each frame."""
    decision_index: Int64[np.ndarray, " t"]
    """The frame of each decision."""
    actions: Float32[np.ndarray, "t x u"]
    """Position targets sent to the arm, X for each decision."""
    action_source: Int8[np.ndarray, " t"]
    """`ActionSource`. Unless it is the policy, `latents` and `log_prob` are of actions that were
    not executed."""
    latents: Float32[np.ndarray, "t d1 k u"]
    """The path of each decision through the denoising chain (`DenoisingChain`)."""
    log_prob: Float32[np.ndarray, "t d"]
    """Log-probability of its transitions under the policy that acted."""
    reward: Float32[np.ndarray, " t"]
    """The simulator's sparse reward."""
    features: Float32[np.ndarray, "_ f"] = field(default_factory=lambda: EMPTY)
    """`VLAPolicy.features` of each decision, where the sampler keeps them."""
    simulator_state: Float32[np.ndarray, "_ p"] = field(default_factory=lambda: EMPTY)
    """`HasPrivilegedState` of each decision, where the algorithm asks for it."""
    referents: Float32[np.ndarray, "_ _ _ 2"] = field(default_factory=lambda: NO_REFERENTS)
    """`TellsReferents` of each frame, where the policy has queries; NaN at the end."""
    terminated: bool
    """Ended by the task's rules; otherwise by the time limit."""
    success: bool
    """By the simulator."""
    task: str
    number: int
    """Number of the episode among those of its seed."""
    seed: int
    version: int
    """Updates that the acting policy had seen."""

    def __len__(self) -> int:
        """T."""
        return len(self.decision_index)

    @property
    def steps(self) -> int:
        """Control steps."""
        return int(self.step[-1])

    @property
    def is_policy_action(self) -> Bool[np.ndarray, " t"]:
        """Whether the policy acted, without an offset."""
        return self.action_source == ActionSource.POLICY

    @property
    def is_intervention(self) -> Bool[np.ndarray, " t"]:
        """Whether an intervention source acted."""
        return self.action_source == ActionSource.INTERVENTION

    @property
    def is_retry(self) -> Bool[np.ndarray, " t"]:
        """Whether the decision was part of a retry."""
        return self.action_source >= ActionSource.RETRACE

    @property
    def boundary_index(self) -> np.ndarray:
        """The frames of the decisions and of the end: i64 [t + 1]."""
        return np.append(self.decision_index, len(self.step) - 1)

    @property
    def executed(self) -> np.ndarray:
        """How many actions of each decision were executed, i64 [t]: fewer where it ended."""
        return np.diff(self.step[self.boundary_index])

    def bc_indices(self, success: bool) -> np.ndarray:
        """Return the frames that are worth cloning, i64 [n].

        Always the interventions; of a success all the rest, too, but not what led to an
        intervention or to the last retry, which begins with its retrace.
        """
        chosen = np.flatnonzero(self.is_intervention)
        if success:
            retrace = self.action_source == ActionSource.RETRACE
            retries = np.flatnonzero(retrace & ~np.append(False, retrace[:-1]))
            first = retries[-1] if len(retries) else 0
            after = chosen[chosen >= first]
            chosen = np.union1d(chosen, np.arange(after[0] if len(after) else first, len(self)))
        frames = np.arange(len(self.step) - 1)
        decision = np.searchsorted(self.decision_index, frames, side="right") - 1
        return frames[np.isin(decision, chosen)]

    def targets(self, index: np.ndarray, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the actions f32 [n, k, u] executed from frames on, and what is padding [n, k].

        Beyond the end the last action is repeated.
        """
        done = np.concatenate([a[:n] for a, n in zip(self.actions, self.executed, strict=True)])
        wanted = self.step[index][:, None] + np.arange(chunk)
        return done[np.minimum(wanted, len(done) - 1)], wanted >= len(done)


def frames(episodes: Sequence[Episode], views: Sequence[int]) -> Frames:
    """Return decisions and ends of episodes as a reward model sees them, by some cameras."""
    images = np.concatenate([e.images[e.boundary_index][:, list(views)] for e in episodes])
    return Frames(
        images=images,
        image_ok=np.ones(images.shape[:2], np.bool_),
        time_s=np.concatenate([e.time_s[e.boundary_index] for e in episodes]),
        episode_index=np.repeat(np.arange(len(episodes)), [len(e) + 1 for e in episodes]),
        truth=np.stack([
            np.concatenate([e.progress[e.boundary_index] for e in episodes]),
            np.concatenate([np.append(np.zeros(len(e)), e.success) for e in episodes]),
        ], 1).astype(np.float32),
    )  # fmt: skip


def gather(
    episodes: Sequence[Episode], queries: Sequence[np.ndarray], chunk: int, views: Sequence[int]
) -> EpisodeBatch:
    """Return all decisions of episodes; some carry a loss towards what was executed there.

    Args:
        episodes: B of them.
        queries: Decisions of each that carry a loss, i64 [m_b], ascending.
        chunk: K, actions per decision.
        views: The policy's cameras among those of the episodes.
    """
    return _whole(episodes, [e.decision_index for e in episodes], queries, chunk, views)


def gather_boundaries(episodes: Sequence[Episode], views: Sequence[int]) -> EpisodeBatch:
    """Return all decisions of episodes and their ends, without actions."""
    frames = [e.boundary_index for e in episodes]
    return _whole(episodes, frames, [np.arange(len(f)) for f in frames], 0, views)


def windows(
    episodes: Sequence[Episode], frames: Sequence[np.ndarray], chunk: int, views: Sequence[int]
) -> EpisodeBatch:
    """Return frames i64 [n_b] of each episode as episodes of one decision each, for a policy
    without memory; targets are what was executed from there, only padding at the end.
    """
    index = np.arange(sum(len(f) for f in frames))
    task = tuple(e.task for e, f in zip(episodes, frames, strict=True) for _ in f)
    return _batch(
        episodes, frames, frames, chunk, views, task=task, episode_index=index,
        decision=np.zeros_like(index), loss_index=index,
    )  # fmt: skip


def _whole(
    episodes: Sequence[Episode], frames: Sequence[np.ndarray], queries: Sequence[np.ndarray],
    chunk: int, views: Sequence[int],
) -> EpisodeBatch:  # fmt: skip
    """Return frames of episodes in order; those at the places `queries` carry a loss."""
    lengths = np.array([len(f) for f in frames])
    begin = np.cumsum(lengths) - lengths
    targets = [f[q] for f, q in zip(frames, queries, strict=True)]
    return _batch(
        episodes, frames, targets, chunk, views, task=tuple(e.task for e in episodes),
        episode_index=np.repeat(np.arange(len(episodes)), lengths),
        decision=np.concatenate([np.arange(n) for n in lengths]),
        loss_index=np.concatenate([b + q for b, q in zip(begin, queries, strict=True)]),
    )  # fmt: skip


def _batch(
    episodes: Sequence[Episode], frames: Sequence[np.ndarray], target_frames: Sequence[np.ndarray],
    chunk: int, views: Sequence[int], *, task: tuple[str, ...], **places: np.ndarray,
) -> EpisodeBatch:  # fmt: skip
    """Return `frames` of episodes, and the actions executed from `target_frames` on."""
    pairs = list(zip(episodes, frames, strict=True))
    targets = [e.targets(f, chunk) for e, f in zip(episodes, target_frames, strict=True)]
    arrays = {
        "images": np.concatenate([e.images[f][:, list(views)] for e, f in pairs]),
        "proprio": np.concatenate([e.proprio[f] for e, f in pairs]),
        "step_index": np.concatenate([e.step[f] for e, f in pairs]).astype(np.float32),
        "actions": np.concatenate([t[0] for t in targets]),
        "action_is_pad": np.concatenate([t[1] for t in targets]),
        "weight": np.ones(len(places["loss_index"]), np.float32),
        **places,
    }
    labelled = [e.referents.shape[1:] for e in episodes if len(e.referents)]
    if labelled:  # NaN in those, of a prior run, that have none
        arrays["referents"] = np.concatenate([
            (e.referents[f] if len(e.referents) else np.full((len(f), *labelled[0]), np.nan, "f4"))
            [:, list(views)]
            for e, f in zip(episodes, target_frames, strict=True)
        ])  # fmt: skip
    return EpisodeBatch(task=task, **{k: torch.from_numpy(v) for k, v in arrays.items()})


def join(batches: Sequence[EpisodeBatch]) -> EpisodeBatch:
    """Return several batches as one."""
    rows = np.cumsum([0] + [len(b.task) for b in batches])
    begin = np.cumsum([0] + [len(b.episode_index) for b in batches])

    def joined(name: str, shift: np.ndarray | None = None) -> torch.Tensor:
        parts = [torch.as_tensor(getattr(b, name)) for b in batches]
        if shift is not None:
            parts = [p + int(s) for p, s in zip(parts, shift, strict=False)]
        return torch.cat(parts)

    plain = ("images", "proprio", "step_index", "decision", "actions", "action_is_pad", "weight")
    return EpisodeBatch(
        task=tuple(t for b in batches for t in b.task), episode_index=joined("episode_index", rows),
        loss_index=joined("loss_index", begin), referents=_joined_referents(batches),
        grounding_weight=_joined_grounding_weight(batches),
        **{name: joined(name) for name in plain},
    )  # fmt: skip


def _joined_grounding_weight(batches: Sequence[EpisodeBatch]) -> torch.Tensor | None:
    """Return the grounding weights of several batches; None where all are those of the loss."""
    if all(b.grounding_weight is None for b in batches):
        return None
    parts = [b.weight if b.grounding_weight is None else b.grounding_weight for b in batches]
    return torch.cat([torch.as_tensor(part) for part in parts])


def _joined_referents(batches: Sequence[EpisodeBatch]) -> torch.Tensor | None:
    """Return the referents of several batches, NaN for those that have none."""
    known = [torch.as_tensor(b.referents) for b in batches if b.referents is not None]
    if not known:
        return None
    parts = [
        known[0].new_full((len(b.loss_index), *known[0].shape[1:]), torch.nan)
        if b.referents is None
        else torch.as_tensor(b.referents)
        for b in batches
    ]
    return torch.cat(parts)
