"""Torch to ONNX: the networks of a policy as graphs of fixed batch, one per stage of a decision.

Units, limits, noise schedule and loop stay outside (`deploy.policy`), so that the number of
denoising steps is chosen at run time; `decide` alone has them unrolled, for the least overhead.
"""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deploy import artefact as artefacts
from deploy.artefact import Graph, Port
from vla.nn.bank_ops import Slots
from vla.nn.context import Context, Retrieved, Settled
from vla.policies.vla import VLAPolicy, forget

OPSET = 20
"""Layer and group normalisation are one operator each from 17 and 18 on."""
FREE = {"words": {1: torch.export.Dim("words", min=1, max=artefacts.LONGEST)}}
"""Axes of inputs that may differ from call to call."""
STATE = ("slot_tokens", "slot_time", "slot_count")
NEW_STATE = tuple(f"new_{name}" for name in STATE)
RETRIEVED = ("retrieved_tokens", "retrieved")
CONTEXT = ("pooled", "context_tokens", "context_memory")
SEEN = ("images", "proprio", "words")
TIME = ("now", "first")


class Traced(NamedTuple):
    """A graph before it is one."""

    function: Callable[..., tuple[Tensor, ...]]
    """What it computes."""
    inputs: dict[str, Tensor]
    """An example of what it takes, by name."""
    outputs: tuple[str, ...]
    """Names of what it gives."""
    free: Mapping[str, dict[int, Any]] = FREE
    """Axes that may differ from call to call, by input."""


class _Module(nn.Module):
    """A function of tensors and the weights it needs, as the exporter wants it."""

    def __init__(self, owner: nn.Module, function: Callable[..., tuple[Tensor, ...]]) -> None:
        super().__init__()
        self.owner, self.function = owner, function

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return the function's outputs."""
        return self.function(*tensors)


@torch.no_grad()
def trace(policy: VLAPolicy, batch: int) -> dict[str, Traced]:
    """Return the graphs of a policy in evaluation mode, with examples of `batch` rows."""
    encode, memory, refine = _encoder(policy), _memory(policy), _refiner(policy)
    denoise = _denoiser(policy, policy.head.denoiser)
    state = policy.initial_state(batch)
    seen = dict(zip(SEEN, _example(policy, batch), strict=True))
    encoded = encode(*seen.values())
    cache = {f"cache_{i}": part for i, part in enumerate(encoded[1:])}
    tokens = {"tokens": encoded[0]}
    slots = dict(zip(STATE, (state.tokens, state.slot_time, state.slot_count), strict=True))
    time = {"now": torch.zeros(batch), "first": torch.ones(batch, dtype=torch.bool)}
    read = dict(zip(RETRIEVED, memory(*slots.values(), *tokens.values(), *time.values()),
                    strict=False))  # fmt: skip
    context = dict(zip(CONTEXT, refine(*cache.values(), *read.values()), strict=True))
    latent = {"latent": torch.zeros(batch, *policy.noise_shape[1:])}
    at = {"t": torch.zeros(batch, dtype=torch.int64)}
    clean = ("clean",)
    known = {"known": torch.zeros(batch, policy.head.chunk)} if policy.prefix else {}
    prefix = {"prefix": torch.zeros_like(latent["latent"]), **known} if known else {}
    found = {
        "encode": Traced(encode, seen, ("tokens", *cache)),
        "memory": Traced(memory, {**slots, **tokens, **time}, (*RETRIEVED, *NEW_STATE)),
        "refine": Traced(refine, {**cache, **read}, CONTEXT),
        "denoise": Traced(denoise, {**latent, **at, **context, **known}, clean),
        artefacts.WHOLE: Traced(
            decider(policy), {**seen, **slots, **time, **latent, **prefix}, (*clean, *NEW_STATE)
        ),
    }
    if policy.head.late is not None:
        late = _denoiser(policy, policy.head.late)
        found[artefacts.LATE] = Traced(late, {**latent, **at, **context, **known}, clean)
    return found


def export(owner: nn.Module, traced: Traced, path: Path) -> Graph:
    """Write one graph and return what it is; inputs that it makes no use of are left out.

    Args:
        owner: The module whose weights the graph holds.
        traced: The graph.
        path: Where to write.
    """
    dynamic = [traced.free.get(name) for name in traced.inputs]
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it complains of operators it has not
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
    program.save(str(path), external_data=False)
    return Graph(
        file=path.name, sha256=artefacts.sha256(path), inputs=_ports(used),
        outputs=_ports(model.graph.outputs),
    )  # fmt: skip


def _ports(values: Sequence[Any]) -> tuple[Port, ...]:
    return tuple(
        Port(
            name=value.name, dtype=str(value.dtype.numpy()),  # type: ignore[arg-type]
            shape=tuple(d if isinstance(d, int) else str(d.value) for d in value.shape),
        )
        for value in values
    )  # fmt: skip


def _example(policy: VLAPolicy, batch: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return images, proprioception and words."""
    camera = policy.robot.cameras[0]
    shape = (batch, len(policy.views), camera.height_px, camera.width_px, 3)
    words = torch.ones(batch, 4, dtype=torch.int64)
    return torch.zeros(shape, dtype=torch.uint8), torch.zeros(batch, policy.head.actions), words


def _encoder(policy: VLAPolicy) -> Callable[..., tuple[Tensor, ...]]:
    def encode(images: Tensor, proprio: Tensor, words: Tensor) -> tuple[Tensor, ...]:
        # TensorRT does nothing with bytes but make numbers of them.
        found = policy.backbone.encode(images.float(), proprio, words)
        return _own(found.tokens, *found.cache)

    return encode


def _memory(policy: VLAPolicy) -> Callable[..., tuple[Tensor, ...]]:
    """Reset, read, gate and write, in that order, as `VLAPolicy` does it."""

    def remember(
        tokens: Tensor, time: Tensor, count: Tensor, x: Tensor, now: Tensor, first: Tensor
    ) -> tuple[Tensor, ...]:
        slots = Slots(*(forget(part, first) for part in (tokens, time, count)))
        retrieved = policy.memory.read(slots, x, now)
        written = policy.memory.write(slots, x, now, torch.ones_like(now))
        return _own(*retrieved, *written)

    return remember


def _refiner(policy: VLAPolicy) -> Callable[..., tuple[Tensor, ...]]:
    def refine(*parts: Tensor) -> tuple[Tensor, ...]:
        return _own(*policy.backbone.refine(parts[:-2], Retrieved(*parts[-2:])))

    return refine


def _denoiser(policy: VLAPolicy, network: nn.Module) -> Callable[..., tuple[Tensor, ...]]:
    def denoise(latent: Tensor, t: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
        context, known = Context(*given[: len(CONTEXT)]), given[len(CONTEXT) :]
        return (policy.head.clean(network(latent, t, context, *known), latent, t),)

    return denoise


def decider(policy: VLAPolicy) -> Callable[..., tuple[Tensor, ...]]:
    """Return a whole decision as a function of `SEEN`, `STATE`, `TIME` and the latent; it gives
    the clean chunk and `NEW_STATE`.
    """
    encode, remember, refine = _encoder(policy), _memory(policy), _refiner(policy)

    def decide(*parts: Tensor) -> tuple[Tensor, ...]:
        seen, slots, time, latent = parts[:3], parts[3:6], parts[6:8], parts[8]
        settled = Settled(parts[9], parts[10], False) if policy.prefix else None
        tokens, *cache = encode(*seen)
        *retrieved, new_tokens, new_time, new_count = remember(*slots, tokens, *time)
        context = Context(*refine(*cache, *retrieved))
        for i in range(policy.head.config.steps):
            latent, _ = policy.head.step(i, latent, context, False, settled)
        return latent, new_tokens, new_time, new_count

    return decide


def _own(*parts: Tensor) -> tuple[Tensor, ...]:
    """What is handed through as it is would be no output of the graph's own, under its name."""
    return tuple(part + 0.0 for part in parts)
