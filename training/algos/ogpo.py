"""OGPO for diffusion heads: an off-policy value of chunks is the reward at the end of the chain.

After "Off-policy generative policy optimisation" (ICML 2026), published for flow heads. For states
out of all practice, groups of chains are drawn from a slowly following copy of the policy; how much
better than its group a chain's chunk is, by an ensemble of values learned from the same practice,
is the advantage of each of its transitions. Ratios are clipped as in PPO; cloning of demonstrations
and of successes holds the policy where data are.
"""

import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from training.optimiser import Optimiser
from training.rl import store
from training.rl.chunk_critics import ChunkCritics
from training.rl.config import PracticeConfig, Start
from training.rl.experience import Episode, join
from training.rl.practitioner import Practitioner, some
from vla.contracts.config import PluginConfig, check_least
from vla.contracts.types import EpisodeBatch
from vla.nn import diffusion
from vla.nn.context import Context


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of OGPO."""

    episodes: int = 8
    """Practised episodes per update."""
    queries: int = 8
    """States of each from which groups are drawn."""
    group: int = 16
    """Chains per state."""
    min_std: float = 0.1
    """Least standard deviation of a transition in practice, in normalised action units."""
    clip: float = 0.02
    """Largest useful change of a ratio, per number of the chunk."""
    follow: float = 0.05
    """Share of the way that the copy goes towards the policy at every update."""
    critics: int = 5
    """Values in the ensemble."""
    width: int = 256
    """Width of their layers."""
    critic_rate: float = 1e-3
    """Their learning rate."""
    critic_steps: int = 8
    """Their updates for each one of the policy."""
    critic_batch: int = 256
    """Transitions for each of those."""
    critic_follow: float = 0.01
    """Share of the way that their slow copy goes."""
    warmup: int = 400
    """Their updates before the policy's first."""
    next_chunks: int = 4
    """Chunks by which the state after a transition is valued."""
    conservative: bool = False
    """Trust an advantage only where all values agree on its sign, and then the least of them."""
    policy: float = 1.0
    """Weight of the clipped objective."""
    clone: float = 0.5
    """Weight of the cloning loss."""
    cloned: int = 12
    """Episodes cloned per update: half of them successes of practice, once there are any."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(
            self, episodes=1, queries=1, group=2, critics=1, critic_steps=0, critic_batch=1,
            warmup=0, next_chunks=1, cloned=2, clip=0, policy=0, clone=0,
        )  # fmt: skip

    def start(self, train: Any, data: Any) -> "Ogpo":
        """Load the policy to lift, its demonstrations and the critic.

        Raises:
            ValueError: the run is not one of practice, or something to start from is damaged.
        """
        if not (isinstance(train, PracticeConfig) and isinstance(data, Start)):
            raise ValueError("algo ogpo learns from practice: use `vla train rl`")
        return Ogpo(self, train, data)


class Transitions(NamedTuple):
    """All practice as the values learn from it: n decisions, and m moments they lead between."""

    features: Tensor
    """f32 [m, d], of the policy that practice started from."""
    before: Tensor
    """i64 [n], moment of each decision; the next moment is where it leads."""
    chunk: Tensor
    """f32 [n, h, u], normalised actions."""
    reward: Tensor
    """f32 [n]."""
    goes_on: Tensor
    """f32 [n], 0 where the episode ended for good."""


class Batch(NamedTuple):
    """Practised episodes, some states of which are improved, and what is cloned."""

    decisions: EpisodeBatch
    features: Tensor
    cloned: EpisodeBatch


class Ogpo(Practitioner):
    """Satisfies `training.loop.Learner`."""

    def __init__(self, config: Config, train: PracticeConfig, start: Start) -> None:
        super().__init__(train, start)
        head, self.config = self.policy.head, config
        head.config = replace(head.config, min_std=config.min_std)
        # What the values see does not move while the policy learns.
        self.eyes = copy.deepcopy(self.policy).eval().requires_grad_(requires_grad=False)
        self.acted = self.policy.config.execute
        width = self.policy.backbone.sizes(0)[0]
        inputs = width + self.acted * head.actions
        beside = nn.ModuleDict({
            "critics": ChunkCritics(inputs, config.critics, config.width, train.seed),
            "slow": copy.deepcopy(self.policy).requires_grad_(requires_grad=False),
        })  # fmt: skip
        self.module.beside = beside.to(train.device)
        self.features: list[Tensor] = []
        self.next_chunks = np.zeros((0, 0, 0, 0), np.float32)
        self.value_error = 0.0

    @property
    def slow(self) -> Any:
        """The copy of the policy that follows it."""
        return self.module.beside["slow"]

    def collect(self) -> Batch:
        """Practise if it is time; let the values learn; return states to improve the policy at."""
        begun = self.practise_if_due_()
        self._see_()
        if begun:
            self.next_chunks = self._look_ahead()
            store.write_chunks(self.rounds.start.experience, self.rounds.count, self.next_chunks)
        self._learn_values_(self.config.warmup if begun and self.rounds.count == 1 else 0)
        episodes = self.rounds.episodes
        chosen = self.rng.choice(len(episodes), min(self.config.episodes, len(episodes)), False)
        queries = [some(np.arange(len(episodes[i])), self.config.queries, self.rng) for i in chosen]
        decisions = self.gather([episodes[i] for i in chosen], queries)
        features = [self.features[i][q] for i, q in zip(chosen, queries, strict=True)]
        return Batch(decisions, torch.cat(features), self._cloned())

    def update(
        self, data: Batch, optimiser: Optimiser, generator: torch.Generator
    ) -> dict[str, float]:
        """Descend the clipped objective and the cloning loss once; the copy follows."""
        self.module.eval()
        surrogate, spread = self._surrogate(data, generator)
        clone, _ = self.policy.bc_loss(data.cloned, generator)
        losses = {"policy": self.config.policy * surrogate, "clone": self.config.clone * clone}
        figures = optimiser.step_(torch.stack(list(losses.values())).sum())
        self._follow_()
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        values |= {"advantage": spread, "value_error": self.value_error}
        return {**values, **figures, **self.figures, "samples": float(len(data.features))}

    def _surrogate(self, data: Batch, generator: torch.Generator) -> tuple[Tensor, float]:
        """Return the clipped loss of groups of chains, and the deviation of their advantages."""
        config, head = self.config, self.policy.head
        with torch.no_grad():
            before = _wide(self.slow.contexts(data.decisions), config.group)
            rows = len(data.features) * config.group
            noise = torch.randn((rows, *head.noise_shape), generator=generator)
            latents, _ = self.slow.head.sample(before, noise, True)
            old = self.scores(self.slow.head, before, latents)
            advantage = self.advantages(data.features, latents[:, -1, : self.acted])
        context = _wide(self.policy.contexts(data.decisions), config.group)
        ratio = (self.scores(head, context, latents) - old).exp()
        gain = (advantage / advantage.std().clamp(min=1e-6))[:, None]
        bound = 1 - config.clip, 1 + config.clip
        loss = -torch.minimum(ratio * gain, ratio.clamp(*bound) * gain).mean()
        return loss, float(advantage.std())

    def scores(self, head: Any, context: Context, latents: Tensor) -> Tensor:
        """Return log-probabilities f32 [m, steps] of transitions, per executed number."""
        found = []
        for i in range(head.config.steps):
            mean, std = head.step(i, latents[:, i], context, True)
            mean, latent = mean[:, : self.acted], latents[:, i + 1, : self.acted]
            found.append(diffusion.gaussian_log_prob(latent, mean, std) / latent[0].numel())
        return torch.stack(found, 1)

    def advantages(self, features: Tensor, chunk: Tensor) -> Tensor:
        """Return how much better than its group each chunk is, f32 [m g].

        Args:
            features: f32 [m, d].
            chunk: f32 [m g, h, u], those of a state side by side.
        """
        group = self.config.group
        critics: ChunkCritics = self.module.beside["critics"]
        value = critics(features.repeat_interleave(group, 0), chunk)
        value = value.unflatten(1, (-1, group))
        better = (value - value.mean(2, keepdim=True)).flatten(1)  # [n, m g]
        return agreed(better) if self.config.conservative else better.mean(0)

    def _cloned(self) -> EpisodeBatch:
        """Draw demonstrations, and as many successes of practice, if there are any."""
        lessons, half = self.lessons(), self.config.cloned // 2
        parts = [self.demonstrated(half if lessons else 2 * half, self.config.queries)]
        if lessons:
            parts.append(self.practised(lessons, half, self.config.queries))
        return self.shaken(join(parts))

    @torch.no_grad()
    def _see_(self) -> None:
        """Encode episodes that were not yet seen; make transitions of all."""
        episodes = self.rounds.episodes
        if len(self.features) == len(episodes):
            return
        for episode in episodes[len(self.features) :]:
            seen = self.eyes.contexts(self.moments(episode))
            self.features.append(seen.pooled)
        counts = np.array([len(e) for e in episodes])
        begin = np.cumsum(counts + 1) - counts - 1
        goes_on = np.ones(counts.sum(), np.float32)
        goes_on[(np.cumsum(counts) - 1)[[e.terminated for e in episodes]]] = 0.0
        before = np.concatenate([b + np.arange(n) for b, n in zip(begin, counts, strict=True)])
        chunks = np.concatenate([self._chunks(e) for e in episodes])
        self.transitions = Transitions(
            features=torch.cat(self.features), before=torch.from_numpy(before),
            chunk=torch.from_numpy(chunks), goes_on=torch.from_numpy(goes_on),
            reward=torch.from_numpy(np.concatenate([w.reward for w in self.rounds.worth])),
        )  # fmt: skip

    def _chunks(self, episode: Episode) -> np.ndarray:
        """Return what was done at every decision, normalised: f32 [t, h, u]."""
        done = self.policy.normalizer.action(torch.from_numpy(episode.actions)).numpy()
        own = episode.latents[:, -1, : self.acted]  # without the limits that the arm put to it
        return np.where(episode.own[:, None, None], own, done)

    @torch.no_grad()
    def _look_ahead(self) -> np.ndarray:
        """Draw, at every moment of practice, what the slow copy would do there: [m, c, h, u]."""
        count, found = self.config.next_chunks, []
        generator = torch.Generator().manual_seed(self.run.seed * 1000 + self.rounds.count)
        for episode in self.rounds.episodes:
            context = _wide(self.slow.contexts(self.moments(episode)), count)
            noise = torch.randn(
                (len(context.pooled), *self.policy.head.noise_shape), generator=generator
            )
            latents, _ = self.slow.head.sample(context, noise, True)
            found.append(latents[:, -1, : self.acted].unflatten(0, (-1, count)))
        return torch.cat(found).numpy()

    def restore_(self, state: dict[str, Any]) -> None:
        """Continue where `state` was taken."""
        super().restore_(state)
        self.next_chunks = store.read_chunks(self.rounds.start.experience, self.rounds.count)

    @torch.no_grad()
    def _learn_values_(self, extra: int) -> None:
        """Let the values learn from transitions drawn from all practice."""
        critics: ChunkCritics = self.module.beside["critics"]
        told, config, count = self.transitions, self.config, self.config.next_chunks
        ahead = torch.from_numpy(self.next_chunks)
        for _ in range(config.critic_steps + extra):
            i = torch.from_numpy(self.rng.integers(len(told.reward), size=config.critic_batch))
            after = told.before[i] + 1
            features = told.features[after].repeat_interleave(count, 0)
            value = critics(features, ahead[after].flatten(0, 1), slow=True)
            value = value.mean(0).unflatten(0, (-1, count)).mean(1)
            target = told.reward[i] + self.run.gamma * told.goes_on[i] * value
            self.value_error = critics.learn_(
                told.features[told.before[i]], told.chunk[i], target,
                rate=config.critic_rate, follow=config.critic_follow,
            )  # fmt: skip

    @torch.no_grad()
    def _follow_(self) -> None:
        pairs = zip(self.slow.state_dict().values(), self.policy.state_dict().values(), strict=True)
        for slow, value in pairs:
            if value.is_floating_point():
                slow.lerp_(value, self.config.follow)


def agreed(better: Tensor) -> Tensor:
    """Return, of advantages f32 [n, m] by n values, the one nearest 0 where all agree, else 0."""
    least, most = better.min(0).values, better.max(0).values
    return torch.where(least > 0, least, torch.where(most < 0, most, 0.0))


def _wide(context: Context, count: int) -> Context:
    """Return a context `count` times for each row, side by side."""
    return Context(*(part.repeat_interleave(count, 0) for part in context))
