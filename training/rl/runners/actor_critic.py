"""Off-policy actor-critic on cached features: what `asymmetric_ac` and `residual_ac` share.

Vision is frozen: only the layers behind it learn (`VLAPolicy.features`), so that a decision is
encoded once, when it is made. An ensemble of value functions of (state, executed chunk) learns from
all rollouts; the actor ascends its lower confidence bound within a trust region. The only reward is
the success of an episode, by the source of the reward.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from training.core.loop import Weights
from training.core.optimizer import Optimizer
from training.rl.config import OnlineRLConfig, Start
from training.rl.diagnostics import training_diagnostics
from training.rl.experience.episode import EMPTY, Episode
from training.rl.experience.replay import Replay, replay
from training.rl.rollout.collector import env_spec
from training.rl.rollout.explorer import ExplorationConfig, Explorer, one_step, one_step_policy
from training.rl.runners.frozen_vision import freeze_vision, standardize
from training.rl.runners.online_algorithm import OnlineAlgorithm, OnlineAlgorithmConfig
from training.rl.runners.retention import Retention, RetentionConfig
from training.rl.value import keyframes
from training.rl.value.chunk_value import ChunkValue, ValueConfig, measured, relevant
from training.rl.value.state_estimator import FILE
from vla import checkpoint
from vla.contracts.config import validate_min
from vla.nn.context import pools_features
from vla.policies.vla import VLAPolicy

HELD_OUT = 10
"""One in so many decisions tests the state estimator."""


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig(OnlineAlgorithmConfig):
    """Settings of an off-policy actor-critic on cached features."""

    initial_episodes: int = 400
    """Rollouts of the first iteration; 0 for as many as in the others, which is enough beside those
    of a prior run."""
    value: ValueConfig = field(default_factory=ValueConfig)
    """Value function."""
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    """How rollouts differ from what the policy does."""
    utd_ratio: int = 5
    """Critic updates per policy update."""
    batch_size: int = 512
    """Decisions per policy update."""
    target_kl: float = 0.8
    """KL per decision to the policy that collected the iteration, in nats, which the weight of the
    trust region is adapted to."""
    retention: RetentionConfig = field(default_factory=RetentionConfig)
    """Other tasks and goals, which the policy has to keep."""

    def __post_init__(self) -> None:
        validate_min(self, initial_episodes=0, utd_ratio=1, batch_size=1, target_kl=0)

    def actor(self, policy: VLAPolicy, seed: int) -> tuple[VLAPolicy, int]:
        """Return what acts in rollouts and learns from values, and the number of its features.

        Args:
            policy: The start policy.
            seed: Of new weights, if there are any.

        Raises:
            ValueError: its head attends to tokens, which are no features.
        """
        policy = one_step_policy(policy)
        return policy, freeze_vision(policy)

    def acting_policy(self, policy: VLAPolicy, train: OnlineRLConfig) -> Explorer:
        """Return the actor with its exploration and a new value function."""
        needs_state = self.value.needs_simulator
        time_limit, names = env_spec(train, policy.robot, needs_state=needs_state)
        actor, features = self.actor(policy, train.seed)
        actions = actor.n_action_steps * actor.head.actions
        columns = relevant(names, actor.robot)
        known = measured([names[i] for i in columns], actor.robot)
        if self.value.state == "keyframes":
            known = [False] * len(keyframes.names(actor.robot))
        value = ChunkValue(
            self.value, features, known, actions, train.seed, columns, total=len(names)
        )
        return Explorer(
            actor, self.exploration, value.to(train.device), time_limit,
            needs_simulator=needs_state,
        ).to(train.device)  # fmt: skip


def check_same_vision(policy: VLAPolicy, run: Path) -> None:
    """Raise ValueError unless a run's policy has the frozen weights of this one."""
    other = checkpoint.load_vla(run, "the estimate of the state")[0].state_dict()
    behind = ("head.", "backbone.pool.") if pools_features(policy.backbone) else "head."
    for name, weight in policy.state_dict().items():
        if not name.startswith(behind) and not torch.equal(weight.cpu(), other[name]):
            raise ValueError(
                f"value.estimator: got {run}, whose policy sees otherwise ({name} differs); give "
                "the run that this policy comes from, or one that started from the same policy"
            )


class Batch(NamedTuple):
    """Decisions at which the policy improves."""

    features: Tensor
    states: Tensor


class ActorCritic(OnlineAlgorithm):
    """Satisfies `training.core.loop.Learner`."""

    config: ActorCriticConfig
    bounds = training_diagnostics.with_limits(staleness=100.0)
    """Old rollouts are as good as new ones for a value function that learns off policy."""
    replay: Replay
    states: Tensor
    next_chunks: Tensor

    def __init__(self, config: ActorCriticConfig, train: OnlineRLConfig, start: Start) -> None:
        super().__init__(config, train, start)
        self.runner.keep_images = "none"
        self.explorer = config.acting_policy(self.policy, train)
        policy = self.policy = self.actor = self.explorer.policy
        """The actor is what acts and learns from values; the policy is what is written."""
        self.length = policy.n_action_steps
        assert self.explorer.value is not None
        value = self.explorer.value
        if config.value.estimator:
            check_same_vision(policy, Path(config.value.estimator))
        self.value, self.optimizers = value, {"value": value.adam}
        self.runner.episodes = [self._encoded(e) for e in self.runner.episodes]
        collector = copy.deepcopy(policy).requires_grad_(requires_grad=False)
        self.module = nn.ModuleDict({"policy": policy, "value_net": value, "collector": collector})
        self.collector: VLAPolicy = collector
        """The actor that collected the newest iteration."""
        self.module.register_buffer("kl_coef", torch.tensor(0.05, device=train.device))
        self.module.register_buffer("ready", self.explorer.ready)
        self.kls: list[float] = []
        self.retention: Retention | None = None
        if config.retention.datasets:
            self.retention = Retention(config.retention, self.ref_policy.eval(), train.seed)

    def _encoded(self, episode: Episode) -> Episode:
        """Return an episode of a prior run with the features of this policy.

        Raises:
            ValueError: it has not the simulator's state of this task.
        """
        needed, total = self.explorer.needs_simulator, self.value.total
        state = episode.simulator_state if needed else EMPTY
        if needed and state.shape[1] != total:
            raise ValueError(
                f"prior_runs: got {state.shape[1]} numbers of the simulator's state in a rollout, "
                f"expected {total}; give runs of aux_bc or asymmetric_ac on this task, "
                "or leave them out"
            )
        batch = self.gather([episode], [np.arange(len(episode))])
        features = self.policy.batch_features(batch).cpu().numpy()
        return replace(episode, features=features, simulator_state=state)

    def acting_policy(self) -> Explorer:
        """Return the policy with its exploration."""
        return self.explorer.eval()

    def collect(self) -> Batch:
        """Collect rollouts if due; return decisions at which the policy improves."""
        self.module.eval()
        if self.retention is not None and not self.retention.features:
            self.callbacks.on_status("encoding what is to be kept")
            self.retention.encode()
            self.callbacks.on_status("")
        if self.collect_rollouts_if_due():
            self._begin_iteration()
        rows = self.rng.integers(len(self.states), size=self.config.batch_size)
        self.count_samples([self.runner.episodes[e] for e in self.replay.episode[rows]])
        return Batch(self.replay.features[rows], self.states[rows])

    def update(
        self, data: Batch, optimizer: Optimizer, generator: torch.Generator
    ) -> dict[str, float]:
        """Descend the value function's loss `utd_ratio` times; then ascend it by one step."""
        self.module.eval()
        config, policy = self.config, self.actor
        value_loss = float(np.mean([self._value_step(generator) for _ in range(config.utd_ratio)]))
        shape = (len(data.features), *policy.noise_shape[1:])
        noise = torch.randn(shape, generator=generator).to(policy.device)
        chunk = one_step(policy, data.features, noise)[:, : self.length]
        with torch.no_grad():
            before = one_step(self.collector, data.features, noise)[:, : self.length]
        kl = self.explorer.smooth.kl(chunk, before).mean()
        half = 0.5 * self._smooth_noise(chunk.shape, generator)
        bound, mean = self.value.lower_bound(data.states, chunk + half)
        # In units of the mean value: the trust region weighs alike early and late.
        objective = bound.mean() / mean.mean().detach().clamp(min=0.05)
        distilled = self.distillation_loss(data.features, noise, chunk.detach())
        loss = self.module.kl_coef * kl - objective + distilled
        kept = {}
        if self.retention is not None:
            ref_kl, ref_distilled = self._ref_kl(self.retention, generator)
            loss = loss + config.retention.kl_coef * ref_kl + ref_distilled
            kept["ref_kl"] = float(ref_kl.detach())
        metrics = optimizer.step(loss)
        self.kls.append(float(kl.detach()))
        values = {
            "value_loss": value_loss, "value": float(mean.detach().mean()), "kl": self.kls[-1],
            "kl_coef": float(self.module.kl_coef), **kept,
        }  # fmt: skip
        if self.policy is not self.actor:
            values["distillation_loss"] = float(distilled.detach())
        return {**values, **self.log_metrics(metrics), "samples": float(len(data.features))}

    def _ref_kl(self, retention: Retention, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return the KL to the start policy where it is to be kept, and the distillation loss."""
        features = retention.sample(generator)
        shape = (len(features), *self.actor.noise_shape[1:])
        noise = torch.randn(shape, generator=generator).to(self.actor.device)
        chunk = one_step(self.actor, features, noise)[:, : self.length]
        with torch.no_grad():
            # In as many steps as it had: one step alone may lose what has two ways to go.
            context = self.ref_policy.context_of(features)
            latents, _ = self.ref_policy.head.sample(context, noise[:, None], False)
        kl = self.explorer.smooth.kl(chunk, latents[:, -1, : self.length]).mean()
        return kl, self.distillation_loss(features, noise, chunk.detach())

    def distillation_loss(self, features: Tensor, noise: Tensor, chunk: Tensor) -> Tensor:
        """Return how far the policy is from the actor's chunks f32 [b, h, u]; 0 where it is the
        actor itself.
        """
        return chunk.new_zeros(())

    def _value_step(self, generator: torch.Generator) -> float:
        """Update the value function on decisions of all rollouts; return its loss."""
        data, size = self.replay, self.config.value.batch_size
        rows = torch.randint(len(data.reward), (size,), generator=generator).to(self.policy.device)
        after = data.next[rows]
        with torch.no_grad():
            chunk = self.next_chunks[after]
            chunk = chunk + self._smooth_noise(chunk.shape, generator)
            value = self.value.target_value(self.states[after], chunk, generator)
            target = data.reward[rows] + self.run.gamma * data.not_ended[rows] * value
        return self.value.update(self.states[rows], data.chunk[rows], target.clamp(0, 1))

    def _smooth_noise(self, shape: Any, generator: torch.Generator) -> Tensor:
        normal = torch.randn(shape, generator=generator)
        return self.explorer.smooth(normal.to(self.policy.device))

    @torch.no_grad()
    def _begin_iteration(self) -> None:
        """Take in new rollouts, adapt the trust region, and value what comes after."""
        self._read_episodes()
        first = self.runner.iteration == 1
        seed = self.run.seed * 1000 + self.runner.iteration
        generator = torch.Generator().manual_seed(seed)
        if first:
            for policy in {self.policy, self.actor}:
                standardize(policy, self.replay.features)
        self._fit_estimator(generator)
        if first:
            self.value.fit_states(*self.replay.seen)
        self.states = self.value.states(*self.replay.seen)
        if self.kls:
            factor = adaptation(float(np.mean(self.kls[-20:])), self.config.target_kl)
            self.module.kl_coef.mul_(factor).clamp_(1e-3, 10.0)
        self.kls = []
        self.collector.load_state_dict(self.actor.state_dict())
        self._next_chunks()
        if first:
            self.callbacks.on_status("learning values")
            for _ in range(self.config.value.warmup_steps):
                self._value_step(generator)
            self.module.ready.fill_(True)
        self.runner.drop_images()

    def _fit_estimator(self, generator: torch.Generator) -> None:
        """Fit the estimate of the state, if there is one; tell how far off it is, in standard
        deviations, in rollouts that it was not fitted to.
        """
        estimator, data, config = self.value.estimator, self.replay, self.config.value
        if estimator is None or config.estimator:
            return
        self.callbacks.on_status("learning to estimate the state")
        first = self.runner.iteration == 1
        seen = len(self.runner.episodes) - len(self.runner.latest[0])
        test = torch.from_numpy(data.episode % HELD_OUT == 0 if first else data.episode >= seen)
        labels = self._labels()
        known = ~torch.isnan(labels).any(1)
        if first:
            rows = ~test.to(known.device) & known
            if not rows.any():
                raise ValueError(
                    f"algo.value.state keyframes: got no success among {len(self.runner.episodes)} "
                    f"rollouts (one in {HELD_OUT} tests the estimate); collect more "
                    "(--algo.initial-episodes, --prior-runs), or start from a better policy"
                )
            estimator.fit(data.features[rows], labels[rows], config.estimator_steps, generator)
        test = test.to(known.device) & known
        if test.any():
            error = estimator.error(data.features[test], labels[test])
            self.rollout_metrics["rollout/state_error"] = float(error)
        if not first and config.estimator_refit_steps:
            steps = config.estimator_refit_steps
            estimator.fit(data.features[known], labels[known], steps, generator)

    def _labels(self) -> Tensor:
        """Return what the estimate is fitted to, f32 [n, p]; NaN where it is not known."""
        if self.config.value.state != "keyframes":
            return self.replay.simulator[:, self.value.columns]
        parts = [
            keyframes.keyframe_labels(episode, self.policy.robot)
            if reward.success and episode.terminated
            else np.full((len(episode), self.value.size), np.nan, np.float32)
            for episode, reward in zip(self.runner.episodes, self.runner.rewards, strict=True)
        ]
        return self.to_device(np.concatenate(parts))

    def _read_episodes(self) -> None:
        runner = self.runner
        self.replay = replay(
            self.policy, runner.episodes, [r.success for r in runner.rewards],
            self.explorer.time_limit,
        )  # fmt: skip

    @torch.no_grad()
    def _next_chunks(self) -> None:
        """Sample the collector's chunk at every decision: f32 [n, h, u]."""
        generator = torch.Generator().manual_seed(self.run.seed * 1000 + self.runner.iteration)
        noise = torch.randn((len(self.states), *self.policy.noise_shape[1:]), generator=generator)
        parts = [
            one_step(self.collector, features, z.to(features.device))[:, : self.length]
            for features, z in zip(self.replay.features.split(4096), noise.split(4096), strict=True)
        ]
        self.next_chunks = torch.cat(parts)

    def save(self, weights: Weights, step: int, folder: Path, also: Callable[[Path], None]) -> None:
        """Write a policy checkpoint, and with it the estimate of the state from its features."""

        def files(place: Path) -> None:
            also(place)
            if self.value.estimator is not None and self.config.value.state == "estimated":
                self.value.estimator.save(place / FILE)

        super().save(weights, step, folder, files)

    def state(self) -> dict[str, Any]:
        """Return the state of rollouts and of the stream of data, as JSON types."""
        return {**super().state(), "kls": self.kls}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        super().restore(state)
        self.kls = state["kls"]
        if self.runner.iteration:
            self._read_episodes()
            self.states = self.value.states(*self.replay.seen)
            self._next_chunks()


def adaptation(kl: float, target_kl: float) -> float:
    """Return the factor of the trust region's weight after an iteration that ended at a KL."""
    if target_kl / 1.5 <= kl <= 1.5 * target_kl:
        return 1.0
    return 1.5 if kl > target_kl else 1 / 1.5
