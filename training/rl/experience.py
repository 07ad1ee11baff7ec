"""One practised episode as it is kept, and batches of them to learn from.

Features of memory are not kept but what they come from: at an update the memory is replayed from
the start of the episode with the weights of that moment (`VLAPolicy.contexts`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64, Int8, Int64, UInt8

from vla.contracts.types import EpisodeBatch, Frames

POLICY, OTHER, BACK, ASIDE = range(4)
"""Who acted in a decision: the policy; somebody else; in an attempt anew (`training.rl.retry`) the
arm, on its way back to where the episode began, and then the policy with its targets displaced."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """T decisions of one episode, and the M moments that were seen: those of all decisions and the
    end, and where the policy remembers nothing every control step between them.
    """

    images: UInt8[np.ndarray, "m v h w 3"]
    """At every moment; the last is the end, before any reset."""
    proprio: Float32[np.ndarray, "m s"]
    """Measured channel positions."""
    time_s: Float64[np.ndarray, " m"]
    """Seconds since the episode began."""
    progress: Float32[np.ndarray, " m"]
    """The simulator's, 0 at the start: for the upper bound and the audit alone."""
    step: Int64[np.ndarray, " m"]
    """Control steps before each moment."""
    at: Int64[np.ndarray, " t"]
    """The moment of each decision."""
    actions: Float32[np.ndarray, "t x u"]
    """Position targets handed to the arm, X for each decision."""
    by: Int8[np.ndarray, " t"]
    """Who acted. Unless it was the policy, `latents` and `log_prob` are of what was not done."""
    latents: Float32[np.ndarray, "t d1 k u"]
    """The path of each decision through the denoising chain (`DenoiseTrace`)."""
    log_prob: Float32[np.ndarray, "t d"]
    """Log-probability of its transitions under the policy that acted."""
    reward: Float32[np.ndarray, " t"]
    """The simulator's sparse reward."""
    terminated: bool
    """Ended by the task's rules; otherwise by the time limit."""
    success: bool
    """The simulator's word."""
    task: str
    """Instruction."""
    number: int
    """Number of the episode among those of its seed."""
    seed: int
    """Seed of the episode."""
    version: int
    """Updates that the policy which acted had seen."""

    def __len__(self) -> int:
        """T."""
        return len(self.at)

    @property
    def steps(self) -> int:
        """Control steps."""
        return int(self.step[-1])

    @property
    def own(self) -> Bool[np.ndarray, " t"]:
        """Whether the policy acted, and nothing came between it and the arm."""
        return self.by == POLICY

    @property
    def helped(self) -> Bool[np.ndarray, " t"]:
        """Whether somebody else acted."""
        return self.by == OTHER

    @property
    def retried(self) -> Bool[np.ndarray, " t"]:
        """Whether it was part of an attempt anew."""
        return (self.by == BACK) | (self.by == ASIDE)

    @property
    def decided(self) -> np.ndarray:
        """The moments of the decisions, and the end: i64 [t + 1]."""
        return np.append(self.at, len(self.step) - 1)

    @property
    def executed(self) -> np.ndarray:
        """How many actions of each decision were executed, i64 [t]: fewer where it ended."""
        return np.diff(self.step[self.decided])

    def lessons(self, good: bool) -> np.ndarray:
        """Return the moments that are worth cloning, i64 [n].

        Always what somebody else did; of a success all the rest, too, but not what led to help or
        to the last attempt anew, which begins with the way back.
        """
        worthy = np.flatnonzero(self.helped)
        if good:
            back = self.by == BACK
            begun = np.flatnonzero(back & ~np.append(False, back[:-1]))
            first = begun[-1] if len(begun) else 0
            after = worthy[worthy >= first]
            worthy = np.union1d(worthy, np.arange(after[0] if len(after) else first, len(self)))
        moments = np.arange(len(self.step) - 1)
        decision = np.searchsorted(self.at, moments, side="right") - 1
        return moments[np.isin(decision, worthy)]

    def targets(self, moments: np.ndarray, chunk: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the actions f32 [n, k, u] executed from moments on, and what is padding [n, k].

        Beyond the end the last action is repeated.
        """
        done = np.concatenate([a[:n] for a, n in zip(self.actions, self.executed, strict=True)])
        wanted = self.step[moments][:, None] + np.arange(chunk)
        return done[np.minimum(wanted, len(done) - 1)], wanted >= len(done)


def frames(episodes: Sequence[Episode], views: Sequence[int]) -> Frames:
    """Return the decisions and ends of episodes as a critic sees them, through some cameras."""
    images = np.concatenate([e.images[e.decided][:, list(views)] for e in episodes])
    return Frames(
        images=images,
        image_ok=np.ones(images.shape[:2], np.bool_),
        time_s=np.concatenate([e.time_s[e.decided] for e in episodes]),
        row=np.repeat(np.arange(len(episodes)), [len(e) + 1 for e in episodes]),
        truth=np.stack([
            np.concatenate([e.progress[e.decided] for e in episodes]),
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
    return _whole(episodes, [e.at for e in episodes], queries, chunk, views)


def moments(episodes: Sequence[Episode], views: Sequence[int]) -> EpisodeBatch:
    """Return all decisions of episodes and their ends, as queries without actions."""
    seen = [e.decided for e in episodes]
    return _whole(episodes, seen, [np.arange(len(m)) for m in seen], 0, views)


def windows(
    episodes: Sequence[Episode], seen: Sequence[np.ndarray], chunk: int, views: Sequence[int]
) -> EpisodeBatch:
    """Return moments of episodes as episodes of one decision each, for a policy that remembers
    nothing; targets are what was executed from there.

    Args:
        episodes: B of them.
        seen: Moments of each, i64 [n_b]; the last one of an episode has no target but padding.
        chunk: K, actions per decision.
        views: The policy's cameras among those of the episodes.
    """
    index = np.arange(sum(len(m) for m in seen))
    task = tuple(e.task for e, m in zip(episodes, seen, strict=True) for _ in m)
    return _batch(
        episodes, seen, seen, chunk, views, task=task, row=index,
        decision=np.zeros_like(index), query=index,
    )  # fmt: skip


def _whole(
    episodes: Sequence[Episode], seen: Sequence[np.ndarray], queries: Sequence[np.ndarray],
    chunk: int, views: Sequence[int],
) -> EpisodeBatch:  # fmt: skip
    """Return moments of episodes in a row; those at the places `queries` carry a loss."""
    lengths = np.array([len(m) for m in seen])
    begin = np.cumsum(lengths) - lengths
    asked = [m[q] for m, q in zip(seen, queries, strict=True)]
    return _batch(
        episodes, seen, asked, chunk, views, task=tuple(e.task for e in episodes),
        row=np.repeat(np.arange(len(episodes)), lengths),
        decision=np.concatenate([np.arange(n) for n in lengths]),
        query=np.concatenate([b + q for b, q in zip(begin, queries, strict=True)]),
    )  # fmt: skip


def _batch(
    episodes: Sequence[Episode], seen: Sequence[np.ndarray], asked: Sequence[np.ndarray],
    chunk: int, views: Sequence[int], *, task: tuple[str, ...], **places: np.ndarray,
) -> EpisodeBatch:  # fmt: skip
    """Return what was seen at the moments `seen`, and what was done from the moments `asked` on."""
    pairs = list(zip(episodes, seen, strict=True))
    targets = [e.targets(m, chunk) for e, m in zip(episodes, asked, strict=True)]
    arrays = {
        "images": np.concatenate([e.images[m][:, list(views)] for e, m in pairs]),
        "proprio": np.concatenate([e.proprio[m] for e, m in pairs]),
        "now": np.concatenate([e.step[m] for e, m in pairs]).astype(np.float32),
        "actions": np.concatenate([t[0] for t in targets]),
        "pad": np.concatenate([t[1] for t in targets]),
        "weight": np.ones(len(places["query"]), np.float32),
        **places,
    }
    return EpisodeBatch(task=task, **{k: torch.from_numpy(v) for k, v in arrays.items()})


def join(batches: Sequence[EpisodeBatch]) -> EpisodeBatch:
    """Return several batches as one."""
    rows = np.cumsum([0] + [len(b.task) for b in batches])
    begin = np.cumsum([0] + [len(b.row) for b in batches])

    def joined(name: str, shift: np.ndarray | None = None) -> torch.Tensor:
        parts = [torch.as_tensor(getattr(b, name)) for b in batches]
        if shift is not None:
            parts = [p + int(s) for p, s in zip(parts, shift, strict=False)]
        return torch.cat(parts)

    plain = ("images", "proprio", "now", "decision", "actions", "pad", "weight")
    return EpisodeBatch(
        task=tuple(t for b in batches for t in b.task), row=joined("row", rows),
        query=joined("query", begin), **{name: joined(name) for name in plain},
    )  # fmt: skip
