"""Whether a value function tells which rollouts will succeed, and of what part of the state.

`python -m benchmarks.rl.value_study runs/rl --task tabletop`

Fits `training.rl.value.chunk_value.ChunkValue` to the outcomes of a run's rollouts, once on the
whole state of the simulator and once on what it reads of a task with goals, and tests it on every
fifth rollout, which it never sees. A log loss that rises there while it falls in the others is
overfitting: actions that such a value calls better are not.
"""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
import tyro
from torch import Tensor, nn

from benchmarks import harness
from reward_models.metrics import ranks
from sim import vec_env
from training.core import runtime
from training.rl.experience import episode_store
from training.rl.experience.replay import Replay, replay
from training.rl.value.chunk_value import ACTION_SCALE, ChunkValue, ValueConfig, relevant
from vla import checkpoint, cli
from vla.contracts.config import validate_min

HELD_OUT = 5
"""One in so many rollouts is for the test."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Test value functions on rollouts of a run."""

    run: tyro.conf.Positional[Path]
    """Run of `vla train rl --algo.type asymmetric_ac` whose rollouts have the simulator's state."""
    task: str
    """Its task."""
    updates: tuple[int, ...] = (500, 1500)
    """After how many updates it is tested."""
    value: ValueConfig = field(default_factory=lambda: ValueConfig(state="simulator"))
    """The value function; its state is the simulator's."""
    seed: int = 0
    """Of weights and batches."""
    threads: int = 2
    """CPU threads."""

    def __post_init__(self) -> None:
        validate_min(self, seed=0, threads=1)
        if not self.updates or min(self.updates) < 1 or self.value.state != "simulator":
            raise ValueError(
                f"value_study: got updates {self.updates} and state {self.value.state!r}, expected "
                "numbers of updates from 1 and state 'simulator'"
            )


def main(argv: list[str]) -> int:
    """Print the table."""
    args = harness.read(Study, argv, "rl.value_study")
    runtime.prepare(args.threads)
    policy, _ = checkpoint.load_vla(args.run, "the study")
    with contextlib.closing(vec_env.make(args.task, 1, robot=policy.robot)) as env:
        names = vec_env.with_privileged_state(env).privileged_state_names
        time_limit = env.spec.max_episode_steps
    folder = args.run / "experience"
    episodes = episode_store.read_newest(folder, sys.maxsize)
    told = episodes[0].simulator_state.shape[1]
    if told != len(names):
        raise ValueError(
            f"{folder}: got rollouts with {told} numbers of the simulator's state, expected the "
            f"{len(names)} of {args.task}; give a run of asymmetric_ac on that task"
        )
    success = np.array([episode.success for episode in episodes])
    data = replay(policy, episodes, success.tolist(), time_limit)
    columns = {"all": range(len(names)), "arm and goal": relevant(names, policy.robot)}
    rows = [
        (f"{what}: {len(picked)} numbers", *row)
        for what, picked in columns.items()
        for row in measure(args, data, success, list(picked))
    ]
    titles = ("the value function reads", "updates", "log loss", "in training", "AUROC")
    harness.show(harness.table(f"{len(episodes)} rollouts", titles, rows))
    return 0


def measure(
    args: Study, data: Replay, success: np.ndarray, columns: list[int]
) -> Iterator[tuple[str, ...]]:
    """Fit a value function and yield, after each number of updates: that number, the log loss of
    rollouts that are held out and of the others, and the AUROC of success among the former.
    """
    generator = torch.Generator().manual_seed(args.seed)
    features, actions = data.features.shape[1], data.chunk[0].numel()
    measured = [True] * len(columns)
    value = ChunkValue(args.value, features, measured, actions, args.seed, columns)
    value.fit_states(*data.seen)
    states, outcome = value.states(*data.seen), torch.from_numpy(success[data.episode]).float()
    test = torch.from_numpy(data.episode % HELD_OUT == 0)
    train = torch.nonzero(~test)[:, 0]
    for step in range(1, max(args.updates) + 1):
        batch = train[torch.randint(len(train), (args.value.batch_size,), generator=generator)]
        value.update(states[batch], data.chunk[batch], outcome[batch])
        if step in args.updates:
            logit = logits(value, states, data.chunk)
            loss = nn.functional.binary_cross_entropy_with_logits(logit, outcome, reduction="none")
            counts = ranks.tally(logit[test].numpy(), outcome[test].numpy() > 0)
            yield (
                str(step), f"{loss[test].mean():.3f}", f"{loss[train].mean():.3f}",
                f"{ranks.auroc(*counts(np.ones(int(test.sum())))):.3f}",
            )  # fmt: skip


@torch.no_grad()
def logits(value: ChunkValue, states: Tensor, chunk: Tensor) -> Tensor:
    """Return the mean logit over the ensemble of chunks f32 [n, h, u] in states f32 [n, s]."""
    parts = zip(states.split(4096), chunk.split(4096), strict=True)
    return torch.cat([value.q(s, ACTION_SCALE * c).mean(0) for s, c in parts])


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.rl.value_study:main", sys.argv[1:]))
