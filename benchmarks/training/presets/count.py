"""How much memory and how many operations an update and a decision take, without running them.

All of the policy's own code runs, on tensors that have shapes and no numbers (torch's fake
tensors), and `tally` counts. So checkpointing, adapters, autocast and what is kept for the backward
pass are what they are in a run. Attention keeps no matrix of weights, as in kernels of a GPU.
"""

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from benchmarks.training.presets import sketch
from benchmarks.training.presets.flop_memory_counter import Cost, Tally, size_of
from training.core.config import TrainConfig
from vla.contracts.config import PluginConfig
from vla.nn.pretrained import MIB, NET
from vla.policies.vla import VLAPolicy

ADAM = 2
"""Averages that Adam keeps of every weight that learns."""


@dataclass(frozen=True)
class Sizes:
    """Figures of one policy; bytes."""

    trained: int
    """Weights that learn."""
    frozen: int
    """Weights that do not."""
    weights: int
    """Of all weights and constants."""
    average: int
    """Of the averaged weights."""
    optimizer: int
    """Of Adam's averages."""
    gradients: int
    """Of the gradients; part of `step`."""
    step: int
    """Most that an update holds besides: activations, gradients, temporaries."""
    act: int
    """Most that a decision holds besides the weights."""
    step_cost: Cost
    """What an update computes."""
    act_cost: Cost
    """What a decision computes."""

    @property
    def training(self) -> int:
        """Of a training run, on one device."""
        return self.weights + self.average + self.optimizer + self.step

    @property
    def deciding(self) -> int:
        """Of a decision, batch 1."""
        return self.weights + self.act


def count(config: TrainConfig, decisions: int, model_config: Any = None) -> Sizes:
    """Return what a run's updates and its policy's decisions take.

    Args:
        config: The run's.
        decisions: Length of an episode.
        model_config: Configuration of its pretrained model; of the published one by default.

    Raises:
        ValueError: nothing is known of its pretrained model.
    """
    policy = sketch.policy(config, model_config)
    learns = [weight for weight in policy.parameters() if weight.requires_grad]
    trained, every = _number(learns), _number(policy.parameters())
    step = update(policy, config, decisions)
    acts = decide(sketch.policy(config, model_config))
    return Sizes(
        trained=trained, frozen=every - trained,
        weights=size_of([*policy.parameters(), *policy.buffers()]),
        average=averaged(policy, config.policy), optimizer=ADAM * size_of(learns),
        gradients=size_of(learns), step=step.peak, act=acts.peak, step_cost=step.cost,
        act_cost=acts.cost,
    )  # fmt: skip


def averaged(policy: VLAPolicy, config: PluginConfig) -> int:
    """Return the bytes of what the optimizer averages: what a checkpoint holds."""
    backbone: Any = config.backbone
    net = f"backbone.{NET}"
    learns = {name for name, weight in policy.named_parameters() if weight.requires_grad}
    state = policy.state_dict(keep_vars=True)
    frozen = [part for name, part in state.items() if name.startswith(net) and name not in learns]
    hidden = size_of(frozen)
    if getattr(backbone, "finetune_mode", "full") == "full" or hidden <= backbone.embed_mib * MIB:
        hidden = 0
    return size_of(state.values()) - hidden


def update(policy: VLAPolicy, config: TrainConfig, decisions: int) -> Tally:
    """Return what one update computes and holds; the policy has no numbers afterwards."""
    example = sketch.batch(policy, config, decisions)
    counted = example.decision.numpy()  # how many decisions there are is read off its numbers
    with _faked(policy) as mode:
        fakes = {
            field.name: mode.from_tensor(value)
            for field in dataclasses.fields(example)
            if isinstance(value := getattr(example, field.name), Tensor)
        }
        batch = dataclasses.replace(example, **{**fakes, "decision": counted})
        tally = Tally([*policy.parameters(), *policy.buffers(), *fakes.values()])
        policy.train()
        generator = torch.Generator().manual_seed(0)
        with tally:
            with torch.autocast("cpu", torch.bfloat16, enabled=config.device == "cuda"):
                loss, _ = policy.bc_loss(batch, generator)
            loss.backward()
    return tally


def decide(policy: VLAPolicy) -> Tally:
    """Return what one decision computes and holds; the policy has no numbers afterwards."""
    example = sketch.observation(policy.robot)
    with _faked(policy.eval()) as mode:
        state = policy.initial_state(1)
        noise = torch.zeros(1, *policy.noise_shape)
        obs = dataclasses.replace(example, **{
            field.name: mode.from_tensor(value)
            for field in dataclasses.fields(example)
            if isinstance(value := getattr(example, field.name), Tensor)
        })  # fmt: skip
        tensors = [*policy.parameters(), *policy.buffers(), *sketch.tensors_of(obs)]
        tally = Tally([*tensors, *sketch.tensors_of(state), noise])
        with tally:
            policy.act(obs, state, noise)
    return tally


@contextmanager
def _faked(policy: nn.Module) -> Iterator[FakeTensorMode]:
    """Take a policy's numbers away: its shapes compute as if they were on a device."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        for module in policy.modules():
            for name, weight in list(module.named_parameters(recurse=False)):
                bare = torch.empty(weight.shape, dtype=weight.dtype)
                setattr(module, name, nn.Parameter(bare, weight.requires_grad))
            for name, value in list(module.named_buffers(recurse=False)):
                setattr(module, name, mode.from_tensor(value))
        yield mode


def _number(weights: Any) -> int:
    return sum(weight.numel() for weight in weights)
