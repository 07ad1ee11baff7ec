"""What every algorithm of practice shares: what it draws from its rounds, tests, checkpoints.

An algorithm plug-in says how to draw a batch from what was practised and how to learn from it.
"""

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from training.data import batches
from training.evaluate import Evaluation, evaluate
from training.listener import Listener
from training.rl import health, probe, regime
from training.rl.config import PracticeConfig, Start
from training.rl.experience import Episode, gather, moments, windows
from training.rl.rounds import Rounds
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts.types import EpisodeBatch
from vla.nn.context import Context
from vla.policies.vla import VLAPolicy


class Lifted(nn.Module):
    """A policy, and what is learned beside it."""

    def __init__(self, policy: VLAPolicy, beside: nn.Module) -> None:
        super().__init__()
        self.policy, self.beside = policy, beside


class Practitioner:
    """What algorithms of practice have in common; satisfies the rest of `training.loop.Learner`."""

    bounds = health.BOUNDS
    """Where alarms sound."""

    def __init__(
        self, config: PracticeConfig, start: Start, beside: nn.Module | None = None
    ) -> None:
        self.run = config
        self.rounds = Rounds(config, start)
        self.policy = self.rounds.policy
        if self.policy.steering is not None:
            raise ValueError(
                f"{start.policy}: is steered, and its noise was learned for its weights; practise "
                "from the policy that it was steered from"
            )
        self.module = Lifted(self.policy, beside or nn.Identity())
        self.begun = copy.deepcopy(self.policy).requires_grad_(requires_grad=False)
        self.rng = np.random.default_rng(config.seed)
        self.updates = 0
        self.figures: dict[str, float] = {}
        self.vitals = health.Vitals(config.steps // config.rounds)
        self.said: set[str] = set()
        self.listener = Listener()

    def practise_if_due_(self) -> bool:
        """Practise before the first update of every round; `figures` tells of the latest."""
        self.rounds.tend()
        due = self.rounds.due(self.updates)
        if due:
            number, count = self.rounds.count + 1, self.run.episodes
            self.listener.doing(f"practising {count} episodes, round {number} of {self.run.rounds}")
            self.figures = self.rounds.practise(self.policy.eval(), self.updates)
            latest = slice(-count, None)
            self.listener.practised(
                number, self.rounds.episodes[latest], self.rounds.worth[latest], self.policy.robot
            )
            self.figures |= self._examined()
            self.vitals.begin_()
            self.said = set()
            self.listener.doing("")
        self.updates += 1
        return due

    def told(self, figures: dict[str, float]) -> dict[str, float]:
        """Return figures of an update with those of the round; an alarm is said once a round."""
        self.vitals.step_(figures["grad_norm"])
        found = {**self.figures, **self.vitals.figures()}
        names = health.sounding(found, self.bounds)
        for name in names:
            if name not in self.said:
                self.listener.say(health.line(name, found[name], self.bounds[name]))
        self.said |= set(names)
        return {**figures, **found, **{f"{name}_alarm": 1.0 for name in names}}

    def drawn_(self, episodes: Sequence[Episode]) -> None:
        """Count samples that are learned from by the age of their episodes, once for each."""
        earlier = {id(e) for e in self.rounds.episodes[: self.rounds.earlier]}
        now = self.updates - 1
        # What another run practised is as old as this one, and more.
        self.vitals.draw_([now - (0 if id(e) in earlier else e.version) for e in episodes])

    def _examined(self) -> dict[str, float]:
        """Return the health of the policy that has just practised, at states of that round."""
        latest, worth = self.rounds.episodes[-self.run.episodes :], self.rounds.worth
        earned = [float(w.reward.sum()) for w in worth[-len(latest) :]]
        episodes, places, latents = probe.states(latest)
        generator = torch.Generator().manual_seed(self.run.seed * 1000 + self.rounds.count)
        with torch.no_grad():
            decisions = self.gather(episodes, places)
            context = self.policy.contexts(decisions)
            found = probe.examine(self.policy, context, generator)
            found["health/kl"] = self.moved(decisions, context, latents)
        return {**found, "health/return_std": float(np.std(earned))}

    def moved(self, decisions: EpisodeBatch, context: Context, latents: torch.Tensor) -> float:
        """Return how far the policy is from the one that practice started from, in nats."""
        contexts = (context, self.begun.contexts(decisions))
        return probe.moved(self.policy, self.begun, contexts, latents)

    def gather(self, episodes: Sequence[Episode], queries: Sequence[np.ndarray]) -> EpisodeBatch:
        """Return decisions of episodes, with what the policy needs to have seen before them."""
        chunk, views = self.policy.config.chunk, self.policy.views
        if self.policy.remembers:
            return gather(episodes, queries, chunk, views)
        seen = [e.at[q] for e, q in zip(episodes, queries, strict=True)]
        return windows(episodes, seen, chunk, views)

    def moments(self, episode: Episode) -> EpisodeBatch:
        """Return all decisions of an episode, and its end."""
        if self.policy.remembers:
            return moments([episode], self.policy.views)
        return windows([episode], [episode.decided], 0, self.policy.views)

    def demonstrated(self, count: int, queries: int) -> EpisodeBatch:
        """Draw what practice holds on to, some decisions of which carry a loss."""
        if first := self._own_first():
            return self.practised(first, count, queries)
        demos, chunk = self.rounds.demos, self.policy.config.chunk
        if not self.policy.remembers:
            frames = self.rng.integers(len(demos.frames), size=count * queries)
            return batches.window_batch(demos, frames, chunk)
        chosen = self.rng.choice(len(demos.seq_episode), count)
        even = np.ones(len(demos.frames), np.float32)
        return batches.episode_batch(demos, chosen, chunk, queries, even, self.rng)

    def _own_first(self) -> list[tuple[Episode, np.ndarray]]:
        """Return what the start policy achieved by itself, if that is what to hold on to."""
        mine = slice(self.rounds.earlier, self.rounds.earlier + self.run.episodes)
        episodes, worth = self.rounds.episodes[mine], self.rounds.worth[mine]
        keeps: str = self.run.preserve
        if keeps == "auto":
            demos = self.rounds.demos
            data = regime.recorded(demos.scalars.get("success"), demos.step_offsets)
            keeps = regime.choose(regime.by_itself(episodes, worth), data)
        self.figures["practice/preserves_policy"] = float(keeps == "policy")
        if keeps == "data":
            return []
        pairs = zip(episodes, worth, strict=True)
        return [(e, e.lessons(True)) for e, one in pairs if one.success and e.own.all()]

    def lessons(self) -> list[tuple[Episode, np.ndarray]]:
        """Return practised episodes with something worth cloning, and its moments."""
        pairs = zip(self.rounds.episodes, self.rounds.worth, strict=True)
        found = [(episode, episode.lessons(one.success)) for episode, one in pairs]
        return [(episode, moments) for episode, moments in found if len(moments)]

    def practised(
        self, lessons: list[tuple[Episode, np.ndarray]], count: int, queries: int
    ) -> EpisodeBatch:
        """Draw `count` of `lessons`, some moments of which carry a loss."""
        chosen = [lessons[i] for i in self.rng.choice(len(lessons), count)]
        drawn = [some(moments, queries, self.rng) for _, moments in chosen]
        # A policy that remembers has seen its decisions alone: there moments are decisions.
        made = gather if self.policy.remembers else windows
        episodes = [episode for episode, _ in chosen]
        self.drawn_(episodes)
        return made(episodes, drawn, self.policy.config.chunk, self.policy.views)

    def shaken(self, batch: EpisodeBatch) -> EpisodeBatch:
        """Return what is to be cloned with its pictures shaken."""
        return batches.shaken(batch, self.run.shift_px, self.run.gain, self.rng)

    def evaluate(self, weights: dict[str, torch.Tensor], *, episodes: int, seed: int) -> Evaluation:
        """Return the success of weights in simulation."""
        averaged = copy.deepcopy(self.policy)
        averaged.load_state_dict(_of_policy(weights))
        return evaluate(
            averaged.eval(), self.run.task, episodes=episodes, seed=seed, backend=self.run.backend
        )

    def save(
        self, weights: dict[str, torch.Tensor], step: int, folder: Path,
        also: Callable[[Path], None],
    ) -> None:  # fmt: skip
        """Write a policy checkpoint."""
        words = tuple(sorted({*self.rounds.origin.instructions, *self.rounds.demos.tasks}))
        origin = checkpoint.provenance(configs.to_json(self.run.task), words, step)
        checkpoint.save(self.policy, origin, folder, _of_policy(weights), also)

    def check_saved(self, folder: Path) -> None:
        """Raise ValueError unless the checkpoint is whole."""
        checkpoint.load(folder)

    def state(self) -> dict[str, Any]:
        """Return where practice and the stream of data are."""
        return {
            "rng": self.rng.bit_generator.state, "updates": self.updates,
            "rounds": self.rounds.count, "start": _places(self.rounds.start),
            "figures": self.figures, "vitals": self.vitals.state(),
        }  # fmt: skip

    def restore_(self, state: dict[str, Any]) -> None:
        """Continue there.

        Raises:
            ValueError: the run was begun from something else: it would be another run from here on.
        """
        begun, now = state["start"], _places(self.rounds.start)
        for name in now:
            if begun[name] != now[name]:
                raise ValueError(f"begun with {name} {begun[name]}, now {now[name]}")
        self.rng.bit_generator.state = state["rng"]
        self.updates = state["updates"]
        self.figures = state["figures"]
        self.vitals.restore_(state["vitals"])
        self.rounds.restore_(state["rounds"])


def _places(start: Start) -> dict[str, Any]:
    """Return, as JSON types, what a run starts from."""
    return {
        "policy": str(start.policy), "demos": str(start.demos), "critic": str(start.critic),
        "earlier": [str(place) for place in start.earlier],
    }  # fmt: skip


def some(places: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return at most `count` of places i64 [m], ascending."""
    return np.sort(rng.choice(places, min(count, len(places)), replace=False))


def _of_policy(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k.removeprefix("policy."): v for k, v in weights.items() if k.startswith("policy.")}
