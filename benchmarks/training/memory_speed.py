"""What does a memory cost? Time of one decision, and the sizes of its state and its weights.

`python -m benchmarks.training.memory_speed`

Every memory of `memory_study`, in the policy of the recipe `cue_colour`, after 0, 128, 1,024 and
10,000 decisions. Memories take turns call by call, so that other load affects all alike. Weights
are random and earlier decisions are random tokens: neither changes the time.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

from benchmarks import harness
from benchmarks.deploy.policy_latency import decide_s, observe
from benchmarks.training.memory_study import MEMORIES
from sim import vec_env
from training.commands import curve, train
from training.core import runtime
from training.core.config import TrainConfig
from vla import cli
from vla.contracts.config import validate_min
from vla.contracts.types import PolicyState
from vla.nn.normalize import NormalizationStatistics
from vla.nn.text import train_tokenizer
from vla.policies.vla import VLAPolicy
from vla.utils import files

WARM = 10
"""Turns before the clock counts."""
WIDTH = 140
"""Columns of the table."""
CONTROL = "none"
"""Times are also told relative to this memory's."""


@dataclass(frozen=True, kw_only=True)
class Study:
    """Time one decision with every memory, batch 1, after episodes of several lengths."""

    memories: tuple[str, ...] = tuple(MEMORIES)
    """Memories, by their names in `memory_study`."""
    decisions: tuple[int, ...] = (0, 128, 1024, 10_000)
    """Decisions before the timed one."""
    calls: int = 100
    """Timed decisions of each memory and length."""
    seed: int = 0
    """Seed of weights, images and noise."""
    threads: int = 1
    """CPU threads."""
    out: Path = Path("runs/memory_speed")
    """Folder of results.json."""

    def __post_init__(self) -> None:
        """Refuse unknown names and numbers out of range."""
        validate_min(self, calls=1, seed=0, threads=1)
        harness.check_names("memories", self.memories, MEMORIES)
        if min(self.decisions, default=-1) < 0:
            raise ValueError(f"decisions: got {self.decisions}, expected numbers of 0 or more")


def build(
    memory: str, seed: int, instructions: tuple[str, ...] = ("press the button",)
) -> VLAPolicy:
    """Return the recipe's policy with a memory and random weights, for the default arm."""
    words = ["--recipe", "cue_colour", "--policy.memory.type", *MEMORIES[memory], "--out", "-"]
    config: TrainConfig = train.parse(words).train
    robot = vec_env.load_robot(None)
    size = len(robot.channels)
    statistics = NormalizationStatistics(
        state_mean=(0.0,) * size, state_std=(1.0,) * size,
        action_low=(-1.0,) * size, action_high=(1.0,) * size,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # noqa: TID251  torch's initialisers know no other source
        policy = config.policy.build(robot, statistics, train_tokenizer(instructions))
    return policy.eval()


@torch.no_grad()
def after(policy: VLAPolicy, decisions: int, rng: np.random.Generator) -> PolicyState:
    """Return the state after so many decisions on random tokens."""
    state, memory = policy.initial_state(1).tensors, policy.memory
    mask, period = torch.ones(1), policy.n_action_steps
    for k in range(decisions):
        tokens = rng.standard_normal((1, memory.tokens, memory.width), np.float32)
        now = torch.full((1,), float(k * period))
        state = memory.write(state, torch.from_numpy(tokens), now, mask)
    return PolicyState(tensors=state)


def state_kb(policy: VLAPolicy) -> float:
    """Return the size of one episode's state, kilobytes."""
    return curve.state_bytes(policy) / 1000


def parameters(policy: VLAPolicy) -> int:
    """Return the number of the memory's own weights."""
    return sum(part.numel() for part in policy.memory.parameters())


def race(study: Study, policies: Mapping[str, VLAPolicy]) -> dict[str, list[float]]:
    """Return the median seconds of a decision after each length, by memory; they take turns."""
    rng = np.random.default_rng(study.seed)
    states = {
        (name, length): after(policy, length, rng)
        for name, policy in track(policies.items(), "episodes", transient=True)
        for length in study.decisions
    }
    seconds: dict[tuple[str, int], list[float]] = {cell: [] for cell in states}
    cells = list(states)
    for turn in track(range(WARM + study.calls), "taking turns", transient=True):
        for name, length in cells[turn % len(cells) :] + cells[: turn % len(cells)]:
            policy = policies[name]
            period_s = policy.n_action_steps / policy.robot.control_hz
            obs = observe(policy.robot, length, period_s, rng)
            noise = rng.standard_normal((1, *policy.noise_shape), np.float32)
            took, _ = decide_s(policy, obs, states[name, length], noise)
            seconds[name, length].append(took)
    return {
        name: [float(np.median(seconds[name, length][WARM:])) for length in study.decisions]
        for name in policies
    }


def rows(
    policies: Mapping[str, VLAPolicy], medians: Mapping[str, Sequence[float]]
) -> list[tuple[str, ...]]:
    """Return a memory, its sizes, its times, the last relative to the first, and the last relative
    to that without a memory.
    """
    control = medians.get(CONTROL)
    return [
        (
            name, f"{parameters(policies[name]):,}", f"{state_kb(policies[name]):.1f}",
            *(f"{1e3 * median:.2f}" for median in found), f"{found[-1] / found[0]:.2f}",
            f"{found[-1] / control[-1]:.2f}" if control else "",
        )
        for name, found in medians.items()
    ]  # fmt: skip


def main(argv: list[str]) -> int:
    """Time all memories and print the table."""
    study = harness.read(Study, argv, "training.memory_speed")
    runtime.prepare(study.threads)
    policies = {name: build(name, study.seed) for name in study.memories}
    medians = race(study, policies)
    columns = (
        "memory", "weights", "state, kB", *(f"{n:,} decisions, ms" for n in study.decisions),
        "last / first", f"last / {CONTROL}",
    )  # fmt: skip
    title = f"one decision, batch 1, median of {study.calls}, {study.threads} thread(s)"
    harness.show(harness.table(title, columns, rows(policies, medians)), WIDTH)
    study.out.mkdir(parents=True, exist_ok=True)
    found = {
        name: {
            "seconds": medians[name],
            "state_kb": state_kb(policy),
            "weights": parameters(policy),
        }
        for name, policy in policies.items()
    }
    files.write_text(study.out / "results.json", json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(cli.run("benchmarks.training.memory_speed:main", sys.argv[1:]))
