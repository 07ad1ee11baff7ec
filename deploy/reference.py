"""A checkpoint as a target, by PyTorch: what other targets are held against, or compiled."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from deploy import graph, order
from vla.checkpoint import open_ as open_eager
from vla.contracts.protocols import ArmPolicy
from vla.contracts.specs import RobotSpec
from vla.contracts.types import ActionChunk, Observation, PolicyState, Prefix
from vla.opening import CHECKPOINT_TARGETS, Opened, load
from vla.policies.vla import VLAPolicy


class CompiledPolicy:
    """A policy whose networks are one compiled function; arrays may be numpy or torch.

    Args:
        policy: In evaluation mode, on its device.

    Raises:
        ValueError: the policy is steered.
    """

    def __init__(self, policy: VLAPolicy) -> None:
        if policy.steering is not None:
            raise ValueError("the policy is steered, which is not compiled; take target torch")
        self.policy = policy
        # On a GPU the calls of a decision cost more than what they compute: they become one graph.
        mode = "reduce-overhead" if policy.device.type == "cuda" else "default"
        self.decide = torch.compile(graph.decider(policy), mode=mode)

    @property
    def robot(self) -> RobotSpec:
        """The arm it was trained for."""
        return self.policy.robot

    @property
    def execute(self) -> int:
        """Actions executed before the next decision."""
        return self.policy.execute

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of one row of `noise`: (denoising steps + 1, chunk, channels)."""
        return self.policy.noise_shape

    @property
    def prefix(self) -> int:
        """Most actions of a prefix that it was trained to go on from; 0 for none."""
        return self.policy.prefix

    def initial_state(self, batch: int) -> PolicyState:
        """Return the empty memory of `batch` arms."""
        return self.policy.initial_state(batch)

    @torch.no_grad()
    def act(
        self, obs: Observation, state: PolicyState, noise: Any, prefix: Prefix | None = None
    ) -> tuple[ActionChunk, PolicyState]:
        """See `Policy.act`; where a prefix guides, from outside the networks, nothing is compiled.

        Raises:
            ValueError: this machine cannot compile it, or it cannot go on from the prefix.
        """
        mine = self.policy
        if prefix is not None and (prefix.guided or not mine.prefix):
            return mine.act(obs, state, noise, prefix)
        time_s = self._tensor(obs.time_s)
        given = (
            self._tensor(obs.images)[:, mine.views],
            mine.normalizer.state(self._tensor(obs.proprio)),
            mine.text(obs.task, mine.device),
            *(self._tensor(part) for part in (state.tokens, state.slot_time, state.slot_count)),
            (time_s * mine.robot.control_hz).float(), time_s == 0,
            self._tensor(noise)[:, 0], *self._prefix(prefix, len(obs.time_s)),
        )  # fmt: skip
        try:
            # The next call overwrites what a recorded graph gave.
            clean, *memory = (part.clone() for part in self.decide(*given))
        except TorchDynamoException as error:
            said = next((line for line in str(error).splitlines() if line.strip()), "no reason")
            raise ValueError(
                f"PyTorch does not compile it: {said}; install a C++ compiler, or take target torch"
            ) from error
        low, high = (torch.tensor(x, device=mine.device) for x in (mine.robot.low, mine.robot.high))
        values = torch.minimum(torch.maximum(mine.normalizer.action_inverse(clean), low), high)
        tokens, slot_time, slot_count = memory
        return ActionChunk(values=values, start_s=time_s), PolicyState(
            tokens=tokens, slot_time=slot_time, slot_count=slot_count
        )

    def _prefix(self, prefix: Prefix | None, rows: int) -> tuple[Tensor, ...]:
        """Return what a policy that was trained for prefixes takes beside the rest."""
        if not self.policy.prefix:
            return ()
        if prefix is None:
            _, chunk, channels = self.noise_shape
            empty = torch.zeros(rows, chunk, channels, device=self.policy.device)
            return empty, empty[..., 0].contiguous()
        return self.policy.settled(prefix, rows)[:2]

    def _tensor(self, value: Any) -> Tensor:
        return torch.as_tensor(value, device=self.policy.device)


def open_(folder: Path, threads: int, device: str = "cpu") -> Opened:
    """Return a checkpoint, compiled; `vla.checkpoint.open_` returns it as it is.

    Raises:
        ValueError: as there, or it is steered.
    """
    found = open_eager(folder, threads, device)
    policy = found.policy
    if not isinstance(policy, VLAPolicy):
        raise ValueError(f"{folder}: is no policy that can be compiled; take target torch")
    return replace(found, policy=CompiledPolicy(policy), target="torch-compile")


def open_first(folder: Path, threads: int, targets: tuple[str, ...], device: str) -> Opened:
    """Return a checkpoint as the first target runs it that can.

    Raises:
        ValueError: a name is no target's, or none of them decides.
    """
    found: dict[str, Opened] = {}

    def opened(name: str) -> ArmPolicy:
        found[name] = load(CHECKPOINT_TARGETS[name])(folder, threads, device)
        return found[name].policy

    order.check(targets)
    active = order.first(targets, opened)
    return replace(found[active.target], refused=active.refused)
