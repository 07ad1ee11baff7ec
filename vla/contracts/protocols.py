"""Interfaces of policies, memories, heads, environments and reward models; nothing inherits them.

The interface of algorithms is `training.core.loop.Learner`.
"""

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float32, Int64

from vla.contracts.specs import EnvSpec, RobotSpec
from vla.contracts.types import (
    ActionChunk,
    Array,
    DenoisingChain,
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
    """Maps observations to action chunks; memory and noise are arguments, so replay is exact."""

    def initial_state(self, batch: int) -> PolicyState:
        """Return the state of `batch` arms at the start of an episode: every tensor is zero."""

    def act(
        self, obs: Observation, state: PolicyState, noise: Float32[Array, "b s k u"],
        prefix: Prefix | None = None,
    ) -> tuple[ActionChunk, PolicyState]:  # fmt: skip
        """Return the next chunk and state. Rows with `obs.time_s == 0` start an episode: their
        state is set to zero first.

        Args:
            obs: Present observation.
            state: As `initial_state` or the last `act` of the episode returned it.
            noise: Standard normal, S = denoising steps + 1: row 0 starts the chain, row i drives
                transition i where the policy samples stochastically.
            prefix: Fixed first actions of the chunk.

        Raises:
            ValueError: the policy does not support the prefix.
        """


@runtime_checkable
class ArmPolicy(Policy, Protocol):
    """A policy with its arm: everything needed to drive one."""

    @property
    def robot(self) -> RobotSpec:
        """The arm it was trained for."""

    @property
    def n_action_steps(self) -> int:
        """Actions of a chunk that are executed before the next decision."""

    @property
    def remembers(self) -> bool:
        """Whether a decision depends on earlier ones; decisions are then `n_action_steps` control
        steps apart.
        """

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of one row of `noise`: (denoising steps + 1, chunk, channels)."""

    @property
    def max_prefix_len(self) -> int:
        """Longest prefix that it was trained with, in actions; 0 for none."""


@runtime_checkable
class TrainablePolicy(Policy, Protocol):
    """A policy whose denoising chain and likelihood are available for training."""

    def sample(
        self, obs: Observation, state: PolicyState, noise: Float32[Array, "b s k u"]
    ) -> tuple[ActionChunk, DenoisingChain, PolicyState]:
        """Act with every transition sampled; also return the chain."""

    def log_prob(
        self, obs: Observation, state: PolicyState, chain: DenoisingChain
    ) -> Float32[Array, "b steps"]:
        """Return the log-probability of each transition of `chain` under the current weights."""

    def bc_loss(self, batch: Any, generator: Any) -> tuple[Array, Mapping[str, Array]]:
        """Return the behaviour-cloning loss of an `EpisodeBatch` and named diagnostics."""


@runtime_checkable
class Memory(Protocol):
    """A module of `vla/memory`, which carries information from decision to decision.

    Its state is a fixed set of float32 tensors by name, rows first. A name becomes a port of the
    exported graphs and an array of the policy server, so it must differ from their names
    (`tests/deploy/test_memories.py` checks). The state of an episode starts at zero: the policy
    zeroes the rows with `obs.time_s == 0`. All methods are functions of their arguments, change no
    tensor in place, and treat rows independently.

    `vla.nn.memory.StateMemory` implements `initial`, and `read_episodes` by stepping.
    """

    remembers: bool
    """Whether `read` depends on the state."""

    @property
    def vector_size(self) -> int:
        """Width m of the vector that `read` returns."""

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of one row of each tensor by name; at least one axis."""

    def initial(self, batch: int, device: Any) -> dict[str, Array]:
        """Return the state of `batch` rows at the start of an episode: zeros."""

    def read(
        self, state: dict[str, Array], x: Float32[Array, "b n d"], now: Float32[Array, " b"]
    ) -> Any:
        """Return the `vla.nn.context.Retrieved` for the present tokens, before they are written.

        Args:
            state: As `write` returned it.
            x: Tokens of the present decision.
            now: Control steps since the episode began.
        """

    def write(
        self, state: dict[str, Array], x: Float32[Array, "b n d"], now: Float32[Array, " b"],
        mask: Float32[Array, " b"],
    ) -> dict[str, Array]:  # fmt: skip
        """Return the state after a decision, in float32 also under autocast; rows with mask 0 keep
        their state.
        """

    def read_episodes(
        self, x: Float32[Array, "b t n d"], now: Float32[Array, "b t"],
        mask: Float32[Array, "b t"], row: Int64[Array, " m"], decision: Int64[Array, " m"],
    ) -> Any:  # fmt: skip
        """Return `read` at m decisions of whole episodes, for training: equal to reading after
        step-by-step writes of all earlier decisions, with gradient through every write.

        Args:
            x: Tokens of every decision.
            now: Control steps since the episode began.
            mask: 1 where a decision exists.
            row: Episode of each of the m decisions.
            decision: Its index in the episode.
        """


@runtime_checkable
class Head(Protocol):
    """A module of `vla/heads`, which samples a chunk along a chain of transitions.

    Chunks are f32 [b, k, u] in normalised units; `context` is a `vla.nn.context.Context`, `prefix`
    a `Prefix` of tensors in normalised units. `vla.nn.denoising_head.DenoisingHead` implements all
    of it except five methods, and adds what distillation and DPPO need.
    """

    config: Any
    """With `num_inference_steps` (transitions), `ft_denoising_steps` (how many of the last ones use
    `late`) and `max_prefix_len`."""
    chunk: int
    """k."""
    actions: int
    """u."""
    path: str
    """How signal and noise mix: a name that `deploy.runtime.chain` implements without torch."""
    alphas: Float32[Array, " n"]
    """Signal power of the noise schedule, by training timestep."""
    denoiser: Any
    """Network of the first steps: (latent, timestep, context, prefix mask) to an output."""
    late: Any
    """Network of the last `config.ft_denoising_steps` steps; None if there are none."""

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of the noise of one row: (num_inference_steps + 1, k, u)."""

    def clean(
        self, output: Float32[Array, "b k u"], latent: Float32[Array, "b k u"],
        t: Int64[Array, " b"],
    ) -> Float32[Array, "b k u"]:  # fmt: skip
        """Return the clean chunk that a network's output at timestep t stands for."""

    def step(
        self, i: int, latent: Float32[Array, "b k u"], context: Any, stochastic: bool,
        prefix: Prefix | None = None,
    ) -> tuple[Float32[Array, "b k u"], float]:  # fmt: skip
        """Return mean and standard deviation of transition i, for sampling and likelihood."""

    def sample(
        self,
        context: Any,
        noise: Float32[Array, "b s k u"],
        stochastic: bool,
        prefix: Prefix | None = None,
    ) -> tuple[Float32[Array, "b s k u"], Float32[Array, "b steps"]]:
        """Return the latents along the chain and the log-probability of each transition."""

    def log_prob(
        self, context: Any, latents: Float32[Array, "b s k u"]
    ) -> Float32[Array, "b steps"]:
        """Return the log-probability of each transition of a stochastic chain."""

    def draw(self, rows: int, generator: Any) -> Any:
        """Return the random numbers of the loss of some rows; `rows(first, count)` slices them."""

    def loss(
        self, clean: Float32[Array, "b k u"], pad: Bool[Array, "b k"], context: Any, random: Any
    ) -> Float32[Array, " b"]:
        """Return the loss of each row; `random` is a generator or a result of `draw`."""


@runtime_checkable
class VecEnv(Protocol):
    """E environments stepped together; ended ones are reset within the same step.

    Episode j of environment i has index j * E + i, and everything random in an episode follows
    from (seed, index) alone: the number of workers, and E itself, change nothing else.

    `EnvStep.info` holds `success` (bool), `progress` (f32 in [0, 1], simulator truth, never shown
    to policies or reward models), `steps` (i32, control steps executed in this call), `actions`
    (f32 [e, h, u], the actions executed, valid up to `steps`) and `episode` (i64, index of the
    episode the row belonged to before any reset); with some simulators also `fault` (bool, the
    episode was truncated because its simulation failed). Our tasks add `goal` and `achieved` (i32,
    in rows whose episode ended: which of the task's goals was asked for and which was reached, -1
    for none).
    """

    spec: EnvSpec
    render_time_s: float
    """Seconds spent on rendering so far, by the environments of this process."""

    def reset(self, seed: int) -> Observation:
        """Start episodes 0 to E-1."""

    def begin(
        self, rows: Int64[Array, " n"], seed: Int64[Array, " n"], index: Int64[Array, " n"]
    ) -> Observation:
        """Start other episodes in some rows at once; what they did before is dropped.

        Args:
            rows: Indices of environments, each once.
            seed: Seed of each episode, 0 or more.
            index: Number of each episode among those of its seed, 0 or more.

        Returns:
            The observation of all rows.

        Raises:
            ValueError: a number is out of range.
        """

    def step(self, action: Float32[Array, "e u"]) -> EnvStep:
        """Apply one action (position targets in physical units) for one control step."""

    def step_chunk(
        self, actions: Float32[Array, "e h u"], use_expert: Bool[Array, " e"] | None = None,
        frozen: Bool[Array, " e"] | None = None,
    ) -> EnvStep:  # fmt: skip
        """Apply up to h actions, one per control step, and observe only at the end.

        An environment whose episode ends on the way is reset and waits for the others.

        Args:
            actions: Position targets in physical units; h from 1 to 256.
            use_expert: Rows in which the task's expert acts instead, from the present state.
            frozen: Rows in which nothing happens, whatever their actions.

        Returns:
            The step: `reward` is the sum, `info["steps"]` the number of executed actions,
            `info["actions"]` these actions, f32 [e, h, u].

        Raises:
            ValueError: a shape is wrong or a value is not finite.
        """

    def close(self) -> None:
        """Release processes and graphics; may be called twice."""


@runtime_checkable
class HasPrivilegedState(Protocol):
    """Environments that know more of their state than a robot's sensors do (asymmetric
    actor-critic, Pinto et al. 2017).

    For value functions, state estimators and auxiliary labels in training; no policy reads it.
    Nothing is computed unless it is asked for. `sim.vec_env.with_privileged_state` checks that
    there is one: of a `VecEnv` that runs suites, some tasks have no numbers.
    """

    @property
    def privileged_state_names(self) -> tuple[str, ...]:
        """P names, one per number; those that begin with "object" are of what images show."""

    def privileged_state(self) -> Float32[Array, "e p"]:
        """Return the present state of every environment, after the reset where an episode ended.

        Rows that have not begun mean nothing.

        Raises:
            ValueError: no row has begun.
        """


@runtime_checkable
class TellsReferents(Protocol):
    """Environments that say where in the images the things are that an instruction names, as
    `vla.contracts.referents` does of a data set: labels for training, which no policy reads.
    """

    @property
    def has_referents(self) -> bool:
        """Whether the task names places at all."""

    def referents(self) -> Float32[Array, "e v r 2"]:
        """Return these places in every environment at present, for all cameras of the arm.

        Rows that have not begun mean nothing.

        Raises:
            ValueError: no row has begun.
        """


@runtime_checkable
class RewardModel(Protocol):
    """Maps frames and instructions to progress, for labelling, rewards and monitoring.

    It is causal: a prediction depends on its frame and earlier ones. It never sees simulator state.
    Scoring a stream frame by frame or all at once gives the same result.
    """

    def score(
        self, frames: Frames, task: tuple[str, ...], example: Example | None = None
    ) -> Progress:
        """Predict the progress of every frame of B whole episodes under the instruction of each."""

    def start(self, batch: int, example: Example | None = None, task: str = "") -> Any:
        """Return the initial state of `batch` streams, given a reference episode of `task`."""

    def step(self, state: Any, frames: Frames, task: tuple[str, ...]) -> tuple[Progress, Any]:
        """Judge the next moment of each of B streams: F = B, `episode_index` 0 to B - 1."""
