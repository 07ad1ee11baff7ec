"""Off-policy actor-critic on cached features; its value function sees more than the policy.

Vision is frozen: only the layers behind it learn (`VLAPolicy.features`), so that a decision is
encoded once, when it is made. An ensemble of value functions of (state, executed chunk) learns from
all rollouts; the policy ascends its lower confidence bound within a trust region. The state is the
simulator's (asymmetric actor-critic, Pinto et al. 2017), or by default an estimate of it from the
policy's own features, fitted to the rollouts of the first iteration.

The only reward is the success of an episode, by the source of the reward.
"""

import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from training.core.loop import Weights
from training.core.optimizer import Optimizer, OptimizerConfig
from training.rl.config import OnlineRLConfig, Start
from training.rl.diagnostics import training_diagnostics
from training.rl.experience.episode import Episode
from training.rl.experience.replay import Replay, replay
from training.rl.rollout.collector import env_spec
from training.rl.rollout.explorer import ExplorationConfig, Explorer, one_step
from training.rl.runners.online_algorithm import OnlineAlgorithm, OnlineAlgorithmConfig
from training.rl.value.chunk_value import ChunkValue, ValueConfig
from training.rl.value.standardized import StandardizedLinear
from vla.contracts.config import validate_min
from vla.policies.vla import VLAPolicy

HELD_OUT = 10
"""One in so many decisions tests the state estimator."""


@dataclass(frozen=True, kw_only=True)
class Config(OnlineAlgorithmConfig):
    """Settings of the asymmetric actor-critic."""

    value: ValueConfig = field(default_factory=ValueConfig)
    """Value function."""
    exploration: ExplorationConfig = field(default_factory=ExplorationConfig)
    """How rollouts differ from what the policy does."""
    utd_ratio: int = 5
    """Critic updates per policy update."""
    batch_size: int = 512
    """Decisions per policy update."""
    target_kl: float = 0.3
    """KL per decision to the policy that collected the iteration, in nats, which the weight of the
    trust region is adapted to."""

    def __post_init__(self) -> None:
        validate_min(self, utd_ratio=1, batch_size=1, target_kl=0)

    def learner(self, train: OnlineRLConfig, start: Start) -> "AsymmetricActorCritic":
        """Return the learner of a run."""
        return AsymmetricActorCritic(self, train, start)

    def acting_policy(self, policy: VLAPolicy, train: OnlineRLConfig) -> Explorer:
        """Return the policy with its exploration and a new value function.

        Raises:
            ValueError: its head attends to tokens, which are no features.
        """
        time_limit, names = env_spec(train, policy.robot)
        policy, features = trainable(policy)
        actions = policy.n_action_steps * policy.head.actions
        value = ChunkValue(self.value, features, len(names), actions, train.seed)
        return Explorer(policy, self.exploration, value.to(train.device), time_limit)


def run_config() -> OnlineRLConfig:
    """Return the run that these settings are made for."""
    return OnlineRLConfig(
        algo=Config(), n_iterations=16, initial_episodes=400, episodes_per_iteration=100,
        steps=1600, num_envs=100,
        optimizer=OptimizerConfig(lr=5e-5, warmup_steps=20, ema_decay=0.99),
    )  # fmt: skip


def trainable(policy: VLAPolicy) -> tuple[VLAPolicy, int]:
    """Return a policy with one denoising step, of which the last layers alone learn, and the number
    of its features.

    Raises:
        ValueError: its head attends to tokens, which are no features.
    """
    if policy.head.config.denoiser != "mlp":
        raise ValueError(
            f"policy: got the denoiser {policy.head.config.denoiser!r}, which attends to tokens of "
            "the images; asymmetric_ac keeps one vector per decision: use a policy with "
            "--policy.head.denoiser mlp, or --algo.type dppo"
        )
    policy = policy.with_steps(1).eval().requires_grad_(requires_grad=False)
    policy.head.denoiser.requires_grad_()
    pool = getattr(policy.backbone, "pool", None)
    if not isinstance(pool, nn.Sequential):
        return policy, policy.backbone.sizes(policy.memory.vector_size)[0]
    if not isinstance(pool[0], StandardizedLinear):
        pool[0] = StandardizedLinear(pool[0])
    pool.requires_grad_()
    return policy, pool[0].in_features


class Batch(NamedTuple):
    """Decisions at which the policy improves."""

    features: Tensor
    states: Tensor


class AsymmetricActorCritic(OnlineAlgorithm):
    """Satisfies `training.core.loop.Learner`."""

    config: Config
    bounds = training_diagnostics.with_limits(staleness=100.0)
    """Old rollouts are as good as new ones for a value function that learns off policy."""
    replay: Replay
    states: Tensor
    next_chunks: Tensor

    def __init__(self, config: Config, train: OnlineRLConfig, start: Start) -> None:
        super().__init__(config, train, start)
        self.runner.keep_images = False
        self.explorer = config.acting_policy(self.policy, train)
        policy = self.policy = self.explorer.policy
        self.ref_policy = copy.deepcopy(policy).requires_grad_(requires_grad=False)
        self.length = policy.n_action_steps
        assert self.explorer.value is not None
        value = self.explorer.value
        self.value, self.optimizers = value, {"value": value.adam}
        self.runner.episodes = [self._encoded(e) for e in self.runner.episodes]
        collector = copy.deepcopy(policy).requires_grad_(requires_grad=False)
        self.module = nn.ModuleDict({"policy": policy, "value_net": value, "collector": collector})
        self.collector: VLAPolicy = collector
        """The policy that collected the newest iteration."""
        self.module.register_buffer("kl_coef", torch.tensor(0.05))
        self.module.register_buffer("ready", self.explorer.ready)

    def _encoded(self, episode: Episode) -> Episode:
        """Return an episode of a prior run with the features of this policy.

        Raises:
            ValueError: it has not the simulator's state of this task.
        """
        if episode.simulator_state.shape[1] != self.value.size:
            raise ValueError(
                f"prior_runs: got {episode.simulator_state.shape[1]} numbers of the simulator's "
                f"state in a rollout, expected {self.value.size}; give runs of aux_bc or "
                "asymmetric_ac on this task, or leave them out"
            )
        batch = self.gather([episode], [np.arange(len(episode))])
        return replace(episode, features=self.policy.batch_features(batch).cpu().numpy())

    def acting_policy(self) -> Explorer:
        """Return the policy with its exploration."""
        return self.explorer.eval()

    def collect(self) -> Batch:
        """Collect rollouts if due; return decisions at which the policy improves."""
        self.module.eval()
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
        config, policy = self.config, self.policy
        value_loss = float(np.mean([self._value_step(generator) for _ in range(config.utd_ratio)]))
        shape = (len(data.features), *policy.noise_shape[1:])
        noise = torch.randn(shape, generator=generator, device=policy.device)
        chunk = one_step(policy, data.features, noise)[:, : self.length]
        with torch.no_grad():
            before = one_step(self.collector, data.features, noise)[:, : self.length]
        kl = self.explorer.smooth.kl(chunk, before).mean()
        half = 0.5 * self._smooth_noise(chunk.shape, generator)
        bound, mean = self.value.lower_bound(data.states, chunk + half)
        # In units of the mean value: the trust region weighs alike early and late.
        objective = bound.mean() / mean.mean().detach().clamp(min=0.05)
        metrics = optimizer.step(self.module.kl_coef * kl - objective)
        self.module.kl_coef.copy_(adapted(self.module.kl_coef, kl.detach(), config.target_kl))
        values = {
            "value_loss": value_loss, "value": float(mean.detach().mean()),
            "kl": float(kl.detach()), "kl_coef": float(self.module.kl_coef),
        }  # fmt: skip
        return {**values, **self.log_metrics(metrics), "samples": float(len(data.features))}

    def _value_step(self, generator: torch.Generator) -> float:
        """Update the value function on decisions of all rollouts; return its loss."""
        data, size = self.replay, self.config.value.batch_size
        rows = torch.randint(len(data.reward), (size,), generator=generator)
        after = data.next[rows]
        with torch.no_grad():
            chunk = self.next_chunks[after]
            chunk = chunk + self._smooth_noise(chunk.shape, generator)
            value = self.value.target_value(self.states[after], chunk, generator)
            target = data.reward[rows] + self.run.gamma * data.not_ended[rows] * value
        return self.value.update(self.states[rows], data.chunk[rows], target.clamp(0, 1))

    def _smooth_noise(self, shape: Any, generator: torch.Generator) -> Tensor:
        normal = torch.randn(shape, generator=generator, device=self.policy.device)
        return self.explorer.smooth(normal)

    @torch.no_grad()
    def _begin_iteration(self) -> None:
        """Take in new rollouts, adapt the trust region, and value what comes after."""
        self._read_episodes()
        first = self.runner.iteration == 1
        seed = self.run.seed * 1000 + self.runner.iteration
        generator = torch.Generator(self.policy.device).manual_seed(seed)
        if first:
            self._fit_first(generator)
        elif self.config.value.estimator_refit_steps:
            self._fit_estimator(self.config.value.estimator_refit_steps, generator)
        self._encode_states()
        self.collector.load_state_dict(self.policy.state_dict())
        self._next_chunks()
        if first:
            self.callbacks.on_status("learning values")
            for _ in range(self.config.value.warmup_steps):
                self._value_step(generator)
            self.module.ready.fill_(True)
        self.rollout_metrics |= self._estimate_metrics()
        self.runner.drop_images()

    def _fit_first(self, generator: torch.Generator) -> None:
        """Fit what depends on the first iteration's rollouts alone."""
        data = self.replay
        for policy in (self.policy, self.ref_policy):
            pool = getattr(policy.backbone, "pool", None)
            if pool is not None and isinstance(pool[0], StandardizedLinear):
                pool[0].standardize(data.features)
        self._fit_estimator(self.config.value.estimator_steps, generator)
        self.value.fit_states(data.features, data.simulator, data.clock)

    def _fit_estimator(self, steps: int, generator: torch.Generator) -> None:
        """Fit the estimate of the state, if there is one, to all rollouts."""
        if self.value.estimator is not None:
            data = self.replay
            held_out = torch.from_numpy(data.episode % HELD_OUT == 0)
            self.callbacks.on_status("learning to estimate the state")
            self.value.estimator.fit(data.features, data.simulator, held_out, steps, generator)

    def _read_episodes(self) -> None:
        runner = self.runner
        self.replay = replay(
            self.policy, runner.episodes, [r.success for r in runner.rewards],
            self.explorer.time_limit,
        )  # fmt: skip

    @torch.no_grad()
    def _encode_states(self) -> None:
        data = self.replay
        self.states = self.value.states(data.features, data.simulator, data.clock)

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

    def _estimate_metrics(self) -> dict[str, float]:
        """Return how far off the estimated state is in the newest rollouts, in deviations."""
        estimator, episodes = self.value.estimator, self.runner.latest[0]
        if estimator is None:
            return {}
        rows = slice(len(self.replay.reward) - sum(map(len, episodes)), None)
        known = estimator.outputs(self.replay.simulator[rows])
        guess = estimator.outputs(estimator(self.replay.features[rows]))
        return {"rollout/state_error": float((guess - known).square().mean().sqrt())}

    def policy_weights(self, weights: Weights) -> Weights:
        """Return the policy's weights for a checkpoint."""
        return StandardizedLinear.fold(super().policy_weights(weights))

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`."""
        super().restore(state)
        if self.runner.iteration:
            self._read_episodes()
            self._encode_states()
            self._next_chunks()


def adapted(kl_coef: Tensor, kl: Tensor, target_kl: float) -> Tensor:
    """Return the weight of the trust region after an update: up to 3 % more where the KL was above
    its target, up to 3 % less where it was below.
    """
    change = 0.03 * (kl / target_kl - 1).clamp(-1, 1)
    return (kl_coef * change.exp()).clamp(1e-3, 10.0)
