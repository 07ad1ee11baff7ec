"""Position target of every control step while inference takes time (real-time chunking, RTC).

There is no clock, thread or policy here: time is an argument, so a simulation, a test and a robot
run the same code, and where a robot scales its speed the caller scales the time. Control steps
count from `start`. One decision is pending at a time.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from vla.contracts.config import validate_min
from vla.contracts.types import Prefix

Mode = Literal["synchronous", "skip", "ensemble", "trained", "guided"]
MODES: tuple[Mode, ...] = get_args(Mode)
"""How the inference delay is handled:

synchronous: the arm holds its target until the chunk arrives.
skip: the arm keeps executing the old chunk; the first actions of a late chunk are skipped.
ensemble: as skip, with a weighted mean of all chunks that cover a step (temporal ensembling).
trained: as skip, and the chunk continues the actions that are executed meanwhile: a prefix that the
    policy was trained with (real-time chunking; Black et al. 2025, arXiv 2512.05964).
guided: as trained, for any policy: its denoising is pulled towards the prefix (after arXiv
    2506.07339, without the Jacobian).
"""
DECAY = 0.01
"""Weight exp(-DECAY i) of the i-th chunk, oldest first (Zhao et al. 2023, arXiv 2304.13705)."""


@dataclass(frozen=True, kw_only=True)
class RealtimeConfig:
    """Settings of the scheduler."""

    mode: Mode = "trained"
    """How the inference delay is handled; see `MODES`."""
    n_action_steps: int = 8
    """Control steps from one decision to the next."""
    delay: int = 0
    """Inference delay: control steps that a decision may take."""

    def __post_init__(self) -> None:
        validate_min(self, n_action_steps=1, delay=0)

    def check(self, chunk_size: int, max_prefix_len: int, period: int = 0) -> None:
        """Raise ValueError unless a policy can run with these settings.

        Args:
            chunk_size: Actions of its chunks.
            max_prefix_len: Longest prefix that it was trained with.
            period: Control steps between decisions with which a policy with memory was trained; 0
                for a policy without memory.
        """
        steps, delay = self.n_action_steps, self.delay
        waits = delay if self.mode == "synchronous" else 0
        if period and steps + waits != period:
            raise ValueError(
                f"n_action_steps: got {steps}, a decision every {steps + waits} control steps; "
                f"the memory of this policy was trained with one every {period}: give "
                f"n_action_steps {period - waits}"
            )
        if self.mode == "trained" and delay > max_prefix_len:
            raise ValueError(
                f"delay: a decision takes {delay} control steps, the policy was trained with a "
                f"prefix of at most {max_prefix_len} actions; train with "
                f"--policy.head.max_prefix_len {delay}, use a faster target or another mode"
            )
        if self.mode == "synchronous":
            if steps > chunk_size:
                raise ValueError(f"n_action_steps: got {steps}, a chunk has {chunk_size} actions")
        elif 2 * delay > chunk_size:
            raise ValueError(
                f"delay: a decision takes {delay} of a chunk's {chunk_size} control steps, more "
                "than half; use a faster target, longer chunks or mode synchronous"
            )
        elif not delay <= steps <= chunk_size - delay:
            raise ValueError(
                f"n_action_steps: got {steps}, expected {delay} to {chunk_size - delay}: a "
                f"decision takes {delay} of a chunk's {chunk_size} control steps; use a faster "
                "target or mode synchronous"
            )


class TimedChunk(NamedTuple):
    """A chunk and the control step at which it starts."""

    start: int
    """Control step of the first action."""
    values: np.ndarray
    """f32 [k, u]."""


class PendingDecision(NamedTuple):
    """A decision that has started."""

    number: int
    """Unique within a scheduler."""
    prefix: Prefix | None
    """Prefix of its chunk, one row."""


class Scheduler:
    """Targets of one arm, one episode at a time.

    Call `start`, then at every control step `begins` (if true, `begin`, run the policy, `arrive` or
    `fail`) and `target`.

    Args:
        config: Settings.
        hz: Control steps per second.
        chunk_size: k.
        max_prefix_len: Longest prefix that the policy was trained with.
        period: As in `RealtimeConfig.check`.

    Raises:
        ValueError: the policy cannot run with these settings.
    """

    def __init__(
        self, config: RealtimeConfig, hz: float, chunk_size: int, max_prefix_len: int,
        period: int = 0,
    ) -> None:  # fmt: skip
        config.check(chunk_size, max_prefix_len, period)
        self.config, self.hz, self.chunk_size = config, hz, chunk_size
        self.number = 0
        self.start(0.0, np.zeros(0, np.float32))

    def start(self, now_s: float, measured: np.ndarray) -> None:
        """Start an episode: until the first chunk arrives the arm holds its measured pose f32 [u].

        A pending decision is dropped. `late` counts chunks that took longer than the delay,
        `starved` the control steps for which the arm stood still because of that.

        Raises:
            ValueError: the pose is not finite.
        """
        if not np.isfinite(measured).all():
            raise ValueError(
                f"measured pose: got {measured}, expected finite numbers; hold the arm"
            )
        self.start_s, self.held = now_s, np.array(measured, np.float32)
        self.chunks: deque[TimedChunk] = deque()
        self.pending_since_s: float | None = None
        self.starved = self.late = 0

    def step(self, now_s: float) -> int:
        """Return the number of the control step at a time."""
        return math.floor((now_s - self.start_s) * self.hz + 1e-6)

    def begins(self, now_s: float) -> bool:
        """Whether a decision has to start now."""
        if self.pending_since_s is not None:
            return False
        return (
            not self.chunks
            or self.step(now_s) >= self.chunks[-1].start + self.config.n_action_steps
        )

    def begin(self, now_s: float) -> PendingDecision:
        """Start a decision on the present observation."""
        self.number += 1
        self.pending_since_s = now_s
        if not self.chunks or self.config.mode not in ("trained", "guided"):
            return PendingDecision(self.number, None)
        step, length = self.step(now_s), self.config.delay
        values = np.stack([self._planned(step + i) for i in range(self.chunk_size)])
        guided = self.config.mode == "guided"
        covered = max(self.chunks[-1].start + self.chunk_size - step, length) if guided else length
        mask = prefix_mask(length, covered, self.chunk_size)
        prefix = Prefix(values=values[None], mask=mask[None], guided=guided)
        return PendingDecision(self.number, prefix)

    def fail(self, number: int) -> None:
        """Drop a decision that failed; the next may start at once, and until its chunk arrives the
        arm executes the old one, then stands still.
        """
        if number == self.number:
            self.pending_since_s = None

    def arrive(self, now_s: float, values: np.ndarray, number: int) -> None:
        """Take the chunk f32 [k, u] of a decision.

        Raises:
            ValueError: it is not the pending decision, which stays pending; or its targets are not
                finite or of another shape, and it has failed.
        """
        if self.pending_since_s is None or number != self.number:
            raise ValueError(
                f"chunk: got one of decision {number}, expected "
                + ("none" if self.pending_since_s is None else f"decision {self.number}")
                + "; drop late chunks of an earlier episode"
            )
        begin_s, self.pending_since_s = self.pending_since_s, None
        if values.shape != (self.chunk_size, *self.held.shape) or not np.isfinite(values).all():
            raise ValueError(
                f"chunk: got {values.shape}, expected finite numbers of shape "
                f"{(self.chunk_size, *self.held.shape)}; hold the arm"
            )
        now, begin = self.step(now_s), self.step(begin_s)
        self.late += (now_s - begin_s) * self.hz > self.config.delay + 1e-6
        # While the arm stood still no action was executed: none of the chunk is skipped for it.
        start, starved = now, 0
        if self.chunks and self.config.mode != "synchronous":
            starved = max(0, now - max(begin, self.chunks[-1].start + self.chunk_size))
            start = begin + starved
        self.starved += starved
        self.chunks.append(TimedChunk(start, np.array(values, np.float32)))
        if self.config.mode != "ensemble" or starved:
            self.chunks = deque([self.chunks[-1]])
        while self.chunks[0].start + self.chunk_size <= now and len(self.chunks) > 1:
            self.chunks.popleft()

    def target(self, now_s: float) -> np.ndarray:
        """Return the position target f32 [u] of the control step at a time."""
        step = self.step(now_s)
        waits = self.config.mode == "synchronous" and self.pending_since_s is not None
        if self.chunks and not waits:
            self.held = self._planned(step)
        return self.held

    def ahead(self, now_s: float, count: int) -> np.ndarray:
        """Return the targets f32 [count, u] of the control steps from a time on."""
        waits = self.config.mode == "synchronous" and self.pending_since_s is not None
        if not self.chunks or waits:
            return np.tile(self.held, (count, 1))
        step = self.step(now_s)
        return np.stack([self._planned(step + i) for i in range(count)])

    def _planned(self, step: int) -> np.ndarray:
        """Return the target f32 [u] of a control step; outside all chunks the nearest one."""
        covering = [c for c in self.chunks if 0 <= step - c.start < self.chunk_size]
        if not covering:
            latest = self.chunks[-1]
            return latest.values[0 if step < latest.start else -1]
        share = np.exp(-DECAY * np.arange(len(covering), dtype=np.float32))
        values = np.stack([c.values[step - c.start] for c in covering])
        return (share[:, None] * values).sum(0) / share.sum()


def prefix_mask(length: int, covered: int, chunk_size: int) -> np.ndarray:
    """Return the soft mask f32 [chunk_size] of a prefix and of the planned actions after it.

    Black et al. 2025 (arXiv 2506.07339), eq. 5.

    Args:
        length: Actions that are executed during the delay: 1 in the mask.
        covered: Actions that the old chunk covers: the mask decays to 0 towards them.
        chunk_size: Actions of a chunk.
    """
    i = np.arange(chunk_size)
    left = np.clip((covered - i) / (covered - length + 1), 0, 1)
    soft = left * np.expm1(left) / math.expm1(1)
    return np.where(i < length, 1, np.where(i < covered, soft, 0)).astype(np.float32)


def inference_delay(latencies_s: Sequence[float], hz: float, warm: int = 0) -> int:
    """Return the inference delay in control steps for measured latencies.

    Measure with a prefix of the mode in use, so that its graphs are loaded.

    Args:
        latencies_s: Seconds of decisions, in order.
        hz: Control steps per second.
        warm: First decisions to leave out: warming up takes longer.

    Raises:
        ValueError: no latency is left.
    """
    counted = latencies_s[warm:]
    if not counted:
        raise ValueError(
            f"latencies_s: got {len(latencies_s)}, expected more than the {warm} of warming up"
        )
    return math.ceil(max(counted) * hz - 1e-6)
