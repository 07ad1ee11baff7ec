"""Behavior cloning: the head's loss on demonstrations, from whole episodes or single decisions.

Whole episodes train the memory: every decision is written to it and a sample of them carries a
loss. Samples favor motion, because all decisions of a static arm teach the same.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from sim import vec_env
from training.core import pretrained
from training.core.config import TrainConfig
from training.core.distributed import SINGLE_PROCESS, Partition, ProcessGroup
from training.core.loop import Weights
from training.core.optimizer import Optimizer
from training.data import batches, features, prefetch, sampler
from training.evaluation.evaluate import Evaluation, MultiTaskEvaluation, evaluate
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts.config import PluginConfig, validate_min
from vla.contracts.specs import RobotSpec
from vla.contracts.types import EpisodeBatch
from vla.data import check
from vla.data.store import EpisodeStore, concatenate, load_episodes, statistics
from vla.nn.devices import half_precision
from vla.nn.normalize import NormalizationStatistics
from vla.policies import vla
from vla.policies.vla import Embodiment, VLAPolicy


@dataclass(frozen=True, kw_only=True)
class Config(PluginConfig):
    """Settings of behavior cloning."""

    sampling: Literal["sequence", "frame"] = "sequence"
    """Train on whole episodes (sequence), or on single decisions without a past (frame)."""
    batch_size: int = 32
    """Episodes (sequence) or decisions (frame) per update."""
    states_per_episode: int = 4
    """Decisions per episode that carry a loss; sequence only."""
    num_phase_offsets: int = 1
    """Decision grids per episode: the first starts with the episode, as on a robot, further ones
    at random offsets."""
    co_num_phase_offsets: tuple[int, ...] = ()
    """The same for each of --co-tasks; empty for the task's own number. With more than one, some
    chunks begin before an event that nobody can foresee, such as the end of a delay."""
    static_frame_weight: float = 0.05
    """Sampling weight of a decision without motion; 1 is the weight of full motion."""
    short_decisions: int = 0
    """Part of each batch comes from episodes of at most this many decisions; 0 for no such part."""
    short_fraction: float = 0.5
    """Size of that part, as a fraction of the batch."""
    random_shift_px: int = 0
    """Largest random shift of the images of an episode, or of a decision, in pixels."""
    brightness_jitter: float = 0.0
    """Largest relative change of their brightness."""

    grounding_loss_coef: float = 0.1
    """Weight of the loss on where the backbone's queries look, in data sets that say where the
    things are that an instruction names."""

    def __post_init__(self) -> None:
        validate_min(
            self, batch_size=1, states_per_episode=1, num_phase_offsets=1, static_frame_weight=0,
            short_decisions=0, random_shift_px=0, brightness_jitter=0, grounding_loss_coef=0,
        )  # fmt: skip
        if min(self.co_num_phase_offsets, default=1) < 1:
            raise ValueError(
                f"co_num_phase_offsets: got {self.co_num_phase_offsets}, expected at least 1 each"
            )

    def start(self, train: Any, data: Any) -> "BehaviorCloning":
        """Load the data and build a policy for them.

        Raises:
            ValueError: the data are damaged, empty or of another robot, or the run is no run of
                behavior cloning.
        """
        folders = (data,) if isinstance(data, Path) else data
        if not (isinstance(train, TrainConfig) and isinstance(folders, tuple)):
            raise ValueError("algo bc learns from demonstrations: use `vla train`")
        return BehaviorCloning(self, train, folders)


@runtime_checkable
class FitsStatistics(Protocol):
    """A policy that needs more statistics of a data set than `NormalizationStatistics`."""

    def fit_statistics(self, store: EpisodeStore) -> None:
        """Compute and keep them, before training."""
        ...


class BehaviorCloning:
    """Learner of behavior cloning; satisfies `training.core.loop.Learner`."""

    def __init__(self, config: Config, train: TrainConfig, data: tuple[Path, ...]) -> None:
        self.config, self.train = config, train
        robots = train.load_robots()
        groups = _one_for_each_task(train, data)
        stores = [
            [self._load(*part, robot) for part in zip(folders, _phases(train, config), strict=True)]
            for robot, folders in zip(robots, groups, strict=True)
        ]
        joined = [concatenate(parts) for parts in stores]
        self.instructions = tuple(
            sorted({text for store in joined for text in store.info.instructions})
        )
        first, *others = (
            Embodiment(robot=robot, statistics=normalisation(store))
            for robot, store in zip(robots, joined, strict=True)
        )
        self.policy_config = train.policy
        if others:
            self.policy_config = _widened(train, robots)
        torch.manual_seed(train.seed)  # noqa: TID251  torch's initialisers know no other source
        self.module = self._policy(robots, first, tuple(others), joined[0])
        if isinstance(self.module, VLAPolicy):
            self.module.grounding_loss_coef = config.grounding_loss_coef
        else:
            for name in ("pretrained_vision_encoder", "cache_frozen_features", "compile"):
                if getattr(train, name):
                    raise ValueError(
                        f"{name}: not for a policy of type {configs.type_name(train.policy)!r}; "
                        f"leave --{name.replace('_', '-')} out, or take --policy.type vla"
                    )
        if train.pretrained_vision_encoder is not None:
            pretrained.load_vision(self.module, train.pretrained_vision_encoder)
        self.features: batches.Features | None = None
        if train.cache_frozen_features:
            self.features = features.load(self.module, joined[0], _cache(data[0]))
        self.group = SINGLE_PROCESS
        self.rng = np.random.default_rng(train.seed)
        self.arms = self._arms(robots, stores, joined)
        self.prefetcher = prefetch.Prefetcher(self._prepare, self._streams)

    def _policy(
        self, robots: tuple[RobotSpec, ...], first: Embodiment, others: tuple[Embodiment, ...],
        store: EpisodeStore,
    ) -> Any:  # fmt: skip
        """Return a new policy, or that of `pretrained_path` as it is."""
        train = self.train
        if train.pretrained_path is not None:
            path = Path(train.pretrained_path)
            return pretrained.load_policy(path, self.policy_config, robots).to(train.device)
        words = train.policy.tokenizer(self.instructions)
        policy: Any = self.policy_config.build(first.robot, first.statistics, words)
        policy = policy.to(train.device)
        if isinstance(policy, FitsStatistics):
            policy.fit_statistics(store)
        if isinstance(policy, VLAPolicy):
            policy.co_embodiments = others
        return policy

    def _arms(
        self, robots: tuple[RobotSpec, ...], stores: list[list[EpisodeStore]],
        joined: list[EpisodeStore],
    ) -> list["_Arm"]:  # fmt: skip
        """Return what every arm's part of a batch comes from, the same number of rows for each."""
        train, floor = self.train, self.config.static_frame_weight
        sizes = sampler.shares(self.config.batch_size, [1.0] * len(robots))
        result = []
        for k, (robot, store) in enumerate(zip(robots, joined, strict=True)):
            policy = self.module if len(robots) == 1 else self.module.for_robot(robot.name)
            loss: Any = torch.compile(policy.bc_loss) if train.compile else policy.bc_loss
            motion = sampler.motion_weights(store, train.policy.chunk_size)
            stream = self._mixed_stream(stores[k], sizes[k], train.seed + 1000 * k)
            source: batches.Source = self.features
            if train.frames_on_device:
                source = batches.load_on_device(store, train.device)
            result.append(_Arm(store, stream, floor + (1 - floor) * motion, loss, source))
        return result

    def _load(self, folder: Path, phases: int, robot: RobotSpec) -> EpisodeStore:
        """Return the decisions of one data set."""
        train = self.train
        side = train.policy.image_px
        frames_only = self.config.sampling == "frame"
        store = load_episodes(
            folder, cameras=train.policy.cameras, image_hw=(side, side),
            stride=1 if frames_only else train.policy.n_action_steps, phase_seed=train.seed,
            phases=1 if frames_only else phases, cache_dir=_cache(folder),
        )  # fmt: skip
        check.fits_robot(store, robot, folder)
        return store

    def _mixed_stream(
        self, stores: list[EpisodeStore], batch_size: int, seed: int
    ) -> sampler.MixedStream:
        """Return the stream of decisions (frame) or sequences: of every data set its share, and of
        that the part of short ones.
        """
        config, frames_only = self.config, self.config.sampling == "frame"
        others, rest = len(stores) - 1, self.train.co_fraction
        weights = [1.0 - rest, *[rest / others] * others] if others else [1.0]
        limit = 0 if frames_only else config.short_decisions
        streams, begin = [], 0
        for store, size in zip(stores, sampler.shares(batch_size, weights), strict=True):
            lengths = store.seq_lengths
            count = len(store.frames if frames_only else lengths)
            # Of a task whose episodes are all short there is no shorter part.
            num_short = round(size * config.short_fraction) if limit else 0
            if others and lengths.max() <= limit:
                num_short = 0
            every = np.arange(begin, begin + count)
            streams.append(sampler.SequenceStream(every, max(size - num_short, 1), seed))
            if num_short:
                short = begin + sampler.no_longer_than(lengths, limit)
                streams.append(sampler.SequenceStream(short, num_short, seed + 1))
            begin, seed = begin + count, seed + 2
        return sampler.MixedStream(streams)

    def distribute(self, group: ProcessGroup) -> None:
        """Train together with other processes, each on its part of every batch.

        Raises:
            ValueError: the loss is compiled, or the policy trains in one process only.
        """
        if not isinstance(self.module, VLAPolicy):
            raise ValueError(
                f"policy {configs.type_name(self.policy_config)!r} trains in one process; start it "
                "without torchrun"
            )
        if self.train.compile:
            raise ValueError("compile: not with several processes; leave out --compile")
        if self.train.co_robots:
            raise ValueError("co_robots: not with several processes; start it without torchrun")
        self.group, self.arms[0].loss = group, group.wrap(_Loss(self.module))

    @property
    def partition(self) -> Partition | None:
        """This process's part of a batch; None for the whole batch."""
        return self.group.partition if self.group.is_distributed else None

    def collect(self) -> Any:
        """Return the next batch with augmented images, on its device."""
        return self.prefetcher.take()

    def _prepare(self) -> list[EpisodeBatch]:
        """Return every arm's part of the next batch."""
        config = self.config
        augmented = (
            batches.augment_batch(
                self._batch(arm), config.random_shift_px, config.brightness_jitter, self.rng
            )
            for arm in self.arms
        )
        return [prefetch.to_device(batch, self.train.device) for batch in augmented]

    def _batch(self, arm: "_Arm") -> EpisodeBatch:
        size = self.policy_config.chunk_size
        indices = arm.stream.next()
        if self.config.sampling == "frame":
            return batches.frame_batch(arm.store, indices, size, arm.source, self.partition)
        return batches.episode_batch(
            arm.store, indices, size, self.config.states_per_episode, arm.weights, self.rng,
            arm.source, self.partition,
        )  # fmt: skip

    def update(
        self, data: Any, optimizer: Optimizer, generator: torch.Generator
    ) -> dict[str, float]:
        """Make one update on the cloning loss, its mean over the arms."""
        count, losses, values = len(data), [], {"samples": 0.0}
        for arm, batch in zip(self.arms, data, strict=True):
            with half_precision(self.train.device):
                loss, parts = arm.loss(batch, generator)
            losses.append(loss)
            for name, value in parts.items():
                values[name] = values.get(name, 0.0) + float(value) / count
            values["samples"] += float(len(batch.loss_index))
        # Gradients are averaged over the processes; the loss of a part is summed.
        step = optimizer.step(self.group.partition.size * torch.stack(losses).mean())
        return {**self.group.all_reduce_sum(values), **step}

    def evaluate(self, weights: Weights, *, episodes: int, seed: int) -> Evaluation:
        """Return the success rate of weights in simulation, in every task with every arm."""
        averaged = self._copy()
        averaged.load_state_dict(weights)
        averaged = averaged.eval()
        tasks = [self.train.task, *map(vec_env.load_task, self.train.co_tasks)]
        robots = self.train.load_robots()
        policies = [averaged, *(averaged.for_robot(robot.name) for robot in robots[1:])]
        result, *further = (
            evaluate(policy, task, episodes=episodes, seed=seed)
            for policy in policies
            for task in tasks
        )
        return MultiTaskEvaluation.of(result, further) if further else result

    def _copy(self) -> Any:
        """Return a policy of the same configuration that takes part in no collective operation."""
        policy = self.module
        if not self.group.is_distributed:
            return copy.deepcopy(policy)
        other = policy.config.build(policy.robot, policy.statistics, policy.text.tokenizer)
        return other.to(self.train.device)

    def save(self, weights: Weights, step: int, folder: Path, also: Callable[[Path], None]) -> None:
        """Write a policy checkpoint."""
        task = configs.to_json(self.train.task)
        origin = checkpoint.provenance(task, self.instructions, step)
        checkpoint.save(self.module, origin, folder, weights, also)

    def check_saved(self, folder: Path) -> None:
        """Raise ValueError unless the checkpoint is complete."""
        checkpoint.load(folder)

    def state(self) -> dict[str, Any]:
        """Return the positions of the streams of data."""
        return self.prefetcher.state()

    def _streams(self) -> dict[str, Any]:
        streams = [part for arm in self.arms for part in arm.stream.state()]
        return {"rng": self.rng.bit_generator.state, "stream": streams}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue the streams of data."""
        self.prefetcher.drop()
        self.rng.bit_generator.state = state["rng"]
        position = state["stream"]
        if isinstance(position, dict):  # of a run that knew a single task
            position = [part for part in (position, state["short"]) if part is not None]
        for arm in self.arms:
            count = len(arm.stream.state())
            arm.stream.restore(position[:count])
            position = position[count:]


@dataclass
class _Arm:
    """Where one arm's part of every batch comes from, and what it is for."""

    store: EpisodeStore
    """The demonstrations of all tasks."""
    stream: sampler.MixedStream
    """Its decisions (frame) or sequences, in the order of training."""
    weights: np.ndarray
    """f32 [f], sampling weight of each decision."""
    loss: Any
    """The policy's cloning loss with this arm: batch and generator to loss and metrics."""
    source: batches.Source
    """What stands for the store's frames."""


def _cache(folder: Path) -> Path:
    return folder.parent / f"{folder.name}-cache"


def _one_for_each_task(train: TrainConfig, data: tuple[Path, ...]) -> list[tuple[Path, ...]]:
    """Return each arm's data sets; ValueError unless there is one for each arm and task."""
    tasks, arms = 1 + len(train.co_tasks), 1 + len(train.co_robots)
    if len(data) != tasks * arms:
        raise ValueError(
            f"dataset: got {len(data)} data sets for {tasks} tasks"
            f"{f' of {arms} robots' if arms > 1 else ''}; give one for the task and one for each "
            f"of --co-tasks in their order{', then those of each of --co-robots' * (arms > 1)}"
        )
    if len(data) > 1 and train.cache_frozen_features:
        raise ValueError(
            "cache_frozen_features: not with --co-tasks or --co-robots; leave one of them out"
        )
    return [data[k * tasks : (k + 1) * tasks] for k in range(arms)]


def _phases(train: TrainConfig, config: Config) -> tuple[int, ...]:
    """Return the decision grids per episode of each task; ValueError unless each has a number."""
    first, others = config.num_phase_offsets, config.co_num_phase_offsets
    count = len(train.co_tasks)
    if others and len(others) != count:
        raise ValueError(
            f"co_num_phase_offsets: got {len(others)} numbers for {count} co_tasks; give one for "
            "each of --co-tasks, or none"
        )
    return first, *(others or (first,) * count)


def _widened(train: TrainConfig, robots: tuple[RobotSpec, ...]) -> Any:
    """Return the policy's settings with channels enough for every arm."""
    policy: Any = train.policy
    if not isinstance(policy, vla.Config):
        raise ValueError(
            f"co_robots: not for a policy of type {configs.type_name(policy)!r}; leave "
            "--co-robots out, or take --policy.type vla"
        )
    channels = max(len(robot.channels) for robot in robots)
    return replace(policy, max_action_dim=max(policy.max_action_dim, channels))


class _Loss(nn.Module):
    """The loss as a module, for which the process group reduces gradients."""

    def __init__(self, policy: VLAPolicy) -> None:
        super().__init__()
        self.policy = policy

    def forward(self, batch: EpisodeBatch, generator: torch.Generator) -> Any:
        """Return `bc_loss`."""
        return self.policy.bc_loss(batch, generator)


def normalisation(store: EpisodeStore) -> NormalizationStatistics:
    """Return the statistics a policy normalises with."""
    state, action = statistics(store.states), statistics(store.actions)

    def numbers(values: np.ndarray | Tensor) -> tuple[float, ...]:
        return tuple(float(v) for v in values)

    return NormalizationStatistics(
        state_mean=numbers(state.mean), state_std=numbers(state.std),
        action_low=numbers(action.min), action_high=numbers(action.max),
    )  # fmt: skip
