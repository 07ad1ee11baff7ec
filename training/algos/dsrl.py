"""DSRL: the policy stays as it is; the noise it starts from is learned, and the best of several
chunks is executed.

Wagenmaker et al. 2025 (arXiv 2506.15799), in its noise-aliased form: an ensemble of critics values
executed chunks, so all rollouts teach it, whoever acted; the frozen chain carries those values over
to noise; and a squashed Gaussian actor seeks the noise of the highest value, as in SAC (Haarnoja et
al. 2018). The critics also choose among several chunks at a decision. It suits policies too large
to fine-tune: nothing is differentiated through their networks.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from training.core.optimizer import Optimizer
from training.rl.config import OnlineRLConfig, Start
from training.rl.diagnostics import training_diagnostics
from training.rl.experience.replay import transitions
from training.rl.runners.chunk_critics import ChunkCritics
from training.rl.runners.online_algorithm import OnlineAlgorithm, OnlineAlgorithmConfig
from vla.contracts.config import validate_min
from vla.contracts.types import EpisodeBatch
from vla.nn import ensembles
from vla.nn.context import Context
from vla.nn.noise_actor import NoiseActor, NoiseActorConfig


@dataclass(frozen=True, kw_only=True)
class Config(OnlineAlgorithmConfig):
    """Settings of DSRL."""

    best_of_n: int = 1
    """Chunks sampled at a decision, the best of which is executed; at most one more than the
    policy's denoising steps."""
    noise_bound: float = 1.5
    """Largest magnitude of a number of the noise."""
    critic_hidden_dim: int = 256
    """Width of actor and critics."""
    num_critics: int = 5
    """Q networks in an ensemble."""
    lcb_coef: float = 1.0
    """k of mean - k x deviation of the ensemble, by which chunks are chosen."""
    critic_lr: float = 1e-3
    """Learning rate of the critics."""
    utd_ratio: int = 4
    """Critic updates per actor update."""
    critic_batch_size: int = 128
    """Decisions per critic update, and per actor update."""
    critic_tau: float = 0.01
    """Polyak coefficient of the target networks."""
    critic_warmup_steps: int = 400
    """Critic updates before the actor's first."""
    target_entropy: float = 0.0
    """Entropy of the noise, in nats per number; about 1 at first."""
    actor_loss_coef: float = 1.0
    """Weight of the actor's objective; 0 leaves the noise as it is: best-of-N alone."""

    def __post_init__(self) -> None:
        validate_min(
            self, best_of_n=1, noise_bound=0, critic_hidden_dim=1, num_critics=1, lcb_coef=0,
            utd_ratio=1, critic_batch_size=1, critic_warmup_steps=0, actor_loss_coef=0,
        )  # fmt: skip

    def learner(self, train: OnlineRLConfig, start: Start) -> "Dsrl":
        """Return the learner of a run."""
        return Dsrl(self, train, start)


class ValueNet(nn.Module):
    """Critics and temperature, which are not saved with the policy."""

    def __init__(self, features: int, chunk: int, noise: int, config: Config, seed: int) -> None:
        super().__init__()
        count, width = config.num_critics, config.critic_hidden_dim
        settings = {"lr": config.critic_lr, "tau": config.critic_tau}
        self.chunks = ChunkCritics(features + chunk, count, width, seed, **settings)
        self.noises = ChunkCritics(features + noise, count, width, seed + 1, **settings)
        self.log_temperature = nn.Parameter(torch.tensor(-3.0))


class Dsrl(OnlineAlgorithm):
    """Satisfies `training.core.loop.Learner`."""

    config: Config
    # The noise is meant to change; at this bound it is almost deterministic.
    bounds = training_diagnostics.with_limits(kl=4.0)

    def __init__(self, config: Config, train: OnlineRLConfig, start: Start) -> None:
        super().__init__(config, train, start)
        policy = self.ref_policy = self.policy  # it stays as it was
        policy.requires_grad_(requires_grad=False)
        settings = NoiseActorConfig(
            width=config.critic_hidden_dim, noise_bound=config.noise_bound,
            best_of_n=config.best_of_n, num_critics=config.num_critics, lcb_coef=config.lcb_coef,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(train.seed)  # noqa: TID251  torch's initialisers know no other source
            policy.add_noise_actor(settings)
        _, chunk, actions = policy.noise_shape
        features = policy.backbone.sizes(policy.memory.vector_size)[0]
        executed = policy.config.n_action_steps * actions
        value_net = ValueNet(features, executed, chunk * actions, config, train.seed)
        self.module.value_net = value_net.to(train.device)
        self.optimizers = {"chunks": value_net.chunks.adam, "noises": value_net.noises.adam}
        self.contexts: list[Context] = []

    @property
    def noise_actor(self) -> NoiseActor:
        """The network that chooses the noise."""
        actor = self.policy.noise_actor
        assert actor is not None
        return actor

    def collect(self) -> Tensor:
        """Collect rollouts if due; return decisions for each critic update, i64 [n, m]."""
        collected, config = self.collect_rollouts_if_due(), self.config
        self._encode()
        first = collected and self.runner.iteration == 1
        shape = (config.utd_ratio + first * config.critic_warmup_steps, config.critic_batch_size)
        rows = self.rng.integers(len(self.transitions.reward), size=shape)
        self.count_samples([self.runner.episodes[i] for i in self.transitions.episode[rows].flat])
        return torch.from_numpy(rows)

    def update(
        self, data: Tensor, optimizer: Optimizer, generator: torch.Generator
    ) -> dict[str, float]:
        """Update the critics, copy them to the policy and ascend the actor's objective once."""
        self.module.eval()
        for rows in data:
            value_error = self._update_chunk_critics(rows, generator)
            noise_error = self._update_noise_critics(rows, generator)
        # Rollouts choose among chunks by the critics as they are now.
        self.noise_actor.values.load_state_dict(self.module.value_net.chunks.weights())
        losses, outputs = self._losses(data[-1], generator)
        metrics = optimizer.step(torch.stack(list(losses.values())).sum())
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        values |= {"value_error": value_error, "noise_error": noise_error, **outputs}
        return {**values, **self.log_metrics(metrics), "samples": float(data.numel())}

    @torch.no_grad()
    def _update_chunk_critics(self, rows: Tensor, generator: torch.Generator) -> float:
        """Update the critics of executed chunks with decisions i64 [m]; return the error."""
        data, critics = self.transitions, self.module.value_net.chunks
        after = self._context(data.state[rows] + 1)
        noise = torch.randn((len(rows), *self.policy.noise_shape), generator=generator)
        latents, _ = self.policy.denoise(after, noise, True)
        # The deviation is taken off where chunks are chosen; here it would add up over decisions.
        value = critics.slow(after.pooled, self._executed(latents)).mean(0)
        target = data.reward[rows] + self.run.gamma * data.not_terminated[rows] * value
        return critics.update(data.features[data.state[rows]], data.chunk[rows], target)

    @torch.no_grad()
    def _update_noise_critics(self, rows: Tensor, generator: torch.Generator) -> float:
        """Carry the values over to noise, at decisions i64 [m]; return the error.

        Half of the noise is the actor's and half the policy's own: to improve, the actor needs
        values of more than its own noise.
        """
        value_net, bound = self.module.value_net, self.config.noise_bound
        context = self._context(self.transitions.state[rows])
        normal = self._normal(len(rows), generator)
        drawn = self.noise_actor.draw(context.pooled, normal).noise
        half = len(rows) // 2
        noise = torch.cat([drawn[:half], normal[half:].clamp(-bound, bound)])
        latents, _ = self.policy.head.sample(context, noise[:, None], False)
        value = value_net.chunks.slow(context.pooled, self._executed(latents))
        target = ensembles.lower_confidence_bound(value, self.config.lcb_coef)
        return value_net.noises.update(context.pooled, noise, target)

    def _losses(
        self, rows: Tensor, generator: torch.Generator
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return the losses of actor and temperature at decisions i64 [m], and metrics."""
        value_net, config = self.module.value_net, self.config
        features = self.transitions.features[self.transitions.state[rows]]
        drawn = self.noise_actor.draw(features, self._normal(len(rows), generator))
        value, entropy = value_net.noises(features, drawn.noise).mean(0), -drawn.log_prob.mean()
        temperature = value_net.log_temperature.exp()
        objective = value.mean() + temperature.detach() * entropy
        losses = {
            "policy": -config.actor_loss_coef * objective,
            "temperature": temperature * (entropy.detach() - config.target_entropy),
        }
        return losses, {"value": float(value.detach().mean()), "entropy": float(entropy.detach())}

    def kl_from_start(self, decisions: EpisodeBatch, context: Context, latents: Tensor) -> float:
        """Return KL of the noise from standard normal noise, both before they are squashed, in nats
        per number; the transitions are what they were.
        """
        mean, log_std = self.noise_actor.gaussian(context.pooled)
        return float((0.5 * (mean**2 + (2 * log_std).exp() - 1) - log_std).mean())

    def _executed(self, latents: Tensor) -> Tensor:
        return latents[:, -1, : self.policy.config.n_action_steps]

    def _normal(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn((count, *self.policy.noise_shape[1:]), generator=generator)

    def _context(self, states: Tensor) -> Context:
        return Context(*(part[states] for part in self.encoded))

    @torch.no_grad()
    def _encode(self) -> None:
        """Encode new episodes, once; make transitions of all."""
        episodes = self.runner.episodes
        if len(self.contexts) == len(episodes):
            return
        self.policy.eval()
        for episode in episodes[len(self.contexts) :]:
            self.contexts.append(self.policy.contexts(self.boundaries(episode)))
        self.encoded = Context(*(torch.cat(parts) for parts in zip(*self.contexts, strict=True)))
        features = [context.pooled for context in self.contexts]
        self.transitions = transitions(self.policy, features, episodes, self.runner.rewards)
