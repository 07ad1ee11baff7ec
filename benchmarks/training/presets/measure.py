"""What updates and decisions take where they can be run: time, and the memory that was given out.

The policy is a real one with random weights: what it takes does not depend on their values. On a
CPU torch's profiler reports what its allocator gives out; on a GPU the allocator counts itself.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.training.presets import sketch
from benchmarks.training.presets.kernels import clock
from training.core.config import TrainConfig
from training.core.optimizer import Optimizer
from vla.nn.devices import half_precision
from vla.policies.vla import VLAPolicy

ROUNDS = 5
"""Timings, of which the median counts."""


@dataclass(frozen=True)
class Measured:
    """Figures of what ran; bytes are those held besides what was there before."""

    peak: int
    """Most bytes held at once."""
    seconds: float
    """Median."""


def update(config: TrainConfig, decisions: int, model_config: Any = None) -> Measured:
    """Measure updates of a run: the bytes of loss and gradients, the time of all of it."""
    policy = sketch.policy(config, model_config, bare=False).to(config.device).train()
    batch = sketch.batch(policy, config, decisions)
    optimizer = Optimizer(config.optimizer, policy, 1_000_000)
    generator = torch.Generator().manual_seed(0)

    def loss() -> torch.Tensor:
        with half_precision(config.device):
            return policy.bc_loss(batch, generator)[0]

    def descend() -> None:
        optimizer.step(loss())

    def differentiate() -> None:
        loss().backward()

    descend()
    optimizer.adam.zero_grad(set_to_none=True)
    peak = _peak(differentiate, config.device)
    return Measured(peak, _seconds(descend, config.device))


def decision(config: TrainConfig, model_config: Any = None) -> Measured:
    """Measure decisions, batch 1."""
    policy: VLAPolicy = sketch.policy(config, model_config, bare=False).to(config.device).eval()
    obs, state = sketch.observation(policy.robot), policy.initial_state(1)
    noise = torch.zeros(1, *policy.noise_shape)

    def act() -> None:
        policy.act(obs, state, noise)

    act()
    return Measured(_peak(act, config.device), _seconds(act, config.device))


def _seconds(run: Callable[[], None], device: str) -> float:
    times = []
    for _ in range(ROUNDS):
        begin = clock(device)
        run()
        times.append(clock(device) - begin)
    return statistics.median(times)


def _peak(run: Callable[[], None], device: str) -> int:
    """Return the most bytes that are held at once while something runs."""
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as trace:
        run()
    results: Any = trace.profiler
    events = [e for e in results.kineto_results.events() if e.name() == "[memory]"]
    live = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        live += event.nbytes()
        peak = max(peak, live)
    return peak
