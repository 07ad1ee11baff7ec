"""The data that crosses folder boundaries, with its shapes and units; no behaviour and no torch.

Legend: E environments, B batch, F frames, T time, V views, S proprioception, U action channels,
K chunk, L memory slots, N tokens per decision, D token width. SI units, quaternions wxyz, images
uint8 HWC RGB. An array is a numpy array or a torch tensor: the same types serve simulator, policy
and robot.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from jaxtyping import Bool, Float32, Float64, Int64, UInt8

Array = Any
"""A numpy array or a torch tensor."""


@dataclass(frozen=True, kw_only=True)
class Observation:
    """What a policy sees at one decision, for a batch of arms."""

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


@dataclass(frozen=True, kw_only=True)
class ActionChunk:
    """The next K actions of a batch of arms: position targets in physical units."""

    values: Float32[Array, "b k u"]
    """Position targets in the order and units of `RobotSpec.channels`."""
    start_s: Float64[Array, " b"]
    """Episode time at which the first action applies, in seconds."""


@dataclass(frozen=True, kw_only=True)
class Prefix:
    """Actions that a new chunk has to go on from: what the arm will have done when it is there."""

    values: Float32[Array, "b k u"]
    """Position targets from the observation on, in the order and units of `RobotSpec.channels`."""
    weight: Float32[Array, "b k"]
    """1 where an action is settled, 0 where the policy is free; between them only if `guided`."""
    guided: bool = False
    """Pull the denoising towards `values` from outside (any policy), instead of giving them to
    networks that were trained to go on from them."""


@dataclass(frozen=True, kw_only=True)
class PolicyState:
    """Everything a policy carries from one decision to the next; fixed shape, so it exports."""

    tokens: Float32[Array, "b l n d"]
    """Content of the memory slots, oldest first; zero where empty."""
    slot_time: Float32[Array, "b l"]
    """Count-weighted mean time of each slot, in control steps since the episode began."""
    slot_count: Float32[Array, "b l"]
    """How many decisions each slot holds; 0 marks an empty slot."""


@dataclass(frozen=True, kw_only=True)
class DenoiseTrace:
    """One sampled path through the denoising chain: latents[:, 0] is noise, the last the action."""

    latents: Float32[Array, "b s k u"]
    """Normalised action chunks along the chain: S = steps + 1."""
    log_prob: Float32[Array, "b steps"]
    """Log-probability of each transition, summed over the chunk, in nats."""


@dataclass(frozen=True, kw_only=True)
class EnvStep:
    """What a `VecEnv` returns for one step of E environments.

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
    """Moments of B episodes as a critic sees them: F frames, those of one episode in time order.

    Nothing here but the last two fields comes from anywhere else than the cameras and the clock;
    those two serve the controls that every report shows.
    """

    images: UInt8[Array, "f v h w 3"]
    """RGB camera images, in the critic's view order."""
    image_ok: Bool[Array, "f v"]
    """False where a camera delivered no image; its pixels are then zero."""
    time_s: Float64[Array, " f"]
    """Seconds since the episode began; exactly 0 starts an episode and empties what was kept."""
    row: Int64[Array, " f"]
    """Episode of every frame, in [0, B)."""
    end_s: Float64[Array, " f"] | None = None
    """Length of the whole episode in seconds; read by the control "time" alone."""
    truth: Float32[Array, "f 2"] | None = None
    """Progress and success of the simulator; read by the upper bound "oracle" alone."""


@dataclass(frozen=True, kw_only=True)
class Example:
    """One episode that shows how a task is done, as a one-shot reference for a critic."""

    frames: Frames
    """Its frames; a single row."""
    progress: Float32[Array, " f"]
    """How far the task was at each frame, in [0, 1]; t/T where nothing better is known."""
    task: str = ""
    """Its own instruction; if empty, that of what is judged beside it."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a process-reward critic says of F moments."""

    value: Float32[Array, " f"]
    """Progress in [0, 1]; NaN where the critic abstains."""
    delta: Float32[Array, " f"]
    """Signed change over the horizon, in [-1, 1]: the share of the work that was left which was
    done, or, below 0, of the work done which was lost; NaN where the critic abstains."""
    trend: Float32[Array, "f 3"]
    """Probabilities that the horizon brought regress, stagnation, progress."""
    done_prob: Float32[Array, " f"]
    """Probability that the task is complete, in [0, 1]."""
    match: Float32[Array, " f"]
    """Probability that the scene is one in which the instruction can be carried out, in [0, 1]."""
    confidence: Float32[Array, " f"]
    """Probability that `value` is within 0.1 of the truth, in [0, 1]."""


class Share(NamedTuple):
    """Where in a batch its part lies that one of several processes works on."""

    row: int
    """First of its episodes."""
    rows: int
    """Episodes of the whole batch."""
    query: int
    """First of its queries."""
    queries: int
    """Queries of the whole batch."""
    weight: float
    """Weight of the whole batch's loss."""


@dataclass(frozen=True, kw_only=True)
class EpisodeBatch:
    """Decisions of whole episodes for training, padding left out: F frames of B episodes.

    Frames of an episode are in order. M of the frames are queries: they carry a loss.
    """

    images: UInt8[Array, "f v h w 3"]
    """RGB images of every decision."""
    proprio: Float32[Array, "f s"]
    """Measured channel positions of every decision, in the units of `RobotSpec.channels`."""
    now: Float32[Array, " f"]
    """Time of every decision, in control steps since the episode began."""
    row: Int64[Array, " f"]
    """Episode of every frame, in [0, B)."""
    decision: Int64[Array, " f"]
    """Position of every frame among the decisions of its episode, from 0."""
    task: tuple[str, ...]
    """Instruction of each of the B episodes."""
    query: Int64[Array, " m"]
    """Frames that carry a loss."""
    actions: Float32[Array, "m k u"]
    """Position targets that followed each query, in the units of `RobotSpec.channels`."""
    pad: Bool[Array, "m k"]
    """True where the episode had ended."""
    weight: Float32[Array, " m"]
    """Weight of each query's loss."""
    features: dict[str, Array] | None = None
    """What the frozen part of a backbone made of the images, by name, F rows each; the images are
    then of no height and width. None where the backbone is to look itself."""
    share: Share | None = None
    """Where it lies in a larger batch; None where it is whole. An empty part keeps one task."""
