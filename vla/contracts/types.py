"""Data types shared by all packages, with shapes and units; no torch.

Legend: E environments, B batch, F frames, T time, V views, S proprioception, U action channels,
K chunk, N tokens per decision, D token width. SI units, quaternions wxyz, images
uint8 HWC RGB. An array is a numpy array or a torch tensor: the same types serve simulator, policy
and robot.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float32, Float64, Int64, UInt8

Array = Any
"""A numpy array or a torch tensor."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """Input of a policy at one decision, for a batch of arms."""

    images: UInt8[Array, "b v h w 3"]
    """RGB camera images; view order is that of `RobotSpec.cameras`."""
    image_ok: Bool[Array, "b v"]
    """False where a camera delivered no image; its pixels are then zero."""
    proprio: Float32[Array, "b s"]
    """Measured channel positions in the order and units of `RobotSpec.channels`."""
    task: tuple[str, ...]
    """Instruction of each row."""
    time_s: Float64[Array, " b"]
    """Seconds since the episode began; exactly 0 at the first observation, which resets memory."""

    def rows(self, index: np.ndarray) -> "Observation":
        """Return some rows, chosen by indices i64 [n]."""
        names = ("images", "image_ok", "proprio", "time_s")
        parts = {name: getattr(self, name)[index] for name in names}
        return replace(self, **parts, task=tuple(self.task[row] for row in index))


@dataclass(frozen=True, kw_only=True)
class ActionChunk:
    """The next K actions of a batch of arms: position targets in physical units."""

    values: Float32[Array, "b k u"]
    """Position targets in the order and units of `RobotSpec.channels`."""
    start_s: Float64[Array, " b"]
    """Episode time at which the first action applies, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """First actions of a new chunk that are fixed, because the arm executes them before the chunk
    arrives (real-time chunking). Inside a head, `values` are torch tensors in normalised units.
    """

    values: Float32[Array, "b k u"]
    """Position targets from the observation on, in the order and units of `RobotSpec.channels`."""
    mask: Float32[Array, "b k"]
    """1 where an action is fixed, 0 where the policy is free; between them only if `guided`."""
    guided: bool = False
    """Pull the denoising of any policy towards `values`, instead of passing `values` and `mask` to
    networks trained with a prefix."""


@dataclass(frozen=True, kw_only=True)
class PolicyState:
    """State of a policy between decisions, of fixed shapes so that it exports.

    The policy's memory names the tensors (`Memory.state_shapes`). At the start of an episode all of
    them are zero.
    """

    tensors: dict[str, Float32[Array, "b ..."]]
    """Tensors by name, rows first; empty for a policy without memory."""

    def __getitem__(self, name: str) -> Array:
        """Return a tensor by name.

        Raises:
            KeyError: the state belongs to a policy with another memory.
        """
        if name not in self.tensors:
            names = ", ".join(self.tensors) or "no tensor"
            raise KeyError(
                f"state: got {names}, expected a tensor {name!r}; pass the result of this policy's "
                "`initial_state` or `act`"
            )
        return self.tensors[name]

    def map(self, function: Callable[[Array], Array]) -> "PolicyState":
        """Return the state with a function applied to every tensor."""
        return PolicyState(tensors={n: function(value) for n, value in self.tensors.items()})

    def rows(self, index: Any) -> "PolicyState":
        """Return some rows, chosen by a slice, index or mask of the tensors."""
        return self.map(lambda value: value[index])

    @staticmethod
    def concatenate(
        states: "Sequence[PolicyState]", join: Callable[[list[Array]], Array] = np.concatenate
    ) -> "PolicyState":
        """Return the rows of several states in one; `join` is `torch.cat` for torch tensors."""
        return PolicyState(
            tensors={n: join([state[n] for state in states]) for n in states[0].tensors}
        )


@dataclass(frozen=True, kw_only=True)
class DenoisingChain:
    """One sampled denoising chain: latents[:, 0] is noise, the last one the action chunk."""

    latents: Float32[Array, "b s k u"]
    """Normalised action chunks along the chain: S = steps + 1."""
    log_prob: Float32[Array, "b steps"]
    """Log-probability of each transition, summed over the chunk, in nats."""
    features: Float32[Array, "b d"] | None = None
    """`VLAPolicy.features` of each decision, where the sampler keeps them."""


@dataclass(frozen=True, kw_only=True)
class EnvStep:
    """Result of one step of the E environments of a `VecEnv`.

    Ended environments are reset within the same step: `obs` is then the first observation of the
    next episode, `final_obs` the last one of the episode that ended.
    """

    obs: Observation
    reward: Float32[Array, " e"]
    """1 in the step that reaches success, else 0 (the sparse reward)."""
    terminated: Bool[Array, " e"]
    """The episode ended by the task's own rules: success or an irrevocable failure."""
    truncated: Bool[Array, " e"]
    """The episode ended by the time limit alone: bootstrap from `final_obs`."""
    final_obs: Observation
    """Observation before any reset; equals `obs` in rows that did not end."""
    info: dict[str, Array]
    """Per-environment arrays of E rows: see `VecEnv`."""


@dataclass(frozen=True, kw_only=True)
class Frames:
    """Input of a reward model: F frames of B episodes, those of one episode in time order.

    All fields come from cameras and clock, except the last two, which serve the controls that every
    report shows.
    """

    images: UInt8[Array, "f v h w 3"]
    """RGB camera images, in the reward model's view order."""
    image_ok: Bool[Array, "f v"]
    """False where a camera delivered no image; its pixels are then zero."""
    time_s: Float64[Array, " f"]
    """Seconds since the episode began; exactly 0 starts an episode and resets the state."""
    episode_index: Int64[Array, " f"]
    """Episode of every frame, in [0, B)."""
    end_s: Float64[Array, " f"] | None = None
    """Length of the whole episode in seconds; only the control "time" reads it."""
    truth: Float32[Array, "f 2"] | None = None
    """Progress and success of the simulator; only the upper bound "oracle" reads it."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One episode that shows how a task is done, as a one-shot reference for a reward model."""

    frames: Frames
    """Its frames; a single row."""
    progress: Float32[Array, " f"]
    """Progress at each frame, in [0, 1]; t/T if there is no better label."""
    task: str = ""
    """Its instruction; if empty, that of the scored episode."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """Predictions of a reward model for F frames."""

    value: Float32[Array, " f"]
    """Progress in [0, 1]; NaN where the reward model abstains."""
    delta: Float32[Array, " f"]
    """Signed change over the horizon, in [-1, 1]: done share of the remaining work, or, below 0,
    lost share of the work done; NaN where the reward model abstains."""
    trend: Float32[Array, "f 3"]
    """Probabilities that the horizon brought regress, stagnation, progress."""
    done_prob: Float32[Array, " f"]
    """Probability that the task is complete, in [0, 1]."""
    match: Float32[Array, " f"]
    """Probability that the instruction can be carried out in the scene, in [0, 1]."""
    confidence: Float32[Array, " f"]
    """Probability that `value` is within 0.1 of the truth, in [0, 1]."""


class BatchShard(NamedTuple):
    """Position of one process's part within the whole batch."""

    first_episode: int
    """Index of its first episode."""
    num_episodes: int
    """Episodes of the whole batch."""
    first_loss: int
    """Index of its first frame among those that carry a loss."""
    num_losses: int
    """Frames of the whole batch that carry a loss."""
    total_weight: float
    """Sum of the loss weights of the whole batch."""


@dataclass(frozen=True, kw_only=True)
class EpisodeBatch:
    """Decisions of whole episodes for training without padding: F frames of B episodes.

    The frames of an episode are in time order. M of the frames carry a loss.
    """

    images: UInt8[Array, "f v h w 3"]
    """RGB images of every decision."""
    proprio: Float32[Array, "f s"]
    """Measured channel positions of every decision, in the units of `RobotSpec.channels`."""
    step_index: Float32[Array, " f"]
    """Time of every decision, in control steps since the episode began."""
    episode_index: Int64[Array, " f"]
    """Episode of every frame, in [0, B)."""
    decision: Int64[Array, " f"]
    """Position of every frame among the decisions of its episode, from 0."""
    task: tuple[str, ...]
    """Instruction of each of the B episodes, at its first frame."""
    loss_index: Int64[Array, " m"]
    """Indices of the frames that carry a loss, ascending."""
    actions: Float32[Array, "m k u"]
    """Position targets from each of those frames on, in the units of `RobotSpec.channels`."""
    action_is_pad: Bool[Array, "m k"]
    """True for actions after the end of the episode."""
    weight: Float32[Array, " m"]
    """Weight of each frame's loss."""
    referents: Float32[Array, "m v r 2"] | None = None
    """Where in the images of those frames the things are that the instruction names
    (`vla.contracts.referents`); NaN where nobody says it. None if no data set does."""
    grounding_weight: Float32[Array, " m"] | None = None
    """Weight of each frame's loss on where the policy looks; None if it is `weight`."""
    features: dict[str, Array] | None = None
    """Cached outputs of the frozen part of a backbone by name, F rows each; `images` then has
    height and width 0. None if the backbone encodes the images."""
    frame_task: tuple[str, ...] | None = None
    """Instruction of each of the F frames, if it changes within an episode; else None."""
    shard: BatchShard | None = None
    """Position within a larger batch; None if it is the whole batch. An empty part keeps one
    task."""
