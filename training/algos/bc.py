"""Behaviour cloning: the head's loss on demonstrations, whole episodes or single decisions.

Whole episodes train the memory: every decision is written, some carry a loss. Where to spend the
loss is decided by motion: an arm that is held still teaches the same thing at every decision.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from sim import vec_env
from training.config import TrainConfig
from training.data import batches, features, sampler
from training.evaluate import Evaluation, evaluate
from training.optimiser import Optimiser
from training.team import ALONE, Part, Team
from training.vision import borrow_
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig, check_least
from vla.contracts.types import EpisodeBatch
from vla.data import check
from vla.data.store import EpisodeStore, load_episodes
from vla.normalize import Statistics
from vla.policies.vla import VLAPolicy

Weights = dict[str, Tensor]
"""A state dict."""


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of behaviour cloning."""

    unit: Literal["episodes", "windows"] = "episodes"
    """Learn from whole episodes, or from single decisions without a past."""
    batch: int = 32
    """Episodes (or decisions) per update."""
    queries: int = 4
    """Decisions per episode that carry a loss; episodes only."""
    phases: int = 1
    """Decision grids per episode: the one that starts with it, as on a robot, then drawn phases."""
    still_weight: float = 0.05
    """Weight with which a decision without motion is drawn, where full motion is 1."""
    short_decisions: int = 0
    """Part of each batch is drawn from episodes of at most so many decisions; 0 for none."""
    short_share: float = 0.5
    """Size of that part."""
    shift_px: int = 0
    """Largest shift of the pictures of an episode, or of a decision, drawn anew every time."""
    gain: float = 0.0
    """Largest change of their brightness, as a share."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, batch=1, queries=1, phases=1, still_weight=0, short_decisions=0,
                    shift_px=0, gain=0)  # fmt: skip

    def start(self, train: Any, data: Any) -> "BehaviourCloning":
        """Load the data and make a policy for it.

        Raises:
            ValueError: the data are damaged, empty or of another robot, or the run is not one of
                cloning.
        """
        if not (isinstance(train, TrainConfig) and isinstance(data, Path)):
            raise ValueError("algo bc learns from demonstrations: use `vla train`")
        return BehaviourCloning(self, train, data)


@runtime_checkable
class Measuring(Protocol):
    """A policy that takes more figures of a data set than `Statistics`."""

    def measure_(self, store: EpisodeStore) -> None:
        """Take them, before it learns."""
        ...


class BehaviourCloning:
    """Satisfies `training.loop.Learner`."""

    def __init__(self, config: Config, train: TrainConfig, data: Path) -> None:
        self.config = config
        self.policy_config = train.policy
        robot = vec_env.load_arm(train.task, train.robot)
        side = train.policy.image_px
        beside = data.parent / f"{data.name}-cache"
        windows = config.unit == "windows"
        self.store = load_episodes(
            data, cameras=train.policy.cameras, image_hw=(side, side),
            stride=1 if windows else train.policy.execute, phase_seed=train.seed,
            phases=1 if windows else config.phases, cache_dir=beside,
        )  # fmt: skip
        check.fits_robot(self.store, robot, data)
        self.instructions = tuple(sorted(set(self.store.tasks)))
        torch.manual_seed(train.seed)  # noqa: TID251  torch's initialisers know no other source
        self.train = train
        self.module = train.policy.build(
            robot, normalisation(self.store), train.policy.tokenizer(self.instructions)
        ).to(train.device)
        if isinstance(self.module, Measuring):
            self.module.measure_(self.store)
        if not isinstance(self.module, VLAPolicy):
            _check_baseline(train)
        if train.vision_from is not None:
            borrow_(self.module, train.vision_from)
        self.features: batches.Features | None = None
        if train.features == "cache":
            self.features = features.load(self.module, self.store, beside)
        self.loss: Any = (
            torch.compile(self.module.bc_loss) if train.compile else self.module.bc_loss
        )
        self.team = ALONE
        chunk = train.policy.chunk
        motion = sampler.motion_weights(self.store, chunk)
        self.weights = config.still_weight + (1 - config.still_weight) * motion
        self.rng = np.random.default_rng(train.seed)
        count = len(self.store.frames if windows else self.store.seq_episode)
        limit = 0 if windows else config.short_decisions
        few = round(config.batch * config.short_share) if limit else 0
        stream = sampler.SequenceStream
        self.stream = stream(np.arange(count), max(config.batch - few, 1), train.seed)
        self.short = None
        if few:
            short = sampler.no_longer_than(self.store.seq_lengths, limit)
            self.short = stream(short, few, train.seed + 1)

    def share_(self, team: Team) -> None:
        """Learn together with other processes, each from its share of every batch.

        Raises:
            ValueError: the loss is compiled.
        """
        if not isinstance(self.module, VLAPolicy):
            raise ValueError(
                f"policy {configs.type_name(self.policy_config)!r} learns in one process; start it "
                "without torchrun"
            )
        if self.train.compile:
            raise ValueError("compile: not with several processes; leave out --compile")
        self.team, self.loss = team, team.wrapped(_Loss(self.module))

    @property
    def part(self) -> Part | None:
        """Which share of a batch is its own; None for all of it."""
        return self.team.part if self.team.together else None

    def collect(self) -> Any:
        """Return the next batch, its pictures shaken."""
        batch, config = self._batch(), self.config
        return batches.shaken(batch, config.shift_px, config.gain, self.rng)

    def _batch(self) -> EpisodeBatch:
        chunk = self.policy_config.chunk
        chosen = self.stream.next()
        if self.config.unit == "windows":
            return batches.window_batch(self.store, chosen, chunk, self.features, self.part)
        if self.short is not None:
            chosen = np.concatenate([chosen, self.short.next()])
        return batches.episode_batch(
            self.store, chosen, chunk, self.config.queries, self.weights, self.rng, self.features,
            self.part,
        )  # fmt: skip

    def update(
        self, data: Any, optimiser: Optimiser, generator: torch.Generator
    ) -> dict[str, float]:
        """Descend the cloning loss once."""
        with torch.autocast(
            generator.device.type, torch.bfloat16, enabled=generator.device.type == "cuda"
        ):
            loss, parts = self.loss(data, generator)
        figures = optimiser.step_(self.team.part.size * loss)  # they become the mean of all
        values = {name: float(value) for name, value in parts.items()}
        values = self.team.summed({**values, "samples": float(len(data.query))})
        return {**values, **figures}

    def evaluate(self, weights: Weights, *, episodes: int, seed: int) -> Evaluation:
        """Return the success of weights in simulation."""
        averaged = self._another()
        averaged.load_state_dict(weights)
        return evaluate(averaged.eval(), self.train.task, episodes=episodes, seed=seed)

    def _another(self) -> Any:
        """Return a policy like this one, which has no part in what processes do together."""
        own = self.module
        if not self.team.together:
            return copy.deepcopy(own)
        other = own.config.build(own.robot, own.statistics, own.text.tokenizer)
        return other.to(self.train.device)

    def save(self, weights: Weights, step: int, folder: Path, also: Callable[[Path], None]) -> None:
        """Write a policy checkpoint."""
        task = configs.to_json(self.train.task)
        origin = checkpoint.provenance(task, self.instructions, step)
        checkpoint.save(self.module, origin, folder, weights, also)

    def check_saved(self, folder: Path) -> None:
        """Raise ValueError unless the checkpoint is whole."""
        checkpoint.load(folder)

    def state(self) -> dict[str, Any]:
        """Return where the streams of data are."""
        short = None if self.short is None else self.short.state()
        return {"rng": self.rng.bit_generator.state, "stream": self.stream.state(), "short": short}

    def restore_(self, state: dict[str, Any]) -> None:
        """Continue the streams of data."""
        self.rng.bit_generator.state = state["rng"]
        self.stream.restore_(state["stream"])
        if self.short is not None:
            self.short.restore_(state["short"])


class _Loss(nn.Module):
    """The loss as a module: what gradients of several processes are gathered of."""

    def __init__(self, policy: VLAPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, batch: EpisodeBatch, generator: torch.Generator) -> Any:
        """Return `bc_loss`."""
        return self.policy.bc_loss(batch, generator)


def _check_baseline(train: TrainConfig) -> None:
    """Raise ValueError if a policy that is not our own is to be trained as only that can be."""
    asked = {"vision_from": train.vision_from is not None, "features": train.features == "cache",
             "compile": train.compile}  # fmt: skip
    for name, is_asked in asked.items():
        if is_asked:
            raise ValueError(
                f"{name}: not for a policy of type {configs.type_name(train.policy)!r}; leave "
                f"--{name.replace('_', '-')} out, or take --policy.type vla"
            )


def normalisation(store: EpisodeStore) -> Statistics:
    """Return the statistics a policy normalises with."""
    state, action = store.state_statistics(), store.action_statistics()

    def numbers(values: np.ndarray | Tensor) -> tuple[float, ...]:
        return tuple(float(v) for v in values)

    return Statistics(
        state_mean=numbers(state.mean), state_std=numbers(state.std),
        action_low=numbers(action.min), action_high=numbers(action.max),
    )  # fmt: skip
