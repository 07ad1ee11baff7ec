"""A checkpoint as an inference target: PyTorch, compiled or eager."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.exc import TorchDynamoException

from deploy.export import graph
from deploy.runtime import target_selection
from vla.checkpoint import open_policy as load_eager
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import ActionChunk, Observation, PolicyState, Prefix
from vla.policies.vla import VLAPolicy
from vla.runtime.policy_loader import CHECKPOINT_TARGETS, LoadedPolicy, import_function


class CompiledPolicy:
    """A policy with its networks compiled as one function; arrays may be numpy or torch.

    Args:
        policy: In evaluation mode, on its device.
    """

    def __init__(self, policy: VLAPolicy) -> None:
        self.policy = policy
        self.robot, self.n_action_steps = policy.robot, policy.n_action_steps
        self.remembers, self.max_prefix_len = policy.remembers, policy.max_prefix_len
        self.noise_shape, self.initial_state = policy.noise_shape, policy.initial_state
        # On a GPU launching the kernels takes longer than computing: they become one CUDA graph.
        mode = "reduce-overhead" if policy.device.type == "cuda" else "default"
        self.compiled = torch.compile(graph.act_function(policy), mode=mode)

    @torch.no_grad()
    def act(
        self, obs: Observation, state: PolicyState, noise: Any, prefix: Prefix | None = None
    ) -> tuple[ActionChunk, PolicyState]:
        """See `Policy.act`; with a guiding prefix the policy runs uncompiled.

        Raises:
            ValueError: this machine cannot compile it, or it cannot continue the prefix.
        """
        policy = self.policy
        if prefix is not None and (prefix.guided or not policy.max_prefix_len):
            return policy.act(obs, state, noise, prefix)
        time_s = self._tensor(obs.time_s)
        inputs = (
            self._tensor(obs.images)[:, policy.views],
            policy.normalizer.state(self._tensor(obs.proprio)),
            policy.text(obs.task, policy.device),
            *(self._tensor(state[name]) for name in policy.memory.state_shapes()),
            (time_s * policy.robot.control_hz).float(), time_s == 0,
            self._tensor(noise)[:, 0], *self._prefix(prefix, len(obs.time_s)),
        )  # fmt: skip
        try:
            # The next call overwrites the outputs of a CUDA graph.
            clean, *new_state = (part.clone() for part in self.compiled(*inputs))
        except TorchDynamoException as error:
            reason = next((line for line in str(error).splitlines() if line.strip()), "no reason")
            raise ValueError(
                f"PyTorch does not compile it: {reason}; install a C++ compiler, or take "
                "target torch"
            ) from error
        low, high = (
            torch.tensor(x, device=policy.device) for x in (policy.robot.low, policy.robot.high)
        )
        values = torch.minimum(torch.maximum(policy.normalizer.action_inverse(clean), low), high)
        tensors = dict(zip(policy.memory.state_shapes(), new_state, strict=True))
        return ActionChunk(values=values, start_s=time_s), PolicyState(tensors=tensors)

    def _prefix(self, prefix: Prefix | None, rows: int) -> tuple[Tensor, ...]:
        """Return the further inputs of a policy that was trained for prefixes."""
        if not self.policy.max_prefix_len:
            return ()
        if prefix is None:
            _, chunk, channels = self.noise_shape
            empty = torch.zeros(rows, chunk, channels, device=self.policy.device)
            return empty, empty[..., 0].contiguous()
        normalized = self.policy.normalized_prefix(prefix, rows)
        return normalized.values, normalized.mask

    def _tensor(self, value: Any) -> Tensor:
        return torch.as_tensor(value, device=self.policy.device)


def open_compiled(folder: Path, threads: int, device: str = "cpu", robot: str = "") -> LoadedPolicy:
    """Return a checkpoint, compiled; `robot` as in `vla.checkpoint.open_policy`.

    Raises:
        ValueError: there is none, it is damaged, or it cannot be compiled.
    """
    loaded = load_eager(folder, threads, device, robot)
    policy = loaded.policy
    if not isinstance(policy, VLAPolicy):
        raise ValueError(f"{folder}: is no policy that can be compiled; take target torch")
    return replace(loaded, policy=CompiledPolicy(policy), target="torch-compile")


def open_checkpoint(
    folder: Path, threads: int, targets: tuple[str, ...], device: str, robot: str
) -> LoadedPolicy:
    """Return a checkpoint on the first target that runs it.

    Raises:
        ValueError: a name is unknown, or no target runs the policy.
    """
    loaded: dict[str, LoadedPolicy] = {}

    def open_target(name: str) -> ArmPolicy:
        loaded[name] = import_function(CHECKPOINT_TARGETS[name])(folder, threads, device, robot)
        return loaded[name].policy

    target_selection.check_targets(targets)
    active = target_selection.select(targets, open_target)
    return replace(loaded[active.target], refused=active.refused)
