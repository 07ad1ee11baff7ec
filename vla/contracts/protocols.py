"""The interfaces of policies, environments, critics and algorithms; nothing inherits them."""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float32, Int64

from vla.contracts.specs import EnvSpec, RobotSpec
from vla.contracts.types import (
    ActionChunk,
    Array,
    DenoiseTrace,
    EnvStep,
    Example,
    Frames,
    Observation,
    PolicyState,
    Prefix,
    Progress,
)


@runtime_checkable
class Policy(Protocol):
    """Observations in, action chunks out; memory and noise are arguments, so replay is exact."""

    def initial_state(self, batch: int) -> PolicyState:
        """Return the empty memory of `batch` arms."""
        ...

    def act(
        self, obs: Observation, state: PolicyState, noise: Float32[Array, "b s k u"],
        prefix: Prefix | None = None,
    ) -> tuple[ActionChunk, PolicyState]:  # fmt: skip
        """Decide once. Rows with `obs.time_s == 0` start an episode: their memory is emptied first.

        `noise` is standard normal, S = denoising steps + 1: row 0 starts the chain, row i drives
        transition i when the policy samples stochastically. With `prefix` the chunk goes on from
        actions that are settled; a policy that cannot raises ValueError.
        """
        ...


@runtime_checkable
class ArmPolicy(Policy, Protocol):
    """A policy that knows its arm: all that is needed to drive one."""

    @property
    def robot(self) -> RobotSpec:
        """The arm it was trained for."""
        ...

    @property
    def execute(self) -> int:
        """Actions of a chunk that are executed before the next decision."""
        ...

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of one row of `noise`: (denoising steps + 1, chunk, channels)."""
        ...

    @property
    def prefix(self) -> int:
        """Most actions of a prefix that it was trained to go on from; 0 for none."""
        ...


@runtime_checkable
class TrainablePolicy(Policy, Protocol):
    """A policy whose sampling path and likelihood are open to learning."""

    def sample(
        self, obs: Observation, state: PolicyState, noise: Float32[Array, "b s k u"]
    ) -> tuple[ActionChunk, DenoiseTrace, PolicyState]:
        """Like `act`, stochastic in every transition, and return the path taken."""
        ...

    def log_prob(
        self, obs: Observation, state: PolicyState, trace: DenoiseTrace
    ) -> Float32[Array, "b steps"]:
        """Return the log-probability of each transition of `trace` under the current weights."""
        ...

    def bc_loss(self, batch: Any, generator: Any) -> tuple[Array, Mapping[str, Array]]:
        """Return the cloning loss of a batch of episodes and named diagnostics."""
        ...


@runtime_checkable
class VecEnv(Protocol):
    """E environments stepped together; ended ones are reset within the same step.

    Episode j of environment i has index j * E + i, and everything random in an episode follows
    from (seed, index) alone: the number of workers, and E itself, change nothing else.

    `EnvStep.info` holds `success` (bool), `progress` (f32 in [0, 1], simulator truth, never shown
    to policies or critics), `steps` (i32, control steps executed in this call), `actions`
    (f32 [e, h, u], the actions executed, valid up to `steps`) and `episode` (i64, index of the
    episode the row belonged to before any reset); with some simulators also `fault` (bool, the
    episode was truncated because its world went wrong).
    """

    spec: EnvSpec
    render_s: float
    """Seconds spent on pictures so far, by environments of this process."""

    def reset(self, seed: int) -> Observation:
        """Start episodes 0 to E-1."""
        ...

    def begin(
        self, rows: Int64[Array, " n"], seed: Int64[Array, " n"], index: Int64[Array, " n"]
    ) -> Observation:
        """Start other episodes in some rows at once, each of a seed of its own."""
        ...

    def step(self, action: Float32[Array, "e u"]) -> EnvStep:
        """Apply one action (position targets in physical units) for one control step."""
        ...

    def step_chunk(
        self, actions: Float32[Array, "e h u"], helped: Bool[Array, " e"] | None = None,
        idle: Bool[Array, " e"] | None = None,
    ) -> EnvStep:  # fmt: skip
        """Apply up to h actions, one per control step, and observe only at the end.

        An environment whose episode ends on the way is reset and waits for the others; `reward` is
        the sum, `info["steps"]` what was executed. In `helped` rows somebody who knows how to do
        the task acts instead, from whatever state the world is in: in simulation its expert.
        `idle` rows stand still: nothing happens in them.
        """
        ...

    def close(self) -> None:
        """Release processes and graphics; calling it twice does no harm."""
        ...


@runtime_checkable
class RewardModel(Protocol):
    """A critic as labeller, reward and monitor use it: moments and instructions in, progress out.

    It is causal: what it says of a moment depends on that moment and earlier ones. It never sees
    simulator state. Whether a stream is scored moment by moment or all at once makes no difference.
    """

    def score(
        self, frames: Frames, task: tuple[str, ...], example: Example | None = None
    ) -> Progress:
        """Judge every moment of B whole episodes against the instruction of each."""
        ...

    def start(self, batch: int, example: Example | None = None, task: str = "") -> Any:
        """Return the empty state of `batch` streams, told of a reference episode of `task`."""
        ...

    def step(self, state: Any, frames: Frames, task: tuple[str, ...]) -> tuple[Progress, Any]:
        """Judge the next moment of each of B streams: F = B, `row` 0 to B - 1."""
        ...


@runtime_checkable
class Algorithm(Protocol):
    """A learning rule: one update of a policy on one batch of data."""

    def update(self, policy: Any, data: Any) -> dict[str, float]:
        """Change the weights of `policy` and return named metrics."""
        ...
