"""Which target runs a policy: the first, in the order the user gave, that decides here.

Why an earlier one was refused is kept and shown: what runs is never a surprise.
"""

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deploy.artefact import Artefact
from deploy.policy import DeployedPolicy
from vla.contracts import registry
from vla.contracts.config import PluginConfig
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation
from vla.opening import CHECKPOINT_TARGETS, load

TARGETS = "deploy.targets"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "onnxruntime-cuda": ("onnxruntime", {"providers": ("CUDAExecutionProvider",)}),
    "onnxruntime-tensorrt": (
        "onnxruntime", {"providers": ("TensorrtExecutionProvider", "CUDAExecutionProvider")},
    ),
}  # fmt: skip
"""Targets that are another one with certain settings."""
DEFAULT = ("onnxruntime",)
REHEARSED = 3
"""Decisions before a target counts as one that decides: the second one may be recorded as a CUDA
graph, the third one replays it."""


@dataclass(frozen=True, kw_only=True)
class Active:
    """A policy that decided, and who runs it."""

    policy: ArmPolicy
    """In evaluation mode."""
    target: str
    """Who runs it."""
    refused: tuple[str, ...]
    """Why earlier targets do not, a sentence each."""


def known() -> tuple[str, ...]:
    """Return the names of all targets, those of a checkpoint at the end."""
    return (*sorted((*registry.names(TARGETS), *VARIANTS)), *CHECKPOINT_TARGETS)


def check(names: tuple[str, ...]) -> None:
    """Raise ValueError unless these are targets, each named once."""
    for name in names:
        if name not in known():
            near = difflib.get_close_matches(name, known(), n=2, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise ValueError(f"unknown target {name!r}: {hint}known names are {', '.join(known())}")
        if names.count(name) > 1:
            raise ValueError(f"targets: got {name} twice; name each once, the first choice first")


def check_graphs(names: tuple[str, ...]) -> None:
    """Raise ValueError unless these are targets that run exported graphs, each named once."""
    check(names)
    wrong = [name for name in names if name in CHECKPOINT_TARGETS]
    if wrong:
        raise ValueError(
            f"targets: {wrong[0]} runs a checkpoint and has no engines; `vla bench policy` times "
            "it, and `vla parity` holds others against it"
        )


def config(name: str, threads: int) -> PluginConfig:
    """Return the settings of a target that runs exported graphs."""
    plugin, settings = VARIANTS.get(name, (name, {}))
    return registry.load(TARGETS, plugin).Config(threads=threads, **settings)


def first(names: tuple[str, ...], open_: Callable[[str], ArmPolicy]) -> Active:
    """Return the first policy that decides.

    Args:
        names: Targets in order.
        open_: Opens a target by name; a ValueError says why it does not.

    Raises:
        ValueError: none does; it says why, of each.
    """
    refused: list[str] = []
    for name in names:
        try:
            policy = open_(name)
            rehearse(policy)
        except ValueError as error:
            refused.append(f"{name}: {' '.join(str(error).split())}")
        else:
            return Active(policy=policy, target=name, refused=tuple(refused))
    if len(refused) == 1:
        raise ValueError(refused[0])
    raise ValueError(f"none of {len(refused)} targets decides here; {'; '.join(refused)}")


def open_first(
    artefact: Artefact, names: tuple[str, ...], threads: int, against: Path | None = None
) -> Active:
    """Return an exported policy as the first target runs it that can.

    Args:
        artefact: What was exported.
        names: Targets in order.
        threads: CPU threads each may use.
        against: The checkpoint it was exported from, for targets `torch` and `torch-compile`.

    Raises:
        ValueError: a name is no target's, or none of them decides.
    """

    def open_(name: str) -> ArmPolicy:
        if name not in CHECKPOINT_TARGETS:
            return DeployedPolicy(artefact, config(name, threads).open(artefact))
        if against is None:
            raise ValueError("runs the checkpoint, not the graphs; give it with --against")
        found = load(CHECKPOINT_TARGETS[name])(against, threads)
        artefact.check_origin(found.task, found.step)
        return found.policy

    check(names)
    return first(names, open_)


def rehearse(policy: ArmPolicy) -> None:
    """Let a policy decide on nothing, as one arm.

    Raises:
        ValueError: it cannot, or what it decides is not finite.
    """
    robot, state = policy.robot, policy.initial_state(1)
    camera = robot.cameras[0]
    shape = (1, len(robot.cameras), camera.height_px, camera.width_px, 3)
    for k in range(REHEARSED):
        obs = Observation(
            images=np.zeros(shape, np.uint8), image_ok=np.ones(shape[:2], np.bool_),
            proprio=np.array([robot.home], np.float32), task=("go",),
            time_s=np.array([k * policy.execute / robot.control_hz]),
        )  # fmt: skip
        noise = np.zeros((1, *policy.noise_shape), np.float32)
        chunk, state = policy.act(obs, state, noise)
        if not np.isfinite(np.asarray(chunk.values)).all():
            raise ValueError(
                "what it decides is not finite; export again, or name another target with --targets"
            )
