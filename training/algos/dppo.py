"""DPPO: policy gradient on two levels, action chunks outside and denoising steps inside.

Ren et al. 2024 (arXiv 2409.00588). Rewards of a decision reach every transition of its denoising
chain, discounted towards the noise; each transition is a Gaussian, so PPO's ratio is exact. Unlike
the published code: an episode cut by the time limit is continued from its own last observation, the
memory is replayed with the present weights, and one tuned step is as good as many. As there, the
first denoising steps can be left to the original network.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from training.optimiser import Optimiser
from training.rl import health
from training.rl.config import PracticeConfig, Start
from training.rl.experience import Episode
from training.rl.practitioner import Practitioner
from training.rl.returns import advantages
from vla.contracts.config import PluginConfig, check_least
from vla.contracts.types import EpisodeBatch
from vla.nn import diffusion
from vla.nn.chains import ChainHead
from vla.nn.context import Context

SCORES = (-5.0, 2.0)
"""Bounds of log-probabilities per number of the chunk, as in the published code."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of DPPO."""

    episodes: int = 10
    """Episodes per update."""
    tuned: int = 0
    """Denoising steps, the last ones, that are tuned: a copy of the network does them, and the
    original the others. What both look through stays as it was, too. 0 for all, by one network."""
    min_std: float = 0.1
    """Least standard deviation of a transition in practice, in normalised action units."""
    trace: float = 0.95
    """Lambda of the advantages."""
    toward_noise: float = 0.99
    """Discount of advantages per denoising step, counted back from the action."""
    clip: float = 0.01
    """Largest change of a ratio at the last, least noisy transition."""
    clip_least: float = 0.001
    """The same at the first one; between the two it grows exponentially."""
    clip_growth: float = 3.0
    """How steeply."""
    target_kl: float = 1.0
    """Divergence from the policy that practised beyond which a batch only teaches values."""
    warmup: int = 1
    """Rounds after which the policy begins to learn; before that only values do."""
    value: float = 0.5
    """Weight of the value loss."""
    clone: float = 0.1
    """Weight of the cloning loss on demonstrations."""
    cloned: int = 8
    """Demonstrations per update."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, episodes=1, tuned=0, warmup=0, clone=0, cloned=1, clip=0, clip_least=0)

    def start(self, train: Any, data: Any) -> "Dppo":
        """Load the policy to lift, its demonstrations and the critic.

        Raises:
            ValueError: the run is not one of practice, or something to start from is damaged.
        """
        if not (isinstance(train, PracticeConfig) and isinstance(data, Start)):
            raise ValueError("algo dppo learns from practice: use `vla train rl`")
        return Dppo(self, train, data)


class Prepared(NamedTuple):
    """What one practised episode of T decisions teaches."""

    advantage: np.ndarray
    """f32 [t]."""
    value: np.ndarray
    """f32 [t], what the value should be."""
    score: np.ndarray
    """f32 [t, tuned], log-probability per number under the policy that practised."""
    own: np.ndarray
    """f32 [t], 1 where the policy acted and 0 where it did not."""


class Batch(NamedTuple):
    """Practised episodes with what they teach, and demonstrations."""

    decisions: EpisodeBatch
    latents: Tensor
    prepared: Prepared
    demos: EpisodeBatch


class Dppo(Practitioner):
    """Satisfies `training.loop.Learner`."""

    # Ratios are of the policy that practised last.
    bounds = health.with_limits(staleness=1.0)

    def __init__(self, config: Config, train: PracticeConfig, start: Start) -> None:
        super().__init__(train, start)
        if train.runtime.lag:
            raise ValueError(
                f"dppo: got runtime.lag {train.runtime.lag}, but it learns from what the present "
                "policy practised; use --runtime.lag 0, or ogpo, which learns from any practice"
            )
        head = self.policy.head
        # Practice needs noise at every transition; acting takes their means all the same.
        head.config = replace(head.config, min_std=config.min_std)
        if config.tuned > head.config.steps:
            raise ValueError(
                f"tuned: got {config.tuned}, the policy denoises in {head.config.steps} steps"
            )
        self.config = config
        self.tuned = range(
            head.config.steps - (config.tuned or head.config.steps), head.config.steps
        )
        if self.tuned.start:
            self._split_()
        width = self.policy.backbone.sizes(0)[0]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(train.seed)  # noqa: TID251  torch's initialisers know no other source
            self.module.beside = baseline(width).to(train.device)
        self.latest: list[Episode] = []
        self.prepared: list[Prepared] = []
        self.order: list[int] = []

    def _split_(self) -> None:
        """Leave everything as it was but a copy of the network, which does the tuned steps."""
        head, count = self.policy.head, len(self.tuned)
        if head.config.tuned != count:
            head.split_(count)
        told: Any = self.policy.config.head
        self.policy.config = replace(self.policy.config, head=replace(told, tuned=count))
        self.policy.requires_grad_(requires_grad=False)
        head.late.requires_grad_(requires_grad=True)

    def collect(self) -> Batch:
        """Practise if it is time; return some of the latest episodes, each as often as others."""
        if self.practise_if_due_():
            self._latest_()
            self.prepared = self._prepare()
            self.order = []
        if not self.order:
            self.order = self.rng.permutation(len(self.latest)).tolist()
        chosen, self.order = self.order[: self.config.episodes], self.order[self.config.episodes :]
        episodes = [self.latest[i] for i in chosen]
        self.drawn_(episodes)
        told = [self.prepared[i] for i in chosen]
        return Batch(
            decisions=self._decisions(episodes), latents=_latents(episodes),
            prepared=Prepared(*(np.concatenate(part) for part in zip(*told, strict=True))),
            demos=self.shaken(self.demonstrated(self.config.cloned, 4)),
        )  # fmt: skip

    def update(
        self, data: Batch, optimiser: Optimiser, generator: torch.Generator
    ) -> dict[str, float]:
        """Descend the clipped objective, the value loss and the cloning loss once."""
        self.module.eval()  # the statistics that practice normalised with, or no ratio would be 1
        config, told = self.config, data.prepared
        context = self.policy.contexts(data.decisions)
        score = self.scores(context, data.latents)
        change = score - torch.from_numpy(told.score)
        own = torch.from_numpy(told.own)
        advantage = torch.from_numpy(standardized(told.advantage)) * own
        surrogate = clipped(change, advantage, self._clips(), self._discounts())
        # Schulman's estimator: never below 0.
        kl = ((change.exp() - 1 - change) * own[:, None]).mean()
        learns = self.rounds.count > config.warmup and float(kl.detach()) <= config.target_kl
        value = self.module.beside(context.pooled.detach())[:, 0]
        losses = {
            "policy": surrogate * float(learns),
            "value": config.value * nn.functional.mse_loss(value, torch.from_numpy(told.value)),
            "clone": config.clone * self.policy.bc_loss(data.demos, generator)[0] * float(learns),
        }
        figures = optimiser.step_(torch.stack(list(losses.values())).sum())
        values = {name: float(loss.detach()) for name, loss in losses.items()}
        values |= {
            "kl": float(kl.detach()),
            "ratio": float((change.exp() - 1).abs().max().detach()),
        }
        return {**values, **self.told(figures), "samples": float(len(told.value))}

    def scores(self, context: Context, latents: Tensor) -> Tensor:
        """Return log-probabilities f32 [m, tuned] of transitions, per executed number."""
        head: ChainHead = self.policy.head
        acted = self.policy.config.execute
        found = []
        for i in self.tuned:
            mean, std = head.step(i, latents[:, i], context, True)
            mean, latent = mean[:, :acted], latents[:, i + 1, :acted]
            whole = diffusion.gaussian_log_prob(latent, mean, std)
            found.append((whole / latent[0].numel()).clamp(*SCORES))
        return torch.stack(found, 1)

    @torch.no_grad()
    def _prepare(self) -> list[Prepared]:
        """Return what the latest episodes teach, by the present policy and values."""
        found = []
        for episode, one in zip(self.latest, self.rounds.worth[-len(self.latest) :], strict=True):
            score = self.scores(
                self.policy.contexts(self._decisions([episode])), _latents([episode])
            )
            seen = self.policy.contexts(self.moments(episode))
            value = self.module.beside(seen.pooled)[:, 0].numpy()
            advantage = advantages(
                one.reward, value, terminated=episode.terminated, gamma=self.run.gamma,
                trace=self.config.trace,
            )  # fmt: skip
            own = episode.own.astype(np.float32)
            found.append(Prepared(advantage, advantage + value[:-1], score.numpy(), own))
        return found

    def _decisions(self, episodes: list[Episode]) -> EpisodeBatch:
        every = [np.arange(len(e)) for e in episodes]
        return self.gather(episodes, every)

    def _latest_(self) -> None:
        self.latest = self.rounds.episodes[-self.run.episodes :]

    def _clips(self) -> Tensor:
        """Return the bound of each tuned transition's ratio [tuned]."""
        c, low, high = self.config.clip_growth, self.config.clip_least, self.config.clip
        share = torch.linspace(0, 1, len(self.tuned)) if len(self.tuned) > 1 else torch.ones(1)
        return low + (high - low) * (torch.exp(c * share) - 1) / (math.exp(c) - 1)

    def _discounts(self) -> Tensor:
        """Return the discount of each tuned transition's advantage [tuned]."""
        return self.config.toward_noise ** torch.arange(len(self.tuned) - 1, -1, -1.0)

    def state(self) -> dict[str, Any]:
        """Return where practice is, and what the latest of it teaches."""
        told = [[part.tolist() for part in one] for one in self.prepared]
        return {**super().state(), "order": self.order, "prepared": told}

    def restore_(self, state: dict[str, Any]) -> None:
        """Continue there."""
        super().restore_(state)
        self._latest_()
        self.order = state["order"]
        self.prepared = [
            Prepared(*(np.array(part, np.float32) for part in one)) for one in state["prepared"]
        ]


def clipped(change: Tensor, advantage: Tensor, bound: Tensor, discount: Tensor) -> Tensor:
    """Return PPO's clipped loss (Schulman et al. 2017, eq. 7), the mean over all transitions.

    Args:
        change: f32 [m, tuned], log of the ratio.
        advantage: f32 [m].
        bound: f32 [tuned], how far a ratio may usefully go from 1.
        discount: f32 [tuned], of the advantage.
    """
    ratio, gain = change.exp(), advantage[:, None] * discount
    return -torch.minimum(ratio * gain, torch.clamp(ratio, 1 - bound, 1 + bound) * gain).mean()


def standardized(values: np.ndarray) -> np.ndarray:
    """Return values with mean 0 and deviation 1; zeros where all are alike."""
    return (values - values.mean()) / max(float(values.std()), 1e-6)


def baseline(width: int) -> nn.Module:
    """Return a network from features [m, width] to values [m, 1], 0 at first."""
    last = nn.Linear(256, 1)
    nn.init.zeros_(last.weight)
    nn.init.zeros_(last.bias)
    return nn.Sequential(nn.Linear(width, 256), nn.Mish(), nn.Linear(256, 256), nn.Mish(), last)


def _latents(episodes: list[Episode]) -> Tensor:
    return torch.from_numpy(np.concatenate([e.latents for e in episodes]))
