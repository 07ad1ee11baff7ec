"""Q(state, chunk): an ensemble of value functions that see more than the policy does.

After asymmetric actor-critic (Pinto et al. 2017): in training the value function reads the state
of the simulator, or an estimate of it. The policy never does.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor, nn

from training.rl.value.ensembles import Ensemble
from training.rl.value.state_estimator import FILE, Standardizer, StateEstimator
from vla import checkpoint
from vla.contracts.config import validate_min
from vla.contracts.specs import RobotSpec

StateSource = Literal["estimated", "simulator", "keyframes", "features"]
ACTION_SCALE = 2.0
"""Normalised actions are small beside a standardised state."""


@dataclass(frozen=True, kw_only=True)
class ValueConfig:
    """Settings of the value function."""

    state: StateSource = "estimated"
    """What it reads: the simulator's state, with all but the arm's own joints, commands and tool
    pose estimated from the policy's features; the state itself; where the arm is, will be at its
    next keyframe and at the end of a success, estimated from the features, without a simulator; or
    the features."""
    estimator: str = ""
    """Folder of a run of asymmetric_ac whose estimate of the state is used and never fitted again:
    an arm needs no simulator then. Its policy must have the same frozen vision."""
    estimator_steps: int = 2000
    """Updates of the estimate, after the first iteration."""
    estimator_refit_steps: int = 100
    """Its updates after every later iteration, on all rollouts so far; 0 where the state is known
    in those of the first iteration alone."""
    num_critics: int = 4
    """Q networks in the ensemble."""
    hidden_dim: int = 256
    """Width of their three hidden layers."""
    lr: float = 5e-4
    """Their learning rate."""
    batch_size: int = 256
    """Decisions per update of theirs."""
    tau: float = 0.01
    """Polyak coefficient of their target networks."""
    warmup_steps: int = 1500
    """Their updates before the policy's first."""
    lcb_coef: float = 0.5
    """Standard deviations of the ensemble by which a value is held to be lower than its mean."""

    def __post_init__(self) -> None:
        validate_min(
            self, estimator_steps=1, estimator_refit_steps=0, num_critics=2, hidden_dim=1,
            batch_size=1, warmup_steps=0, lcb_coef=0,
        )  # fmt: skip
        if self.estimator and self.state != "estimated":
            raise ValueError(
                f"value: got an estimator and state {self.state!r}, expected state 'estimated'; "
                "leave one out"
            )

    @property
    def needs_simulator(self) -> bool:
        """Whether rollouts must tell the simulator's state: as input, or to fit the estimate."""
        return self.state in ("estimated", "simulator") and not self.estimator


def measured(names: Sequence[str], robot: RobotSpec) -> list[bool]:
    """Return which numbers of the simulator's state the arm's own sensors tell."""
    joints = {f"{kind}/{joint}" for kind in ("qpos", "qvel", "ctrl") for joint in robot.names}
    return [name in joints or name.startswith("tool/") for name in names]


def relevant(names: Sequence[str], robot: RobotSpec) -> list[int]:
    """Return the indices of those numbers of the simulator's state that a value function reads.

    Of a task with goals: what the arm's own sensors tell, and `goal/...`. That has the things which
    the goal names in fixed places; where all other things are fits past outcomes and misleads.
    """
    known = measured(names, robot)
    goal = [name.startswith("goal/") for name in names]
    return [i for i in range(len(names)) if known[i] or goal[i] or not any(goal)]


class ChunkValue(nn.Module):
    """The ensemble, its target networks, and what it takes for the state. The networks' outputs are
    logits of values in [0, 1]: a value that cannot leave its range does not diverge.

    Args:
        config: Settings.
        features: Width of the policy's features.
        measured: Which of the P numbers that it reads of the state an arm's own sensors tell; they
            are never estimated, but for an estimator of another run and for keyframes.
        actions: Numbers of an executed chunk.
        seed: Of the weights.
        columns: Indices of these P numbers in the simulator's state; the first P if None.
        total: Numbers of the simulator's state; P if None.

    Raises:
        ValueError: the other run has no estimator of such features.
    """

    measured: Tensor
    columns: Tensor

    def __init__(
        self, config: ValueConfig, features: int, measured: Sequence[bool], actions: int, seed: int,
        columns: Sequence[int] | None = None, total: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.total = len(measured) if total is None else total
        """Numbers of the simulator's state."""
        picked = (
            torch.arange(len(measured))
            if columns is None
            else torch.tensor(columns, dtype=torch.long)
        )
        self.register_buffer("columns", picked, persistent=False)
        generator = torch.Generator().manual_seed(seed)
        self.config, self.size = config, len(measured)
        self.estimator: StateEstimator | None = None
        if config.estimator:
            self.estimator = StateEstimator.load(checkpoint.find(Path(config.estimator)) / FILE)
            known, self.size = self.estimator.linear.shape
            if known != features:
                raise ValueError(
                    f"{config.estimator}: its estimate reads {known} features, the policy has "
                    f"{features}; give the run that this policy comes from"
                )
            measured = [False] * self.size
        elif config.state in ("estimated", "keyframes"):
            self.estimator = StateEstimator(features, self.size, generator)
        self.register_buffer("measured", torch.tensor(measured, dtype=torch.bool))
        width = (features if config.state == "features" else self.size) + 1
        self.standardizer = Standardizer(width)
        self.q = Ensemble(
            width + actions, config.num_critics, (config.hidden_dim,) * 3, generator,
            activation=nn.functional.silu,
        )  # fmt: skip
        self.q.w4.data.mul_(0.1)  # at first all values are alike, and low
        self.q.b4.data.fill_(-1.5)
        self.target = copy.deepcopy(self.q)
        self.adam = torch.optim.AdamW(
            self.q.parameters(), lr=config.lr, weight_decay=1e-3, fused=True
        )

    def states(self, features: Tensor, simulator: Tensor, clock: Tensor) -> Tensor:
        """Return standardised states f32 [n, s] of decisions.

        Args:
            features: f32 [n, d], the policy's.
            simulator: f32 [n, s], the simulator's state; of an estimated one, only what the arm
                measures is read.
            clock: f32 [n], share of the time limit that is used.
        """
        return self.standardizer(self._raw(features, simulator, clock))

    def fit_states(self, features: Tensor, simulator: Tensor, clock: Tensor) -> None:
        """Standardise by these decisions; see `states`."""
        self.standardizer.fit(self._raw(features, simulator, clock))

    def _raw(self, features: Tensor, simulator: Tensor, clock: Tensor) -> Tensor:
        if self.config.state == "features":
            state = features
        elif self.config.state == "simulator":
            state = simulator[:, self.columns]
        else:
            assert self.estimator is not None
            state = self.estimator(features)
            if self.measured.any():
                state = torch.where(self.measured, simulator[:, self.columns], state)
        return torch.cat([state, clock[:, None]], 1)

    def update(self, states: Tensor, chunk: Tensor, target: Tensor) -> float:
        """Descend the binary cross-entropy of chunks f32 [m, h, u] to values f32 [m] in [0, 1]
        once; the target networks follow. Return the loss before, the mean over networks.
        """
        self.q.requires_grad_()
        with torch.enable_grad():
            logits = self.q(states, ACTION_SCALE * chunk)
            loss = nn.functional.binary_cross_entropy_with_logits(logits, target.expand_as(logits))
            loss.backward()
        self.adam.step()
        self.adam.zero_grad()
        self.q.requires_grad_(requires_grad=False)
        torch._foreach_lerp_(
            list(self.target.parameters()), list(self.q.parameters()), self.config.tau
        )
        return float(loss.detach())

    def target_value(self, states: Tensor, chunk: Tensor, generator: torch.Generator) -> Tensor:
        """Return the least of two random target networks f32 [m] (REDQ, Chen et al. 2021)."""
        value = torch.sigmoid(self.target(states, ACTION_SCALE * chunk))
        two = torch.randperm(len(value), generator=generator)[:2].to(value.device)
        return value[two].min(0).values

    def lower_bound(self, states: Tensor, chunk: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean minus `lcb_coef` deviations over the ensemble, and the mean, f32 [m] each."""
        value = torch.sigmoid(self.q(states, ACTION_SCALE * chunk))
        mean = value.mean(0)
        return mean - self.config.lcb_coef * value.std(0, correction=0), mean
