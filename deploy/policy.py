"""A policy that runs without torch: an exported one, driven from numpy through an engine.

It satisfies `vla.contracts.protocols.Policy`. Loop, noise schedule, units and limits are here; the
networks are the engine's.
"""

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

import numpy as np
from tokenizers import Tokenizer

from deploy import artefact as artefacts
from deploy import chain
from deploy.artefact import Artefact
from vla import prefixes
from vla.contracts.specs import RobotSpec
from vla.contracts.types import ActionChunk, Observation, PolicyState, Prefix

UNKNOWN = 1
"""Token of an instruction without a single known word."""
GIVEN = ("clean", "new_slot_tokens", "new_slot_time", "new_slot_count")
"""What a decision gives."""


@runtime_checkable
class Engine(Protocol):
    """Runs the graphs of one artefact; what it gives may be overwritten by its next run."""

    def run(self, graph: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return the outputs of a graph by name."""
        ...


class DeployedPolicy:
    """See the module's sentence.

    Args:
        artefact: What was exported.
        engine: Runs its graphs.
        steps: Denoising steps; 0 for those of the artefact.
        split: Whether to run stage by stage where one graph does the whole decision.

    Raises:
        ValueError: more steps than the noise schedule has.
    """

    def __init__(
        self, artefact: Artefact, engine: Engine, *, steps: int = 0, split: bool = False
    ) -> None:
        manifest = artefact.manifest
        self.manifest, self.engine = manifest, engine
        self.robot: RobotSpec = manifest.robot
        self.execute = manifest.execute
        self.steps = steps or manifest.steps
        if manifest.late and self.steps != manifest.steps:
            raise ValueError(
                f"steps: got {self.steps}; the last {manifest.late} of {manifest.steps} have a "
                "network of their own, and there is no other number"
            )
        self.chain = chain.steps(manifest.path, manifest.alphas, self.steps)
        whole = artefacts.WHOLE in manifest.graphs and self.steps == manifest.steps
        self.whole = whole and not split
        self.views = ", ".join(self.robot.cameras[view].name for view in manifest.views)
        graphs = [manifest.graphs[name] for name in artefacts.STAGES]
        self.ports = {port.name: port for graph in graphs for port in graph.inputs}
        self.text = Words(artefact.tokenizer)
        self.scaling = {
            name: np.array(getattr(manifest.scaling, name), np.float32)
            for name in ("state_mean", "state_std", "action_center", "action_scale")
        }
        self.low = np.array(self.robot.low, np.float32)
        self.high = np.array(self.robot.high, np.float32)

    @property
    def prefix(self) -> int:
        """Most actions of a prefix that it was trained to go on from; 0 for none."""
        return self.manifest.prefix

    @property
    def noise_shape(self) -> tuple[int, int, int]:
        """Shape of one row of `noise`: (denoising steps + 1, chunk, channels)."""
        return self.steps + 1, self.manifest.chunk, len(self.robot.channels)

    def initial_state(self, batch: int) -> PolicyState:
        """Return the empty memory of `batch` arms."""
        slots, tokens, width = self.manifest.memory
        return PolicyState(
            tokens=np.zeros((batch, slots, tokens, width), np.float32),
            slot_time=np.zeros((batch, slots), np.float32),
            slot_count=np.zeros((batch, slots), np.float32),
        )

    def act(
        self, obs: Observation, state: PolicyState, noise: np.ndarray, prefix: Prefix | None = None
    ) -> tuple[ActionChunk, PolicyState]:
        """See `Policy.act`; rows are decided in groups of the artefact's batch.

        Raises:
            ValueError: an array of another shape or type than its cameras, arm and memory have, or
                a prefix that it cannot go on from.
        """
        if prefix is not None:
            shape = (len(obs.time_s), *self.noise_shape[1:])
            prefixes.check(prefix, self.prefix, shape)
        inputs = self.inputs(obs, state, noise, prefix)
        rows, batch = len(obs.time_s), self.manifest.batch
        self._check(inputs, rows)
        guided = prefix is not None and prefix.guided
        found = [
            self._decide({k: group(v, i, batch) for k, v in inputs.items()}, guided)
            for i in range(0, rows, batch)
        ]
        whole = {k: np.concatenate([one[k] for one in found])[:rows] for k in found[0]}
        values = whole["clean"] * self.scaling["action_scale"] + self.scaling["action_center"]
        # Not a number stays one: whoever moves an arm has to refuse it.
        values = np.minimum(np.maximum(values, self.low), self.high)
        state = PolicyState(
            tokens=whole["new_slot_tokens"], slot_time=whole["new_slot_time"],
            slot_count=whole["new_slot_count"],
        )  # fmt: skip
        return ActionChunk(values=values, start_s=np.asarray(obs.time_s)), state

    def inputs(
        self, obs: Observation, state: PolicyState, noise: np.ndarray, prefix: Prefix | None = None
    ) -> dict[str, np.ndarray]:
        """Return what the graphs take, by name."""
        time_s = np.asarray(obs.time_s, np.float64)
        proprio = np.asarray(obs.proprio, np.float32)
        latent = np.asarray(noise)[:, 0]
        settled, weight = np.zeros_like(latent), np.zeros(latent.shape[:2], np.float32)
        if prefix is not None:
            settled = np.asarray(prefix.values) - self.scaling["action_center"]
            settled, weight = settled / self.scaling["action_scale"], np.asarray(prefix.weight)
        return {
            "images": np.asarray(obs.images)[:, list(self.manifest.views)],
            "proprio": (proprio - self.scaling["state_mean"]) / self.scaling["state_std"],
            "words": self.text(obs.task),
            "slot_tokens": np.asarray(state.tokens), "slot_time": np.asarray(state.slot_time),
            "slot_count": np.asarray(state.slot_count),
            "now": (time_s * self.robot.control_hz).astype(np.float32), "first": time_s == 0,
            "latent": latent, "prefix": settled, "known": weight,
        }  # fmt: skip

    def _check(self, inputs: dict[str, np.ndarray], rows: int) -> None:
        for name, value in inputs.items():
            port = self.ports.get(name)
            if port is None:
                continue  # a policy without memory asks for none
            if self.manifest.precision == "int8" and not np.isfinite(value).all():
                # Whole numbers know no NaN: what it would become is a command.
                raise ValueError(f"{name}: is not finite; hold the arm, and observe anew")
            shape = tuple(n if isinstance(n, int) else value.shape[-1] for n in port.shape[1:])
            if value.shape != (rows, *shape) or value.dtype != port.dtype:
                raise ValueError(
                    f"{name}: got {value.dtype} {value.shape}, expected {port.dtype} "
                    f"{(rows, *shape)}: {self.robot.name}'s cameras {self.views}, "
                    f"{len(self.robot.channels)} channels, and this policy's own memory and noise"
                )

    def _decide(self, known: dict[str, np.ndarray], guided: bool) -> dict[str, np.ndarray]:
        """Return the clean chunk and the new memory, of one group of rows, as the caller's own."""
        found = self._ask(known, guided)
        return {name: found[name].copy() for name in GIVEN}

    def _ask(self, known: dict[str, np.ndarray], guided: bool) -> dict[str, np.ndarray]:
        if self.whole and not guided:
            return self._run(artefacts.WHOLE, known)
        for stage in artefacts.STAGES[:-1]:
            known = {**known, **self._run(stage, known)}
        latent, late = known["latent"], self.steps - self.manifest.late
        settled, weight = known["prefix"], known["known"][..., None]
        told = np.zeros_like(known["known"]) if guided else known["known"]
        for i, at in enumerate(self.chain):
            latent = np.where(told[..., None] > 0, settled, latent)
            asked = {**known, "latent": latent, "t": np.full(len(latent), at.timestep, np.int64)}
            network = artefacts.STAGES[-1] if i < late else artefacts.LATE
            clean = self._run(network, {**asked, "known": told})["clean"]
            latent = chain.step(latent, clean + weight * (settled - clean), at)
        return {**known, "clean": np.where(weight == 1, settled, latent)}

    def _run(self, graph: str, known: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        ports = self.manifest.graphs[graph].inputs
        return self.engine.run(graph, {port.name: known[port.name] for port in ports})


class Words:
    """Instructions to token ids, remembering those it has seen."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.known: dict[str, list[int]] = {}

    def __call__(self, tasks: tuple[str, ...]) -> np.ndarray:
        """Return ids i64 [b, w], padded with 0."""
        for task in set(tasks) - set(self.known):
            self.known[task] = self.tokenizer.encode(task).ids or [UNKNOWN]
        width = max(len(self.known[task]) for task in tasks)
        rows = [self.known[task] for task in tasks]
        return np.array([row + [0] * (width - len(row)) for row in rows], np.int64)


def group(values: np.ndarray, begin: int, count: int) -> np.ndarray:
    """Return `count` rows from `begin` on; where there are fewer, the last one stands in."""
    found = values[begin : begin + count]
    missing = count - len(found)
    return np.concatenate([found, np.repeat(found[-1:], missing, 0)]) if missing else found
