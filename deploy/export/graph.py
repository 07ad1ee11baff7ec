"""Torch to ONNX: the networks of a policy as graphs of fixed batch, one per stage of a decision.

Units, limits, noise schedule and loop stay outside (`deploy.runtime.policy`), so that the number of
denoising steps is chosen at run time. Graph `act` alone unrolls them, for the lowest overhead.
"""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from deploy.runtime import artefact as artefacts
from deploy.runtime.artefact import Graph, Port
from vla.contracts.types import Prefix
from vla.nn.context import Context, Retrieved
from vla.policies.vla import VLAPolicy, forget

OPSET = 20
"""Layer and group normalisation are one operator each from 17 and 18 on."""
DYNAMIC_AXES = {"token_ids": {1: torch.export.Dim("num_tokens", min=1, max=artefacts.MAX_LENGTH)}}
"""Axes of variable length, by input."""
RETRIEVED = ("retrieved_tokens", "retrieved")
CONTEXT = ("pooled", "context_tokens", "context_memory")
OBSERVATION = ("images", "proprio", "token_ids")
TIME = ("step_index", "is_first")


class Traced(NamedTuple):
    """A function of tensors to be exported as a graph."""

    function: Callable[..., tuple[Tensor, ...]]
    """The function."""
    inputs: dict[str, Tensor]
    """Example inputs, by name."""
    outputs: tuple[str, ...]
    """Names of the outputs."""
    dynamic_axes: Mapping[str, dict[int, Any]] = DYNAMIC_AXES
    """Axes of variable length, by input."""

    @torch.no_grad()
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return PyTorch's outputs by name; examples replace missing inputs, which are unused."""
        tensors = [
            torch.from_numpy(np.asarray(inputs[name])) if name in inputs else example
            for name, example in self.inputs.items()
        ]
        outputs = self.function(*tensors)
        return {name: x.numpy() for name, x in zip(self.outputs, outputs, strict=True)}


class _Module(nn.Module):
    """A function of tensors and the module that holds its weights, as the exporter needs them."""

    def __init__(self, owner: nn.Module, function: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.owner, self.function = owner, function

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the function's outputs."""
        return self.function(*tensors)


@torch.no_grad()
def trace(policy: VLAPolicy, batch: int) -> dict[str, Traced]:
    """Return the graphs of a policy in evaluation mode, with examples of `batch` rows."""
    encode, update, condition = _encoder(policy), _memory_update(policy), _conditioner(policy)
    denoise = _denoiser(policy, policy.head.denoiser)
    state = policy.initial_state(batch).tensors
    new_state = tuple(artefacts.NEW_STATE.format(name) for name in state)
    seen = dict(zip(OBSERVATION, _example(policy, batch), strict=True))
    encoded = encode(*seen.values())
    cache = {f"cache_{i}": part for i, part in enumerate(encoded[1:])}
    tokens = {"tokens": encoded[0]}
    time = {"step_index": torch.zeros(batch), "is_first": torch.ones(batch, dtype=torch.bool)}
    read = dict(zip(RETRIEVED, update(*state.values(), *tokens.values(), *time.values()),
                    strict=False))  # fmt: skip
    context = dict(zip(CONTEXT, condition(*cache.values(), *read.values()), strict=True))
    latent = {"latent": torch.zeros(batch, *policy.noise_shape[1:])}
    at = {"timestep": torch.zeros(batch, dtype=torch.int64)}
    clean = ("clean",)
    length = policy.noise_shape[1]
    mask = {"prefix_mask": torch.zeros(batch, length)} if policy.max_prefix_len else {}
    prefix = {"prefix": torch.zeros_like(latent["latent"]), **mask} if mask else {}
    graphs = {
        "encode": Traced(encode, seen, ("tokens", *cache)),
        "memory_update": Traced(update, {**state, **tokens, **time}, (*RETRIEVED, *new_state)),
        "condition": Traced(condition, {**cache, **read}, CONTEXT),
        "denoise": Traced(denoise, {**latent, **at, **context, **mask}, clean),
        artefacts.ACT: Traced(
            act_function(policy), {**seen, **state, **time, **latent, **prefix},
            (*clean, *new_state),
        ),
    }  # fmt: skip
    if policy.head.late is not None:
        late = _denoiser(policy, policy.head.late)
        graphs[artefacts.DENOISE_FT] = Traced(late, {**latent, **at, **context, **mask}, clean)
    return graphs


def export(owner: nn.Module, traced: Traced, path: Path) -> Graph:
    """Write one graph and return its description; unused inputs are left out.

    `owner` is the module that holds its weights.
    """
    dynamic = [traced.dynamic_axes.get(name) for name in traced.inputs]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it warns of missing operators
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program: Any = torch.onnx.export(
            _Module(owner, traced.function).eval(), tuple(traced.inputs.values()), dynamo=True,
            opset_version=OPSET, input_names=list(traced.inputs), output_names=list(traced.outputs),
            dynamic_shapes=(tuple(dynamic),), verbose=False, external_data=False,
        )  # fmt: skip
    model = program.model
    used = [value for value in model.graph.inputs if value.uses()]
    model.graph.inputs[:] = used
    strip_provenance(model)
    separate_names(model)
    program.save(str(path), external_data=False)
    return Graph(
        file=path.name, sha256=artefacts.sha256(path), inputs=_ports(used),
        outputs=_ports(model.graph.outputs),
    )  # fmt: skip


def strip_provenance(model: Any) -> None:
    """Remove what the exporter notes for debugging: stack traces with paths of this machine.

    Args:
        model: `onnx_ir.Model`; its nodes, values and graphs are changed in place.
    """
    graphs = [model.graph, *model.functions.values()]
    nodes = [node for graph in graphs for node in graph.all_nodes()]
    values = [value for node in nodes for value in (*node.inputs, *node.outputs) if value]
    values += [*model.graph.inputs, *model.graph.outputs, *model.graph.initializers.values()]
    for part in (model, *graphs, *nodes, *values):
        part.metadata_props.clear()
        part.doc_string = None


def separate_names(model: Any) -> None:
    """Rename what is computed inside under the name of an input or output of the graph, which the
    exporter of torch 2.11 lets happen.

    Args:
        model: `onnx_ir.Model`, changed in place.
    """
    outer = [*model.graph.inputs, *model.graph.outputs]
    taken, kept = {value.name for value in outer}, {id(value) for value in outer}
    inner = (value for node in model.graph.all_nodes() for value in node.outputs)
    for count, value in enumerate(v for v in inner if v.name in taken and id(v) not in kept):
        value.name = f"{value.name}_inner_{count}"


def _ports(values: Sequence[Any]) -> tuple[Port, ...]:
    return tuple(
        Port(
            name=value.name, dtype=str(value.dtype.numpy()),  # type: ignore[arg-type]
            shape=tuple(d if isinstance(d, int) else str(d.value) for d in value.shape),
        )
        for value in values
    )  # fmt: skip


def _example(policy: VLAPolicy, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, proprioception and token ids."""
    camera = policy.robot.cameras[0]
    shape = (batch, len(policy.views), camera.height_px, camera.width_px, 3)
    token_ids = torch.ones(batch, 4, dtype=torch.int64)
    proprio = torch.zeros(batch, policy.head.actions)
    return torch.zeros(shape, dtype=torch.uint8), proprio, token_ids


def _encoder(policy: VLAPolicy) -> Callable[..., tuple[Tensor, ...]]:
    def encode(images: Tensor, proprio: Tensor, token_ids: Tensor) -> tuple[Tensor, ...]:
        # TensorRT casts bytes to floats and has no other operator on them.
        arm = policy.padded(proprio)
        encoded = policy.backbone.encode(images.float(), arm, token_ids)
        return _outputs(encoded.tokens, *encoded.cache)

    return encode


def _memory_update(policy: VLAPolicy) -> Callable[..., tuple[Tensor, ...]]:
    """Reset, read, gate and write, in that order, as `VLAPolicy` does it."""
    names = tuple(policy.memory.state_shapes())

    def update(*parts: Tensor) -> tuple[Tensor, ...]:
        *state, x, step_index, is_first = parts
        before = {name: forget(part, is_first) for name, part in zip(names, state, strict=True)}
        retrieved = policy.memory.read(before, x, step_index)
        after = policy.memory.write(before, x, step_index, torch.ones_like(step_index))
        return _outputs(*retrieved, *(after[name] for name in names))

    return update


def _conditioner(policy: VLAPolicy) -> Callable[..., tuple[Tensor, ...]]:
    def condition(*parts: Tensor) -> tuple[Tensor, ...]:
        return _outputs(*policy.backbone.refine(parts[:-2], Retrieved(*parts[-2:])))

    return condition


def _denoiser(policy: VLAPolicy, network: nn.Module) -> Callable[..., tuple[Tensor, ...]]:
    def denoise(latent: Tensor, timestep: Tensor, *parts: Tensor) -> tuple[Tensor, ...]:
        context, mask = Context(*parts[: len(CONTEXT)]), parts[len(CONTEXT) :]
        output = network(latent, timestep, context, *mask)
        return (policy.head.clean(output, latent, timestep),)

    return denoise


def act_function(policy: VLAPolicy) -> Callable[..., tuple[Tensor, ...]]:
    """Return a whole decision as a function of tensors.

    It takes `OBSERVATION`, the tensors of the state, `TIME`, the latent and, if the policy
    continues prefixes, values and mask of one. It returns the clean chunk and the tensors of the
    new state.
    """
    encode, update, condition = _encoder(policy), _memory_update(policy), _conditioner(policy)
    count = len(policy.memory.state_shapes())

    def act(*parts: Tensor) -> tuple[Tensor, ...]:
        observation, state, rest = parts[:3], parts[3 : 3 + count], parts[3 + count :]
        time, latent = rest[:2], rest[2]
        prefix = Prefix(values=rest[3], mask=rest[4]) if policy.max_prefix_len else None
        tokens, *cache = encode(*observation)
        tokens, vector, *new_state = update(*state, tokens, *time)
        context = Context(*condition(*cache, tokens, vector))
        for i in range(policy.head.config.num_inference_steps):
            latent, _ = policy.head.step(i, latent, context, False, prefix)
        return latent, *new_state

    return act


def _outputs(*parts: Tensor) -> tuple[Tensor, ...]:
    """Return sums with 0: an input that is returned unchanged gets no output of its own name."""
    return tuple(part + 0.0 for part in parts)
