"""Which target an arm gets at every control step, while chunks take time to be decided.

No clock, no thread and no policy in here: the time is an argument, so a simulation, a test and a
robot run the same lines, and where a robot scales its speed the caller scales the time. Control
steps are counted from `start`. One decision is under way at a time.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from vla.contracts.config import check_least
from vla.contracts.types import Prefix

Mode = Literal["synchronous", "skip", "ensemble", "trained", "guided"]
MODES: tuple[Mode, ...] = get_args(Mode)
"""What is done about the time that a decision takes:

synchronous: the arm waits for it where it is.
skip: the arm goes on; a chunk begins where its time has come, whatever was done meanwhile.
ensemble: the same, and every chunk that covers a step counts (temporal ensembling).
trained: the same, and the chunk goes on from what will have been done (real-time chunking with a
    prefix that the policy was trained with; Black et al. 2025, arXiv 2512.05964).
guided: the same, but any policy is pulled towards it while it denoises (after arXiv 2506.07339,
    without the Jacobian).
"""
DECAY = 0.01
"""Weight exp(-DECAY i) of the i-th chunk, oldest first (Zhao et al. 2023, arXiv 2304.13705)."""


@dataclass(frozen=True, kw_only=True)
class RealtimeConfig:
    """How chunks become targets."""

    mode: Mode = "trained"
    """What is done about the time that a decision takes."""
    execute: int = 8
    """Control steps from one decision to the next."""
    delay: int = 0
    """Control steps that a decision may take."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, execute=1, delay=0)

    def check(self, chunk: int, prefix: int, pace: int = 0) -> None:
        """Raise ValueError unless a policy can be driven so.

        Args:
            chunk: Actions of its chunks.
            prefix: Most settled actions that it was trained to go on from.
            pace: Control steps from decision to decision that a policy which remembers was trained
                with; 0 for one that does not.
        """
        waits = self.delay if self.mode == "synchronous" else 0
        if pace and self.execute + waits != pace:
            raise ValueError(
                f"execute: got {self.execute}, a decision every {self.execute + waits} control "
                f"steps; this policy remembers what it saw every {pace}: give execute "
                f"{pace - waits}"
            )
        if self.mode == "trained" and self.delay > prefix:
            raise ValueError(
                f"a decision takes {self.delay} control steps, the policy was trained to go on "
                f"from at most {prefix} settled actions; train with --policy.head.prefix "
                f"{self.delay}, decide faster, or take another mode"
            )
        if self.mode == "synchronous":
            if self.execute > chunk:
                raise ValueError(f"execute: got {self.execute}, a chunk has {chunk} actions")
        elif 2 * self.delay > chunk:
            raise ValueError(
                f"delay: a decision takes {self.delay} of a chunk's {chunk} control steps, more "
                "than half; decide faster, train longer chunks, or take mode synchronous"
            )
        elif not self.delay <= self.execute <= chunk - self.delay:
            raise ValueError(
                f"execute: got {self.execute}; a decision takes {self.delay} of a chunk's {chunk} "
                f"control steps, so the next begins after {self.delay} to {chunk - self.delay}; "
                "give such a number, decide faster, or take mode synchronous"
            )


class Chunk(NamedTuple):
    """Targets with a time."""

    start: int
    """Control step of the first of them."""
    values: np.ndarray
    """f32 [k, u]."""


class Asked(NamedTuple):
    """A decision that has begun."""

    number: int
    """Which; no two of a scheduler have the same."""
    prefix: Prefix | None
    """What the policy has to go on from, one row."""


class Scheduler:
    """One arm, one episode at a time: `start`, then at every control step `begins` (and if so
    `begin`, decide, `arrive` or `fail`) and `target`.

    Args:
        config: How chunks become targets.
        hz: Control steps per second.
        chunk: k.
        prefix: Most settled actions that the policy was trained to go on from.
        pace: As in `RealtimeConfig.check`.

    Raises:
        ValueError: the policy cannot be driven so.
    """

    def __init__(
        self, config: RealtimeConfig, hz: float, chunk: int, prefix: int, pace: int = 0
    ) -> None:
        config.check(chunk, prefix, pace)
        self.config, self.hz, self.chunk = config, hz, chunk
        self.number = 0
        self.start(0.0, np.zeros(0, np.float32))

    def start(self, now_s: float, measured: np.ndarray) -> None:
        """Begin an episode: until the first chunk is there the arm holds its measured pose f32 [u].

        A decision that is still under way is not waited for. `late` counts chunks that took longer
        than they may, `starved` control steps for which the arm stood still because of that.

        Raises:
            ValueError: the pose is not finite.
        """
        if not np.isfinite(measured).all():
            raise ValueError(f"measured pose {measured}: is not finite; hold the arm")
        self.start_s, self.held = now_s, np.array(measured, np.float32)
        self.chunks: deque[Chunk] = deque()
        self.asked_s: float | None = None
        self.starved = self.late = 0

    def step(self, now_s: float) -> int:
        """Return the number of the control step at a time."""
        return math.floor((now_s - self.start_s) * self.hz + 1e-6)

    def begins(self, now_s: float) -> bool:
        """Whether a decision has to begin now."""
        if self.asked_s is not None:
            return False
        return not self.chunks or self.step(now_s) >= self.chunks[-1].start + self.config.execute

    def begin(self, now_s: float) -> Asked:
        """Begin a decision on what is observed now."""
        self.number += 1
        self.asked_s = now_s
        if not self.chunks or self.config.mode not in ("trained", "guided"):
            return Asked(self.number, None)
        step, settled = self.step(now_s), self.config.delay
        values = np.stack([self._planned(step + i) for i in range(self.chunk)])
        guided = self.config.mode == "guided"
        covered = max(self.chunks[-1].start + self.chunk - step, settled) if guided else settled
        weight = weights(settled, covered, self.chunk)
        return Asked(self.number, Prefix(values=values[None], weight=weight[None], guided=guided))

    def fail(self, number: int) -> None:
        """Give up a decision that brought no chunk; the next may begin at once, and until it is
        there the arm goes on with what it has, then stands still.
        """
        if number == self.number:
            self.asked_s = None

    def arrive(self, now_s: float, values: np.ndarray, number: int) -> None:
        """Take the chunk f32 [k, u] of a decision.

        Raises:
            ValueError: it is not the one under way, which goes on; or its targets are not finite or
                of another shape, and it has failed.
        """
        if self.asked_s is None or number != self.number:
            raise ValueError(
                f"the chunk of decision {number} arrived, "
                + ("none" if self.asked_s is None else str(self.number))
                + " is under way; leave out what comes late of an earlier episode"
            )
        asked_s, self.asked_s = self.asked_s, None
        if values.shape != (self.chunk, *self.held.shape) or not np.isfinite(values).all():
            raise ValueError(
                f"a chunk of {values.shape}, expected finite {(self.chunk, *self.held.shape)}; "
                "hold the arm"
            )
        now, asked = self.step(now_s), self.step(asked_s)
        self.late += (now_s - asked_s) * self.hz > self.config.delay + 1e-6
        # Where the arm stood still no time has passed for it: it does not skip into a chunk.
        start, stood = now, 0
        if self.chunks and self.config.mode != "synchronous":
            stood = max(0, now - max(asked, self.chunks[-1].start + self.chunk))
            start = asked + stood
        self.starved += stood
        self.chunks.append(Chunk(start, np.array(values, np.float32)))
        if self.config.mode != "ensemble" or stood:
            self.chunks = deque([self.chunks[-1]])
        while self.chunks[0].start + self.chunk <= now and len(self.chunks) > 1:
            self.chunks.popleft()

    def target(self, now_s: float) -> np.ndarray:
        """Return the position target f32 [u] of the control step at a time."""
        step = self.step(now_s)
        waits = self.config.mode == "synchronous" and self.asked_s is not None
        if self.chunks and not waits:
            self.held = self._planned(step)
        return self.held

    def ahead(self, now_s: float, count: int) -> np.ndarray:
        """Return the targets f32 [count, u] of the control step at a time and of those after it, as
        far as they are known; the last one known stands for the rest.
        """
        if not self.chunks or (self.config.mode == "synchronous" and self.asked_s is not None):
            return np.tile(self.held, (count, 1))
        step = self.step(now_s)
        return np.stack([self._planned(step + i) for i in range(count)])

    def _planned(self, step: int) -> np.ndarray:
        """Return the target f32 [u] of a control step by what is known; the nearest beyond it."""
        covering = [c for c in self.chunks if 0 <= step - c.start < self.chunk]
        if not covering:
            latest = self.chunks[-1]
            return latest.values[0 if step < latest.start else -1]
        share = np.exp(-DECAY * np.arange(len(covering), dtype=np.float32))
        values = np.stack([c.values[step - c.start] for c in covering])
        return (share[:, None] * values).sum(0) / share.sum()


def weights(settled: int, covered: int, chunk: int) -> np.ndarray:
    """Return the weight f32 [chunk] of settled actions and of those that were planned after them.

    Black et al. 2025 (arXiv 2506.07339), eq. 5.

    Args:
        settled: Actions that will have been done: weight 1.
        covered: Actions that were planned: the weight falls to 0 on the way to them.
        chunk: Actions of a chunk.
    """
    i = np.arange(chunk)
    left = np.clip((covered - i) / (covered - settled + 1), 0, 1)
    soft = left * np.expm1(left) / math.expm1(1)
    return np.where(i < settled, 1, np.where(i < covered, soft, 0)).astype(np.float32)


def delay_of(latencies_s: Sequence[float], hz: float, warm: int = 0) -> int:
    """Return the control steps that a decision may take, from how long measured ones took.

    Measure as it will be: with a prefix of the mode, so that what is loaded for it is loaded.

    Args:
        latencies_s: Seconds of decisions, in order.
        hz: Control steps per second.
        warm: How many of them only warmed up: the first ones take longer than any that follows.

    Raises:
        ValueError: nothing was measured.
    """
    counted = latencies_s[warm:]
    if not counted:
        raise ValueError(
            f"{len(latencies_s)} decisions, {warm} of which warmed up; measure some more"
        )
    return math.ceil(max(counted) * hz - 1e-6)
