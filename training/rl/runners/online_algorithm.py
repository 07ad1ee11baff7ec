"""The base of online RL algorithms: batches of rollouts and demonstrations, checkpoints, state.

An algorithm plug-in says how to draw a batch from the rollouts and how to learn from it.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from training.core.callbacks import Callbacks
from training.core.loop import Weights
from training.data import batches
from training.evaluation.evaluate import Evaluation, evaluate
from training.rl.config import OnlineRLConfig, Start
from training.rl.diagnostics import policy_diagnostics, training_diagnostics
from training.rl.experience.episode import Episode, gather, gather_boundaries, windows
from training.rl.rollout.explorer import Explorer
from training.rl.runners import bc_regularization
from training.rl.runners.runner import OnlineRunner
from training.rl.value.standardized import StandardizedLinear
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts import migrate
from vla.contracts.config import PluginConfig
from vla.contracts.types import EpisodeBatch
from vla.policies.vla import VLAPolicy

BCRollout = tuple[Episode, np.ndarray]
"""An episode, and its frames that are worth cloning, i64 [n]."""


class PolicyAndValue(nn.Module):
    """A policy, and the value networks that are learned next to it."""

    def __init__(self, policy: VLAPolicy, value_net: nn.Module) -> None:
        super().__init__()
        self.policy, self.value_net = policy, value_net


@dataclass(frozen=True, kw_only=True)
class OnlineAlgorithmConfig(PluginConfig):
    """Base of their settings; `learner` of each returns its learner."""

    grounding_loss_coef: float = 0.1
    """Weight of the loss on where the backbone's queries look, wherever demonstrations are cloned
    that say where the things are that an instruction names; 0 or more."""

    def start(self, train: Any, data: Any) -> "OnlineAlgorithm":
        """Load the policy to fine-tune, its demonstrations and the reward model.

        Raises:
            ValueError: the run is not one of online RL, or something to start from is damaged.
        """
        if not (isinstance(train, OnlineRLConfig) and isinstance(data, Start)):
            raise ValueError(
                f"algo {configs.type_name(self)} learns from rollouts: use `vla train rl`"
            )
        return self.learner(train, data)

    def acting_policy(self, policy: VLAPolicy, train: OnlineRLConfig) -> VLAPolicy | Explorer:
        """Return what acts in rollouts, with the weights of a policy; an actor process makes it as
        well, and loads what the learner publishes. Its coefficient tells rollouts that labels of
        where to look are wanted.
        """
        policy.grounding_loss_coef = self.grounding_loss_coef
        return policy


class OnlineAlgorithm:
    """What online RL algorithms have in common; satisfies `training.core.loop.Learner` but for
    `collect` and `update`.
    """

    bounds = training_diagnostics.BOUNDS
    """Bounds of the diagnostics."""
    optimizers: dict[str, torch.optim.Optimizer] = {}
    """See `training.core.loop.HasOptimizers`."""

    def __init__(self, config: Any, train: OnlineRLConfig, start: Start) -> None:
        self.config = config
        self.run = train
        self.runner = OnlineRunner(train, start)
        self.policy = self.runner.policy
        self.policy.grounding_loss_coef = config.grounding_loss_coef
        self.module = PolicyAndValue(self.policy, nn.Identity())
        self.ref_policy = copy.deepcopy(self.policy).requires_grad_(requires_grad=False)
        self.rng = np.random.default_rng(train.seed)
        self.updates = 0
        self.rollout_metrics: dict[str, float] = {}
        self.diagnostics = training_diagnostics.TrainingDiagnostics(
            train.steps // train.n_iterations
        )
        self.callbacks = Callbacks()
        self._warned: set[str] = set()

    def collect_rollouts_if_due(self) -> bool:
        """Collect rollouts before the first update of an iteration; return whether it was one."""
        runner = self.runner
        runner.check_processes()
        due = runner.due(self.updates)
        if due:
            iteration, count = runner.iteration + 1, self.run.episodes_of(runner.iteration)
            self.callbacks.on_status(
                f"collecting {count} rollouts, iteration {iteration} of {self.run.n_iterations}"
            )
            self.rollout_metrics = runner.collect(self.acting_policy(), self.updates)
            self.callbacks.on_rollouts(iteration, *runner.latest, self.policy.robot)
            self.rollout_metrics |= self._policy_diagnostics()
            self.diagnostics.begin_iteration()
            self._warned = set()
            self.callbacks.on_status("")
        self.updates += 1
        return due

    def acting_policy(self) -> VLAPolicy | Explorer:
        """Return what acts in rollouts, in evaluation mode."""
        acting: VLAPolicy | Explorer = self.config.acting_policy(self.policy.eval(), self.run)
        return acting

    def log_metrics(self, metrics: dict[str, float]) -> dict[str, float]:
        """Return metrics of an update with those of the iteration; each alarm is reported
        once an iteration.
        """
        self.diagnostics.add_update(metrics["grad_norm"])
        iteration = {**self.rollout_metrics, **self.diagnostics.metrics()}
        names = training_diagnostics.out_of_bounds(iteration, self.bounds)
        for name in names:
            if name not in self._warned:
                self.callbacks.on_warning(
                    training_diagnostics.warning(name, iteration[name], self.bounds[name])
                )
        self._warned |= set(names)
        return {**metrics, **iteration, **{f"{name}_alarm": 1.0 for name in names}}

    def count_samples(self, episodes: Sequence[Episode]) -> None:
        """Count episodes that are learned from by their age, once for each sample."""
        prior = {id(e) for e in self.runner.episodes[: self.runner.num_prior]}
        now = self.updates - 1
        # Rollouts of another run are at least as old as this one.
        self.diagnostics.add_samples([now - (0 if id(e) in prior else e.version) for e in episodes])

    def _policy_diagnostics(self) -> dict[str, float]:
        """Return diagnostics of the policy that has just acted, at states of its rollouts."""
        latest, rewards = self.runner.latest
        returns = [float(r.reward.sum()) for r in rewards]
        spread = {"diagnostics/return_std": float(np.std(returns))}
        if latest[0].features.size:  # of an `Explorer`: its chunk is no denoising chain
            return spread
        episodes, decisions, latents = policy_diagnostics.states(latest)
        generator = torch.Generator().manual_seed(self.run.seed * 1000 + self.runner.iteration)
        with torch.no_grad():
            batch = self.gather(episodes, decisions)
            context = self.policy.contexts(batch)
            metrics = policy_diagnostics.examine(self.policy, context, generator)
            contexts = (context, self.ref_policy.contexts(batch))
            metrics["diagnostics/kl"] = policy_diagnostics.kl_from_start(
                self.policy, self.ref_policy, contexts, latents
            )
        return {**metrics, **spread}

    def to_device(self, values: np.ndarray) -> torch.Tensor:
        """Return an array as a tensor on the policy's device."""
        return torch.from_numpy(values).to(self.policy.device)

    def gather(self, episodes: Sequence[Episode], queries: Sequence[np.ndarray]) -> EpisodeBatch:
        """Return decisions of episodes, with what the policy needs to have seen before them."""
        chunk, views = self.policy.config.chunk_size, self.policy.views
        if self.policy.remembers:
            return gather(episodes, queries, chunk, views)
        frames = [e.decision_index[q] for e, q in zip(episodes, queries, strict=True)]
        return windows(episodes, frames, chunk, views)

    def boundaries(self, episode: Episode) -> EpisodeBatch:
        """Return all decisions of an episode, and its end."""
        if self.policy.remembers:
            return gather_boundaries([episode], self.policy.views)
        return windows([episode], [episode.boundary_index], 0, self.policy.views)

    def sample_demos(self, count: int, queries: int) -> EpisodeBatch:
        """Draw from the anchor of the BC loss; some decisions carry a loss."""
        if anchor := self._policy_anchor():
            return self.sample_rollouts(anchor, count, queries)
        demos, chunk = self.runner.demos, self.policy.config.chunk_size
        if not self.policy.remembers:
            frames = self.rng.integers(len(demos.frames), size=count * queries)
            return batches.frame_batch(demos, frames, chunk)
        chosen = self.rng.choice(len(demos.seq_episode), count)
        even = np.ones(len(demos.frames), np.float32)
        return batches.episode_batch(demos, chosen, chunk, queries, even, self.rng)

    def _policy_anchor(self) -> list[BCRollout]:
        """Return the start policy's own successes, if those are the anchor of the BC loss."""
        first = self.runner.num_prior
        iteration = slice(first, first + self.run.episodes_of(0))
        episodes, rewards = self.runner.episodes[iteration], self.runner.rewards[iteration]
        anchor: str = self.run.bc_anchor
        if anchor == "auto":
            demos = self.runner.demos
            data = bc_regularization.recorded_success(
                demos.scalars.get("success"), demos.step_offsets
            )
            policy = bc_regularization.policy_success(episodes, rewards)
            anchor = bc_regularization.choose(policy, data)
        self.rollout_metrics["rollout/bc_anchor_is_policy"] = float(anchor == "policy")
        if anchor == "data":
            return []
        pairs = zip(episodes, rewards, strict=True)
        return [
            (e, e.bc_indices(success=True))
            for e, reward in pairs
            if reward.success and e.is_policy_action.all()
        ]

    def bc_rollouts(self) -> list[BCRollout]:
        """Return rollouts with frames worth cloning."""
        pairs = zip(self.runner.episodes, self.runner.rewards, strict=True)
        rollouts = [(e, e.bc_indices(reward.success)) for e, reward in pairs]
        return [(e, frames) for e, frames in rollouts if len(frames)]

    def sample_rollouts(self, rollouts: list[BCRollout], count: int, queries: int) -> EpisodeBatch:
        """Draw `count` of `rollouts`; some frames carry a loss."""
        chosen = [rollouts[i] for i in self.rng.choice(len(rollouts), count)]
        targets = [sample_sorted(frames, queries, self.rng) for _, frames in chosen]
        # A policy with memory has seen its decisions alone: there frames are decisions.
        make_batch = gather if self.policy.remembers else windows
        episodes = [episode for episode, _ in chosen]
        self.count_samples(episodes)
        return make_batch(episodes, targets, self.policy.config.chunk_size, self.policy.views)

    def augment(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Return a batch with randomly shifted images of random brightness."""
        run = self.run
        return batches.augment_batch(batch, run.random_shift_px, run.brightness_jitter, self.rng)

    def evaluate(self, weights: Weights, *, episodes: int, seed: int) -> Evaluation:
        """Return the success of weights in simulation."""
        averaged = copy.deepcopy(self.policy)
        averaged.load_state_dict(_policy_weights(weights))
        return evaluate(
            averaged.eval(), self.run.task, episodes=episodes, seed=seed, backend=self.run.backend
        )

    def save(self, weights: Weights, step: int, folder: Path, also: Callable[[Path], None]) -> None:
        """Write a policy checkpoint: of frozen vision, too."""
        tasks = tuple(sorted({*self.runner.origin.instructions, *self.runner.demos.tasks}))
        origin = checkpoint.provenance(configs.to_json(self.run.task), tasks, step)
        folded = StandardizedLinear.fold(_policy_weights(weights))
        checkpoint.save(self.policy, origin, folder, folded, also)

    def check_saved(self, folder: Path) -> None:
        """Raise ValueError unless the checkpoint is whole."""
        checkpoint.load(folder)

    def state(self) -> dict[str, Any]:
        """Return the state of rollouts and of the stream of data, as JSON types."""
        return {
            "rng": self.rng.bit_generator.state, "updates": self.updates,
            "iterations": self.runner.iteration, "start": _start_json(self.runner.start),
            "rollout_metrics": self.rollout_metrics, "diagnostics": self.diagnostics.state(),
        }  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`.

        Raises:
            ValueError: the run started from something else: resuming would make it another run.
        """
        state = migrate.online_rl_state(state)
        stored, start = state["start"], _start_json(self.runner.start)
        for name, value in start.items():
            if stored[name] != value:
                raise ValueError(f"started from {name} {stored[name]}, now {value}")
        self.rng.bit_generator.state = state["rng"]
        self.updates = state["updates"]
        self.rollout_metrics = state["rollout_metrics"]
        self.diagnostics.restore(state["diagnostics"])
        self.runner.restore(state["iterations"])


def _start_json(start: Start) -> dict[str, Any]:
    """Return, as JSON types, what a run starts from."""
    return {
        "policy": str(start.policy), "dataset": str(start.dataset),
        "reward_model": str(start.reward_model), "prior_runs": list(map(str, start.prior_runs)),
    }  # fmt: skip


def sample_sorted(values: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return at most `count` of values i64 [m], ascending."""
    return np.sort(rng.choice(values, min(count, len(values)), replace=False))


def _policy_weights(weights: Weights) -> Weights:
    return {k.removeprefix("policy."): v for k, v in weights.items() if k.startswith("policy.")}
