"""Steering: the policy stays as it is; what it starts from is learned, and the best of several.

After DSRL (Wagenmaker et al. 2025, arXiv 2506.15799), in its noise-aliased form: an ensemble values
executed chunks, so that whatever was practised by anybody teaches it; what the frozen chain makes
of noise carries those values over to noise; and a squashed Gaussian actor seeks the noise of the
highest value, as in SAC (Haarnoja et al. 2018). The values also choose among several chunks at a
decision. For policies too large to tune: nothing is differentiated through their networks.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from training.optimiser import Optimiser
from training.rl import health
from training.rl.chunk_critics import ChunkCritics
from training.rl.config import PracticeConfig, Start
from training.rl.practitioner import Practitioner
from training.rl.replay import transitions
from vla.contracts.config import PluginConfig, check_least
from vla.contracts.types import EpisodeBatch
from vla.nn import ensembles
from vla.nn.context import Context
from vla.nn.steering import Steering, SteeringConfig


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of steering."""

    candidates: int = 1
    """Noises drawn at a decision, the best of whose chunks is executed; at most one more than the
    policy's denoising steps."""
    bound: float = 1.5
    """Largest magnitude of a number of the noise."""
    width: int = 256
    """Width of the networks."""
    critics: int = 5
    """Values in the ensemble."""
    pessimism: float = 1.0
    """How many deviations of the ensemble are taken off its mean where chunks are chosen."""
    critic_rate: float = 1e-3
    """Learning rate of the values."""
    critic_steps: int = 4
    """Their updates for each one of the actor."""
    critic_batch: int = 128
    """Decisions for each of those, and for the actor's."""
    critic_follow: float = 0.01
    """Share of the way that their slow copy goes."""
    warmup: int = 400
    """Their updates before the actor's first."""
    entropy: float = 0.0
    """Entropy that the noise is held at, in nats per number; about 1 at first."""
    policy: float = 1.0
    """Weight of the actor's objective; 0 leaves the noise about what it was: best-of-N alone."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(
            self, candidates=1, bound=0, width=1, critics=1, pessimism=0, critic_steps=1,
            critic_batch=1, warmup=0, policy=0,
        )  # fmt: skip

    def start(self, train: Any, data: Any) -> "Steer":
        """Load the policy to steer, its demonstrations and the critic.

        Raises:
            ValueError: the run is not one of practice, or something to start from is damaged.
        """
        if not (isinstance(train, PracticeConfig) and isinstance(data, Start)):
            raise ValueError("algo steer learns from practice: use `vla train rl`")
        return Steer(self, train, data)


class Beside(nn.Module):
    """What is learned beside the policy and not saved with it."""

    def __init__(self, features: int, chunk: int, noise: int, config: Config, seed: int) -> None:
        super().__init__()
        count, width = config.critics, config.width
        self.chunks = ChunkCritics(features + chunk, count, width, seed)
        self.noises = ChunkCritics(features + noise, count, width, seed + 1)
        self.log_temperature = nn.Parameter(torch.tensor(-3.0))


class Steer(Practitioner):
    """Satisfies `training.loop.Learner`."""

    # The noise is there to be moved; from here on it is all but fixed, at the bound.
    bounds = health.with_limits(kl=4.0)

    def __init__(self, config: Config, train: PracticeConfig, start: Start) -> None:
        super().__init__(train, start)
        self.config, policy = config, self.policy
        self.begun = policy  # it stays as it was
        policy.requires_grad_(requires_grad=False)
        told = SteeringConfig(
            width=config.width, bound=config.bound, candidates=config.candidates,
            critics=config.critics, pessimism=config.pessimism,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(train.seed)  # noqa: TID251  torch's initialisers know no other source
            policy.steer_(told)
        _, chunk, actions = policy.noise_shape
        features = policy.backbone.sizes(policy.memory.vector_size)[0]
        executed = policy.config.execute * actions
        beside = Beside(features, executed, chunk * actions, config, train.seed)
        self.module.beside = beside.to(train.device)
        self.contexts: list[Context] = []

    @property
    def steering(self) -> Steering:
        """Who chooses the noise."""
        found = self.policy.steering
        assert found is not None
        return found

    def collect(self) -> Tensor:
        """Practise if it is time; return decisions for each update of the values, i64 [n, m]."""
        begun = self.practise_if_due_()
        self._see_()
        first = begun and self.rounds.count == 1
        shape = (self.config.critic_steps + first * self.config.warmup, self.config.critic_batch)
        rows = self.rng.integers(len(self.transitions.reward), size=shape)
        self.drawn_([self.rounds.episodes[i] for i in self.transitions.episode[rows].flat])
        return torch.from_numpy(rows)

    def update(
        self, data: Tensor, optimiser: Optimiser, generator: torch.Generator
    ) -> dict[str, float]:
        """Let the values learn, hand them to the policy and ascend the actor's objective once."""
        self.module.eval()
        for rows in data:
            error = self._value_chunks_(rows, generator)
            carried = self._value_noise_(rows, generator)
        # What is executed in practice is chosen by the values as they are now.
        self.steering.values.load_state_dict(self.module.beside.chunks.weights())
        losses, told = self._losses(data[-1], generator)
        figures = optimiser.step_(torch.stack(list(losses.values())).sum())
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        values |= {"value_error": error, "noise_error": carried, **told}
        return {**values, **self.told(figures), "samples": float(data.numel())}

    @torch.no_grad()
    def _value_chunks_(self, rows: Tensor, generator: torch.Generator) -> float:
        """Let the values of executed chunks learn from decisions i64 [m]; return the error."""
        told, critics = self.transitions, self.module.beside.chunks
        after = self._context(told.before[rows] + 1)
        noise = torch.randn((len(rows), *self.policy.noise_shape), generator=generator)
        ahead = self.policy.denoise(after, noise, True)[0][:, -1, : self.policy.config.execute]
        # Doubt is taken off where chunks are chosen; here it would add up over decisions.
        value = critics(after.pooled, ahead, slow=True).mean(0)
        target = told.reward[rows] + self.run.gamma * told.goes_on[rows] * value
        return critics.learn_(
            told.features[told.before[rows]], told.chunk[rows], target,
            rate=self.config.critic_rate, follow=self.config.critic_follow,
        )  # fmt: skip

    @torch.no_grad()
    def _value_noise_(self, rows: Tensor, generator: torch.Generator) -> float:
        """Carry the values over to noise, at decisions i64 [m]; return the error.

        Half of the noise is the actor's and half the policy's own: to know where to go, the actor
        needs to be told of more than where it is.
        """
        beside, bound = self.module.beside, self.config.bound
        here = self._context(self.transitions.before[rows])
        normal = self._normal(len(rows), generator)
        drawn = self.steering.draw(here.pooled, normal).noise
        half = len(rows) // 2
        noise = torch.cat([drawn[:half], normal[half:].clamp(-bound, bound)])
        chunk = self.policy.head.sample(here, noise[:, None], False)[0][:, -1]
        value = beside.chunks(here.pooled, chunk[:, : self.policy.config.execute], slow=True)
        target = ensembles.cautious(value, self.config.pessimism)
        return beside.noises.learn_(
            here.pooled, noise, target,
            rate=self.config.critic_rate, follow=self.config.critic_follow,
        )  # fmt: skip

    def _losses(
        self, rows: Tensor, generator: torch.Generator
    ) -> tuple[dict[str, Tensor], dict[str, float]]:
        """Return what actor and temperature descend at decisions i64 [m], and figures of it."""
        beside = self.module.beside
        features = self.transitions.features[self.transitions.before[rows]]
        drawn = self.steering.draw(features, self._normal(len(rows), generator))
        value, entropy = beside.noises(features, drawn.noise).mean(0), -drawn.log_prob.mean()
        temperature = beside.log_temperature.exp()
        gain = value.mean() + temperature.detach() * entropy
        losses = {
            "policy": -self.config.policy * gain,
            "temperature": temperature * (entropy.detach() - self.config.entropy),
        }
        told = {"value": value.mean(), "entropy": entropy}
        return losses, {name: float(one.detach()) for name, one in told.items()}

    def moved(self, decisions: EpisodeBatch, context: Context, latents: Tensor) -> float:
        """Return KL of the noise from standard normal noise, both before they are squashed, in nats
        per number; the transitions are what they were.
        """
        mean, log_std = self.steering.gaussian(context.pooled)
        return float((0.5 * (mean**2 + (2 * log_std).exp() - 1) - log_std).mean())

    def _normal(self, count: int, generator: torch.Generator) -> Tensor:
        return torch.randn((count, *self.policy.noise_shape[1:]), generator=generator)

    def _context(self, moments: Tensor) -> Context:
        return Context(*(part[moments] for part in self.seen))

    @torch.no_grad()
    def _see_(self) -> None:
        """Encode episodes that were not yet seen, for good; make transitions of all."""
        episodes = self.rounds.episodes
        if len(self.contexts) == len(episodes):
            return
        self.policy.eval()
        for episode in episodes[len(self.contexts) :]:
            self.contexts.append(self.policy.contexts(self.moments(episode)))
        self.seen = Context(*(torch.cat(parts) for parts in zip(*self.contexts, strict=True)))
        features = [one.pooled for one in self.contexts]
        self.transitions = transitions(self.policy, features, episodes, self.rounds.worth)
