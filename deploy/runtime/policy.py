"""A policy that runs without torch: an exported one, driven from numpy.

It satisfies `vla.contracts.protocols.Policy`. Loop, noise schedule, units and limits are here; a
`GraphRunner` computes the networks.
"""

import functools
from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from tokenizers import Tokenizer

from deploy.runtime import artefact as artefacts
from deploy.runtime import chain
from deploy.runtime.artefact import CALIBRATED, Artefact
from vla.contracts.specs import RobotSpec
from vla.contracts.types import ActionChunk, Observation, PolicyState, Prefix
from vla.runtime import prefixes

UNKNOWN = 1
"""Token of an instruction without a single known word."""
CACHED = 256
"""Most instructions whose tokens are kept."""


@runtime_checkable
class GraphRunner(Protocol):
    """Runs the graphs of one artefact; its next run may overwrite what it returned."""

    def run(self, graph: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a graph by name."""
        ...


class DeployedPolicy:
    """An exported policy.

    Args:
        artefact: The exported policy.
        runner: Runs its graphs.
        num_inference_steps: Denoising steps; 0 for the artefact's own.
        split: Whether to run stage by stage where one graph computes the whole decision.

    Raises:
        ValueError: more steps than the noise schedule has.
    """

    def __init__(
        self, artefact: Artefact, runner: GraphRunner, *, num_inference_steps: int = 0,
        split: bool = False,
    ) -> None:  # fmt: skip
        manifest = artefact.manifest
        self.manifest, self.runner = manifest, runner
        self.robot: RobotSpec = manifest.robot
        self.n_action_steps, self.remembers = manifest.n_action_steps, manifest.remembers
        self.max_prefix_len = manifest.max_prefix_len
        exported_steps = manifest.num_inference_steps
        self.steps = num_inference_steps or exported_steps
        if manifest.ft_denoising_steps and self.steps != exported_steps:
            raise ValueError(
                f"num_inference_steps: got {self.steps}, expected {exported_steps}: the last "
                f"{manifest.ft_denoising_steps} have a network of their own; leave it out"
            )
        self.chain = chain.steps(manifest.path, manifest.alphas, self.steps)
        self.noise_shape = (self.steps + 1, manifest.chunk_size, len(self.robot.channels))
        self.whole = artefacts.ACT in manifest.graphs and self.steps == exported_steps and not split
        self.new_state = {n: artefacts.NEW_STATE.format(n) for n in manifest.state_shapes}
        self.views = ", ".join(self.robot.cameras[view].name for view in manifest.views)
        graphs = [manifest.graphs[name] for name in artefacts.STAGES]
        self.ports = {port.name: port for graph in graphs for port in graph.inputs}
        self.tokenize = InstructionTokenizer(artefact.tokenizer)
        self.scaling = {
            name: np.array(getattr(manifest.scaling, name), np.float32)
            for name in ("state_mean", "state_std", "action_center", "action_scale")
        }
        self.low = np.array(self.robot.low, np.float32)
        self.high = np.array(self.robot.high, np.float32)

    def initial_state(self, batch: int) -> PolicyState:
        """Return the empty memory of `batch` arms."""
        shapes = self.manifest.state_shapes
        return PolicyState(
            tensors={name: np.zeros((batch, *shape), np.float32) for name, shape in shapes.items()}
        )

    def act(
        self, obs: Observation, state: PolicyState, noise: np.ndarray, prefix: Prefix | None = None
    ) -> tuple[ActionChunk, PolicyState]:
        """See `Policy.act`; rows are decided in groups of the artefact's batch.

        Raises:
            ValueError: an array of another shape or type than its cameras, arm and memory have, or
                a prefix that it cannot continue.
        """
        if prefix is not None:
            shape = (len(obs.time_s), *self.noise_shape[1:])
            prefixes.check(prefix, self.max_prefix_len, shape)
        inputs = self.inputs(obs, state, noise, prefix)
        rows, batch = len(obs.time_s), self.manifest.batch
        self._check(inputs, rows)
        guided = prefix is not None and prefix.guided
        parts = [
            self._decide({k: group(v, i, batch) for k, v in inputs.items()}, guided)
            for i in range(0, rows, batch)
        ]
        outputs = {k: np.concatenate([part[k] for part in parts])[:rows] for k in parts[0]}
        values = outputs["clean"] * self.scaling["action_scale"] + self.scaling["action_center"]
        # NaN stays NaN: a limit would turn it into a command, which nothing would refuse.
        values = np.minimum(np.maximum(values, self.low), self.high)
        state = PolicyState(tensors={name: outputs[new] for name, new in self.new_state.items()})
        return ActionChunk(values=values, start_s=np.asarray(obs.time_s)), state

    def inputs(
        self, obs: Observation, state: PolicyState, noise: np.ndarray, prefix: Prefix | None = None
    ) -> dict[str, np.ndarray]:
        """Return the inputs of the graphs, by name."""
        time_s = np.asarray(obs.time_s, np.float64)
        proprio = np.asarray(obs.proprio, np.float32)
        latent = np.asarray(noise)[:, 0]
        actions, mask = np.zeros_like(latent), np.zeros(latent.shape[:2], np.float32)
        if prefix is not None:
            actions = np.asarray(prefix.values) - self.scaling["action_center"]
            actions, mask = actions / self.scaling["action_scale"], np.asarray(prefix.mask)
        return {
            "images": np.asarray(obs.images)[:, list(self.manifest.views)],
            "proprio": (proprio - self.scaling["state_mean"]) / self.scaling["state_std"],
            "token_ids": self.tokenize(obs.task),
            **{name: np.asarray(state[name]) for name in self.new_state},
            "step_index": (time_s * self.robot.control_hz).astype(np.float32),
            "is_first": time_s == 0, "latent": latent, "prefix": actions, "prefix_mask": mask,
        }  # fmt: skip

    def _check(self, inputs: dict[str, np.ndarray], rows: int) -> None:
        for name, value in inputs.items():
            port = self.ports.get(name)
            if port is None:
                continue  # a policy without memory takes none
            # Integers have no NaN: quantisation would make a command of it.
            finite = name == "proprio" or self.manifest.precision in CALIBRATED
            if finite and not np.isfinite(value).all():
                raise ValueError(f"{name}: is not finite; hold the arm, and observe again")
            shape = tuple(n if isinstance(n, int) else value.shape[-1] for n in port.shape[1:])
            if value.shape != (rows, *shape) or value.dtype != port.dtype:
                raise ValueError(
                    f"{name}: got {value.dtype} {value.shape}, expected {port.dtype} "
                    f"{(rows, *shape)}: {self.robot.name}'s cameras {self.views}, "
                    f"{len(self.robot.channels)} channels, and this policy's own memory and noise"
                )

    def _decide(self, inputs: dict[str, np.ndarray], guided: bool) -> dict[str, np.ndarray]:
        """Return copies of the clean chunk and the new memory of one group of rows."""
        whole = self.whole and not guided
        outputs = self._run(artefacts.ACT, inputs) if whole else self._run_stages(inputs, guided)
        return {name: outputs[name].copy() for name in ("clean", *self.new_state.values())}

    def _run_stages(self, inputs: dict[str, np.ndarray], guided: bool) -> dict[str, np.ndarray]:
        """Return everything that the stages computed; a prefix that guides bends the chain."""
        values = inputs
        for stage in artefacts.STAGES[:-1]:
            values = {**values, **self._run(stage, values)}
        latent, late = values["latent"], self.steps - self.manifest.ft_denoising_steps
        prefix, weight = values["prefix"], values["prefix_mask"][..., None]
        mask = np.zeros_like(values["prefix_mask"]) if guided else values["prefix_mask"]
        for i, at in enumerate(self.chain):
            latent = np.where(mask[..., None] > 0, prefix, latent)
            timestep = np.full(len(latent), at.timestep, np.int64)
            network = artefacts.STAGES[-1] if i < late else artefacts.DENOISE_FT
            step = {**values, "latent": latent, "timestep": timestep, "prefix_mask": mask}
            clean = self._run(network, step)["clean"]
            latent = chain.step(latent, clean + weight * (prefix - clean), at)
        return {**values, "clean": np.where(weight == 1, prefix, latent)}

    def _run(self, graph: str, values: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        ports = self.manifest.graphs[graph].inputs
        return self.runner.run(graph, {port.name: values[port.name] for port in ports})


class InstructionTokenizer:
    """Instructions to token ids; the latest `CACHED` are kept: clients choose instructions."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.ids = functools.lru_cache(CACHED)(lambda task: tokenizer.encode(task).ids or [UNKNOWN])

    def __call__(self, tasks: tuple[str, ...]) -> np.ndarray:
        """Return ids i64 [b, w], padded with 0."""
        rows = [self.ids(task) for task in tasks]
        width = max(len(row) for row in rows)
        return np.array([row + [0] * (width - len(row)) for row in rows], np.int64)


def group(values: np.ndarray, begin: int, count: int) -> np.ndarray:
    """Return `count` rows from `begin`; the last row is repeated where there are fewer."""
    rows = values[begin : begin + count]
    missing = count - len(rows)
    return np.concatenate([rows, np.repeat(rows[-1:], missing, 0)]) if missing else rows
