"""Behaviour cloning with an auxiliary loss: vision learns where objects are, from all rollouts.

A policy cloned from few demonstrations has seen few layouts. Here it sees those of its own
rollouts, failed ones as well, and synthetic frames of many more: a linear read-out of
`Context.pooled` regresses the positions of objects, which the simulator knows. The read-out is
thrown away at the end; the policy never sees the simulator's state. Next to it the policy clones
the demonstrations and its own successes, by the source of the reward.
"""

import contextlib
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from sim import vec_env
from training.core.optimizer import Optimizer, OptimizerConfig
from training.rl.config import SEEDS_PER_RUN, OnlineRLConfig, Start
from training.rl.experience.episode import join, windows
from training.rl.rollout.collector import env_spec
from training.rl.rollout.explorer import ExplorationConfig, Explorer, one_step_policy
from training.rl.rollout.synthetic_frames import LabelledFrames, synthetic_frames
from training.rl.runners.online_algorithm import OnlineAlgorithm, OnlineAlgorithmConfig
from vla.contracts.config import validate_min
from vla.contracts.types import EpisodeBatch
from vla.policies.vla import VLAPolicy

VISIBLE = ("object", "state", "goal")
"""Names of the simulator's numbers that images show begin so; the last two are those of suites."""
MIN_DEVIATION = 0.01
"""Least deviation of a label by which it is divided, in m or rad: what never moves is no label."""
HELD_OUT = 10
"""One rollout in so many tests the read-out."""


@dataclass(frozen=True, kw_only=True)
class Config(OnlineAlgorithmConfig):
    """Settings of behaviour cloning with the auxiliary loss."""

    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    """Noise of rollouts."""
    synthetic_frames: int = 8000
    """Frames of further layouts, labelled by the simulator."""
    aux_loss_coef: float = 0.1
    """Weight of the auxiliary loss."""
    aux_batch_size: int = 64
    """Labelled frames per update; half of them synthetic."""
    batch_size: int = 48
    """Decisions cloned per update, of as many episodes; half of them of successful rollouts, once
    there are any."""

    def __post_init__(self) -> None:
        validate_min(self, synthetic_frames=1, aux_loss_coef=0, aux_batch_size=2, batch_size=2)

    def learner(self, train: OnlineRLConfig, start: Start) -> "AuxBC":
        """Return the learner of a run."""
        return AuxBC(self, train, start)

    def acting_policy(self, policy: VLAPolicy, train: OnlineRLConfig) -> Explorer:
        """Return the policy with one denoising step and smooth noise."""
        time_limit, _ = env_spec(train, policy.robot)
        policy = one_step_policy(policy)
        explorer = Explorer(policy, self.exploration, None, time_limit, needs_simulator=True)
        return explorer.to(train.device)


def run_config() -> OnlineRLConfig:
    """Return the run that these settings are made for."""
    return OnlineRLConfig(
        algo=Config(), n_iterations=1, episodes_per_iteration=800, steps=1000, num_envs=100,
        optimizer=OptimizerConfig(lr=1e-3, warmup_steps=50, ema_decay=0.99),
    )  # fmt: skip


class Batch(NamedTuple):
    """What is cloned, and frames with labels f32 [m, l]."""

    bc: EpisodeBatch
    frames: EpisodeBatch
    labels: Tensor


class AuxBC(OnlineAlgorithm):
    """Satisfies `training.core.loop.Learner`."""

    config: Config
    frames: LabelledFrames

    def __init__(self, config: Config, train: OnlineRLConfig, start: Start) -> None:
        super().__init__(config, train, start)
        _, names = env_spec(train, self.policy.robot)
        self.labels = np.array([i for i, n in enumerate(names) if n.startswith(VISIBLE)])
        if not len(self.labels):
            raise ValueError(
                f"{vec_env.title(train.task)}: got no positions of objects from the simulator, "
                "which aux_bc regresses; use one of our tasks, or --algo.type filtered_bc"
            )
        width = self.policy.backbone.sizes(self.policy.memory.vector_size)[0]
        self.module.aux = nn.Linear(width, len(self.labels)).to(train.device)
        for weight in self.module.aux.parameters():
            nn.init.zeros_(weight)
        self.mean = self.std = np.zeros(len(self.labels), np.float32)

    def collect(self) -> Batch:
        """Collect rollouts and synthetic frames if due; draw what is learned from."""
        if self.collect_rollouts_if_due():
            self._label()
        half = self.config.aux_batch_size // 2
        rollouts, known = self._rollout_frames(half, held_out=False)
        drawn = self.rng.integers(len(self.frames.images), size=self.config.aux_batch_size - half)
        frames = join([rollouts, self._synthetic(drawn)])
        labels = np.concatenate([known, self.frames.state[drawn]])
        return Batch(self._bc_batch(), self.augment(frames), self._standardized(labels))

    def update(
        self, data: Batch, optimizer: Optimizer, generator: torch.Generator
    ) -> dict[str, float]:
        """Descend the BC loss and the auxiliary loss once."""
        bc_loss, _ = self.policy.bc_loss(data.bc, generator)
        read = self.module.aux(self.policy.contexts(data.frames).pooled)
        aux_loss = nn.functional.smooth_l1_loss(read, data.labels.to(read.device), beta=0.2)
        metrics = optimizer.step(bc_loss + self.config.aux_loss_coef * aux_loss)
        values = {"bc_loss": float(bc_loss.detach()), "aux_loss": float(aux_loss.detach())}
        if self.updates % self.run.log_every == 0:
            values["position_error_m"] = self._position_error()
        samples = len(data.bc.loss_index) + len(data.labels)
        return {**values, **self.log_metrics(metrics), "samples": float(samples)}

    def _bc_batch(self) -> EpisodeBatch:
        """Draw demonstrations, and as many successful rollouts, if there are any."""
        rollouts, half = self.bc_rollouts(), self.config.batch_size // 2
        parts = [self.sample_demos(self.config.batch_size - (half if rollouts else 0), 1)]
        if rollouts:
            parts.append(self.sample_rollouts(rollouts, half, 1))
        return self.augment(join(parts))

    def _label(self) -> None:
        """Make synthetic frames from all rollouts, and the scale of the labels."""
        episodes = self.runner.episodes[self.runner.num_prior :]
        self.callbacks.on_status(f"rendering {self.config.synthetic_frames} synthetic frames")
        seed = self.run.rollout_seed(self.runner.iteration - 1) + SEEDS_PER_RUN // 2
        with contextlib.closing(self.runner.make_env(self.run.parallel_envs)) as env:
            self.frames = synthetic_frames(env, episodes, self.config.synthetic_frames, seed)
        known = np.concatenate([self.frames.state, *(e.simulator_state for e in episodes)])
        known = known[:, self.labels]
        self.mean, self.std = known.mean(0), np.maximum(known.std(0), MIN_DEVIATION)
        self.callbacks.on_status("")

    def _standardized(self, state: np.ndarray) -> Tensor:
        """Return the labels f32 [n, l] of states f32 [n, p]."""
        return torch.from_numpy((state[:, self.labels] - self.mean) / self.std)

    def _rollout_frames(self, count: int, *, held_out: bool) -> tuple[EpisodeBatch, np.ndarray]:
        """Draw decisions of rollouts, and the simulator's state f32 [count, p] there."""
        episodes = self.runner.episodes[self.runner.num_prior :]
        episodes = [e for e in episodes if (e.number % HELD_OUT == 0) == held_out] or episodes
        chosen = [episodes[i] for i in self.rng.integers(len(episodes), size=count)]
        drawn = [self.rng.integers(len(e), size=1) for e in chosen]
        frames = [e.decision_index[d] for e, d in zip(chosen, drawn, strict=True)]
        batch = windows(chosen, frames, self.policy.config.chunk_size, self.policy.views)
        state = [e.simulator_state[d] for e, d in zip(chosen, drawn, strict=True)]
        return batch, np.concatenate(state)

    def _synthetic(self, rows: np.ndarray) -> EpisodeBatch:
        """Return synthetic frames as episodes of one decision each, without actions."""
        frames, index, chunk = self.frames, np.arange(len(rows)), self.policy.config.chunk_size
        arrays = {
            "images": frames.images[rows][:, list(self.policy.views)],
            "proprio": frames.proprio[rows],
            "step_index": np.zeros(len(rows), np.float32), "episode_index": index,
            "decision": np.zeros_like(index), "loss_index": index,
            "actions": np.zeros((len(rows), chunk, frames.proprio.shape[1]), np.float32),
            "action_is_pad": np.ones((len(rows), chunk), np.bool_),
            "weight": np.ones(len(rows), np.float32),
        }  # fmt: skip
        tensors = {name: torch.from_numpy(values) for name, values in arrays.items()}
        return EpisodeBatch(task=tuple(frames.task[i] for i in rows), **tensors)

    @torch.no_grad()
    def _position_error(self) -> float:
        """Return the root mean square error of the read-out in held-out rollouts, in m or rad."""
        batch, state = self._rollout_frames(128, held_out=True)
        read = self.module.aux(self.policy.contexts(batch).pooled).cpu()
        error = (read - self._standardized(state)) * torch.from_numpy(self.std)
        return float(error.square().mean().sqrt())

    def restore(self, state: dict) -> None:
        """Continue from `state`."""
        super().restore(state)
        if self.runner.iteration:
            self._label()
