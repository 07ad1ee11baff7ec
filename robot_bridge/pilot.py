"""Flies one arm with one policy: when to decide, on what memory and noise, and what is to be done.

Cadence is that of training: a decision, and with it a write of the memory, every `execute` control
steps counted from the episode's first observation, which alone resets the memory. Time is given in
whole control steps, so that a policy remembers the same moments as in simulation however messages
are delayed. The policy is asked in a thread of the caller's; no ROS and no clock in here.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from robot_bridge.sync import Seen
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import ActionChunk, Observation, PolicyState, Prefix
from vla.noise import episode_noise
from vla.realtime import RealtimeConfig, Scheduler


class Job(NamedTuple):
    """A decision that has begun: what the policy is to be asked."""

    number: int
    """Of the scheduler's."""
    episode: int
    """Of the pilot's."""
    step: int
    """Control step of the episode at which it began."""
    obs: Observation
    """One row."""
    state: PolicyState
    """Memory before."""
    noise: np.ndarray
    """f32 [1, s, k, u]."""
    prefix: Prefix | None
    """What the chunk goes on from."""
    underway_s: float
    """How long the oldest picture was under way."""
    begun_s: float
    """When it began."""
    made_s: float = 0.0
    """How long the observation took to make."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What became of a job."""

    job: Job
    """What was asked."""
    counts: np.ndarray
    """Slot counts f32 [l] after it: which entries the memory merged."""
    latency_s: float
    """From asking to the chunk."""
    stamp: int = 0
    """Of the message that brought it to the gate, in nanoseconds."""


class Pilot:
    """See the module's sentence.

    Args:
        policy: In evaluation mode; asked by one thread at a time.
        realtime: How chunks become targets.
        seed: Of the noise.

    Raises:
        ValueError: the policy cannot be driven so.
    """

    def __init__(self, policy: ArmPolicy, realtime: RealtimeConfig, seed: int) -> None:
        if any(channel.unit == "1" for channel in policy.robot.channels):
            raise ValueError(
                f"robot: the policy drives {policy.robot.name}, whose commands mean something to "
                "its simulator alone; expected an arm of radians and metres"
            )
        self.policy, self.seed = policy, seed
        self.hz = policy.robot.control_hz
        _, chunk, _ = policy.noise_shape
        empty = policy.initial_state(1)
        remembers = np.asarray(empty.slot_time).size > 0
        pace = policy.execute if remembers else 0
        self.scheduler = Scheduler(realtime, self.hz, chunk, policy.prefix, pace)
        self.state, self.task, self.episode, self.decision = empty, "", -1, 0
        self.flying = False

    def start(self, now_s: float, measured: np.ndarray, task: str, episode: int) -> None:
        """Begin an episode: the memory is empty, the arm holds its measured pose f64 [u].

        Args:
            now_s: Now.
            measured: Where the arm is.
            task: What is to be done.
            episode: Its number, for the noise.

        Raises:
            ValueError: the pose is not finite.
        """
        self.scheduler.start(now_s, np.asarray(measured, np.float32))
        self.state, self.task = self.policy.initial_state(1), task
        self.episode, self.decision, self.flying = episode, 0, True

    def stop(self) -> None:
        """End the episode; what is under way of it will be dropped."""
        self.flying = False

    def due(self, now_s: float) -> bool:
        """Whether a decision has to begin now."""
        return self.flying and self.scheduler.begins(now_s)

    def ask(self, now_s: float, seen: Seen) -> Job:
        """Begin a decision on what is seen."""
        step = self.scheduler.step(now_s) if self.decision else 0
        if not self.decision:  # waiting for the first picture took no time of the episode's
            self.scheduler.start_s = now_s
        asked = self.scheduler.begin(now_s)
        noise = episode_noise(
            self.seed, np.array([self.episode]), np.array([self.decision]), self.policy.noise_shape
        )
        obs = Observation(
            images=seen.images[None], image_ok=np.ones((1, len(seen.images)), np.bool_),
            proprio=seen.proprio[None], task=(self.task,), time_s=np.array([step / self.hz]),
        )  # fmt: skip
        self.decision += 1
        return Job(
            asked.number, self.episode, step, obs, self.state, noise, asked.prefix, seen.underway_s,
            now_s,
        )  # fmt: skip

    def decide(self, job: Job) -> tuple[ActionChunk, PolicyState]:
        """Ask the policy; in a thread of its own.

        Raises:
            ValueError: it cannot decide.
        """
        return self.policy.act(job.obs, job.state, job.noise, job.prefix)

    def arrive(
        self, now_s: float, job: Job, chunk: ActionChunk, state: PolicyState, latency_s: float
    ) -> Decision | None:
        """Take a decision; None if it is of an episode that is over.

        Raises:
            ValueError: its targets are not finite.
        """
        if not self.flying or job.episode != self.episode or job.number != self.scheduler.number:
            return None
        self.scheduler.arrive(now_s, np.asarray(chunk.values)[0], job.number)
        self.state = state
        return Decision(job=job, counts=np.asarray(state.slot_count)[0], latency_s=latency_s)

    def fail(self, job: Job) -> None:
        """Give a decision up; its observation is not remembered, and the next may begin at once."""
        self.scheduler.fail(job.number)

    def ahead(self, now_s: float, count: int) -> tuple[float, np.ndarray]:
        """Return the time of the current control step and targets f32 [count, u] from it on."""
        begin_s = self.scheduler.start_s + self.scheduler.step(now_s) / self.hz
        return begin_s, self.scheduler.ahead(now_s, count)
