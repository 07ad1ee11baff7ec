"""Runs one policy on one arm: when to decide, with which memory and noise, and the targets.

The cadence is that of training: one decision, and with it one write of the memory, every
`n_action_steps` control steps since the episode's first observation, which resets the memory. The
policy's time counts whole control steps, so a memory is written as in simulation however messages
are delayed. The caller's thread runs the policy. This module does not import ROS and reads no
clock.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from robot_bridge.sensing.sync import SyncedObservation
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import ActionChunk, Observation, PolicyState, Prefix
from vla.runtime.noise import episode_noise
from vla.runtime.rtc_scheduler import RealtimeConfig, Scheduler
from vla.utils.arrays import to_numpy


class DecisionRequest(NamedTuple):
    """Inputs of one inference."""

    number: int
    """The scheduler's number of it."""
    episode: int
    step: int
    """Control step of the episode at which it began."""
    obs: Observation
    """One row."""
    state: PolicyState
    """Policy state before it."""
    noise: np.ndarray
    """f32 [1, s, k, u]."""
    prefix: Prefix | None
    """Actions that the chunk continues (RTC)."""
    underway_s: float
    """Transport time in s of the oldest image."""
    begin_s: float
    """Time of its beginning."""
    made_s: float = 0.0
    """Time in s to make the observation."""


@dataclass(frozen=True, kw_only=True)
class Decision:
    """A completed decision."""

    request: DecisionRequest
    state: PolicyState
    """Policy state after it, one row."""
    latency_s: float
    """Time from the request to the chunk."""
    stamp: int = 0
    """Stamp of its first message to the safety node, in nanoseconds."""


class PolicyRunner:
    """Decides when a policy runs, and gives the present targets.

    Args:
        policy: Policy in evaluation mode; called by one thread at a time.
        realtime: How chunks become targets.
        seed: Seed of the noise.

    Raises:
        ValueError: the policy or its configuration cannot drive an arm.
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
        cadence = policy.n_action_steps if policy.remembers else 0
        self.scheduler = Scheduler(realtime, self.hz, chunk, policy.max_prefix_len, cadence)
        self.state, self.instruction = policy.initial_state(1), ""
        self.episode, self.decision, self.active = -1, 0, False

    def start(self, now_s: float, measured: np.ndarray, instruction: str, episode: int) -> None:
        """Start an episode with an empty memory; the arm holds its measured pose f64 [u].

        The index of the episode is for the noise.

        Raises:
            ValueError: the pose is not finite.
        """
        self.scheduler.start(now_s, np.asarray(measured, np.float32))
        self.state, self.instruction = self.policy.initial_state(1), instruction
        self.episode, self.decision, self.active = episode, 0, True

    def stop(self) -> None:
        """End the episode; its pending decision will be dropped."""
        self.active = False

    def is_due(self, now_s: float) -> bool:
        """Return whether a decision has to begin now."""
        return self.active and self.scheduler.begins(now_s)

    def request(self, now_s: float, observation: SyncedObservation) -> DecisionRequest:
        """Begin a decision on an observation."""
        step = self.scheduler.step(now_s) if self.decision else 0
        if not self.decision:  # the wait for the first image is no part of the episode
            self.scheduler.start_s = now_s
        asked = self.scheduler.begin(now_s)
        noise = episode_noise(
            self.seed, np.array([self.episode]), np.array([self.decision]), self.policy.noise_shape
        )
        obs = observation.row(self.instruction, step / self.hz)
        self.decision += 1
        return DecisionRequest(
            asked.number, self.episode, step, obs, self.state, noise, asked.prefix,
            observation.underway_s, now_s,
        )  # fmt: skip

    def decide(self, request: DecisionRequest) -> tuple[ActionChunk, PolicyState]:
        """Run the policy; called in another thread.

        Raises:
            ValueError: the policy refuses its inputs.
        """
        return self.policy.act(request.obs, request.state, request.noise, request.prefix)

    def complete(
        self, now_s: float, request: DecisionRequest, chunk: ActionChunk, state: PolicyState,
        latency_s: float,
    ) -> Decision | None:  # fmt: skip
        """Take a decision; return None if its episode is over.

        Raises:
            ValueError: its targets are not finite.
        """
        stale = request.episode != self.episode or request.number != self.scheduler.number
        if stale or not self.active:
            return None
        self.scheduler.arrive(now_s, to_numpy(chunk.values)[0], request.number)
        self.state = state
        return Decision(request=request, state=state, latency_s=latency_s)

    def fail(self, request: DecisionRequest) -> None:
        """Drop a decision; its observation is not remembered, and the next may begin at once."""
        self.scheduler.fail(request.number)

    def ahead(self, now_s: float, count: int) -> tuple[float, np.ndarray]:
        """Return the time of the present control step and targets f32 [count, u] from it on."""
        begin_s = self.scheduler.start_s + self.scheduler.step(now_s) / self.hz
        return begin_s, self.scheduler.ahead(now_s, count)
