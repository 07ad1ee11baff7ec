"""Behaviour cloning with an auxiliary loss: vision learns where objects are, from all rollouts.

A policy cloned from few demonstrations has seen few layouts. Here it sees those of its own
rollouts, failed ones as well, and synthetic frames of many more: a linear read-out of
`Context.pooled` regresses the positions of objects, which the simulator knows. The read-out is
thrown away at the end; the policy never sees the simulator's state. Next to it the policy clones
the demonstrations and its own successes, by the source of the reward.

Without a simulator (`--algo.labels keyframes`) the labels are where the arm went in successes.
"""

import contextlib
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from training.core.optimizer import Optimizer, OptimizerConfig
from training.rl.config import SEEDS_PER_RUN, OnlineRLConfig, Start
from training.rl.experience.episode import Episode, join, windows
from training.rl.rollout.collector import env_spec
from training.rl.rollout.explorer import ExplorationConfig, Explorer
from training.rl.rollout.synthetic_frames import LabelledFrames, synthetic_frames
from training.rl.runners.online_algorithm import OnlineAlgorithm, OnlineAlgorithmConfig
from training.rl.value import keyframes
from vla.contracts import config as configs
from vla.contracts.config import validate_min
from vla.contracts.types import EpisodeBatch
from vla.policies.vla import VLAPolicy

VISIBLE = ("object", "state", "goal", "next_keyframe", "end")
"""Names of numbers that images show begin so; "state" and "goal" are those of suites, the last two
those of `training.rl.value.keyframes`."""
MIN_DEVIATION = 0.01
"""Least deviation of a label by which it is divided, in m or rad: what never moves is no label."""
HELD_OUT = 10
"""One rollout in so many tests the read-out."""


@dataclass(frozen=True, kw_only=True)
class Config(OnlineAlgorithmConfig):
    """Settings of behaviour cloning with the auxiliary loss."""

    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    """Noise of rollouts."""
    labels: Literal["simulator", "keyframes"] = "simulator"
    """Positions of objects; or the arm's own poses at the next keyframe and at the end, in rollouts
    that succeeded by the source of the reward, which need no simulator."""
    synthetic_frames: int = 8000
    """Frames of further layouts, labelled by the simulator."""
    aux_loss_coef: float = 0.1
    """Weight of the auxiliary loss."""
    aux_batch_size: int = 64
    """Labelled frames per update; of the simulator's, half are synthetic."""
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
        simulator = self.labels == "simulator"
        time_limit, _ = env_spec(train, policy.robot, needs_state=simulator)
        policy = policy.eval().with_steps(1)
        return Explorer(policy, self.exploration, None, time_limit, needs_simulator=simulator)


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
        if config.labels == "simulator":
            names: tuple[str, ...] = env_spec(train, self.policy.robot)[1]
        else:
            names = keyframes.names(self.policy.robot)
        self.labels = np.array([i for i, n in enumerate(names) if n.startswith(VISIBLE)])
        if not len(self.labels):
            raise ValueError(
                f"{configs.type_name(train.task)}: got no positions of objects from the simulator, "
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
        size = self.config.aux_batch_size
        if self.config.labels == "simulator":
            frames, labels = self._rollout_frames(size // 2, held_out=False)
            drawn = self.rng.integers(len(self.frames.images), size=size - size // 2)
            frames = join([frames, self._synthetic(drawn)])
            labels = np.concatenate([labels, self.frames.state[drawn]])
        else:
            frames, labels = self._rollout_frames(size, held_out=False)
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
        episodes = self._labelled()
        known = np.concatenate([self._state(e) for e in episodes])
        if self.config.labels == "simulator":
            self._render(episodes)
            known = np.concatenate([self.frames.state, known])
        known = known[:, self.labels]
        self.mean, self.std = known.mean(0), np.maximum(known.std(0), MIN_DEVIATION)

    def _labelled(self) -> list[Episode]:
        """Return the rollouts that have labels."""
        prior = self.runner.num_prior
        episodes, rewards = self.runner.episodes[prior:], self.runner.rewards[prior:]
        if self.config.labels == "simulator":
            return episodes
        chosen = [e for e, r in zip(episodes, rewards, strict=True) if r.success and e.terminated]
        if not chosen:
            raise ValueError(
                f"algo.labels keyframes: got no success among {len(episodes)} rollouts, in which "
                "keyframes are found; collect more (--episodes-per-iteration), or start from a "
                "better policy"
            )
        return chosen

    def _state(self, episode: Episode) -> np.ndarray:
        """Return what is known of an episode's decisions, f32 [t, p]."""
        if self.config.labels == "simulator":
            return episode.simulator_state
        return keyframes.keyframe_labels(episode, self.policy.robot)

    def _render(self, episodes: list[Episode]) -> None:
        self.callbacks.on_status(f"rendering {self.config.synthetic_frames} synthetic frames")
        seed = self.run.rollout_seed(self.runner.iteration - 1) + SEEDS_PER_RUN // 2
        with contextlib.closing(self.runner.make_env(self.run.parallel_envs)) as env:
            self.frames = synthetic_frames(env, episodes, self.config.synthetic_frames, seed)
        self.callbacks.on_status("")

    def _standardized(self, state: np.ndarray) -> Tensor:
        """Return the labels f32 [n, l] of states f32 [n, p]."""
        return torch.from_numpy((state[:, self.labels] - self.mean) / self.std)

    def _rollout_frames(self, count: int, *, held_out: bool) -> tuple[EpisodeBatch, np.ndarray]:
        """Draw decisions of rollouts, and what is known there, f32 [count, p]."""
        episodes = self._labelled()
        episodes = [e for e in episodes if (e.number % HELD_OUT == 0) == held_out] or episodes
        chosen = [episodes[i] for i in self.rng.integers(len(episodes), size=count)]
        drawn = [self.rng.integers(len(e), size=1) for e in chosen]
        frames = [e.decision_index[d] for e, d in zip(chosen, drawn, strict=True)]
        batch = windows(chosen, frames, self.policy.config.chunk_size, self.policy.views)
        state = [self._state(e)[d] for e, d in zip(chosen, drawn, strict=True)]
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
