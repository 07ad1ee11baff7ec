"""Chooses the inference target: the first of the user's list that runs the policy here.

The reason why each earlier one was refused is kept and shown.
"""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deploy.runtime.artefact import Artefact
from deploy.runtime.policy import DeployedPolicy
from vla.contracts import registry
from vla.contracts.config import PluginConfig
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation
from vla.runtime.policy_loader import CHECKPOINT_TARGETS, import_function
from vla.utils.arrays import to_numpy

TARGETS = "deploy.targets"
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "onnxruntime-cuda": ("onnxruntime", {"providers": ("CUDAExecutionProvider",)}),
    "onnxruntime-tensorrt": (
        "onnxruntime", {"providers": ("TensorrtExecutionProvider", "CUDAExecutionProvider")},
    ),
}  # fmt: skip
"""Names of a target with certain settings."""
DEFAULT = ("onnxruntime",)
TRIAL_DECISIONS = 3
"""Decisions that a target must make: the second may be recorded as a CUDA graph, the third replays
it."""


class SelectedPolicy(NamedTuple):
    """A policy, the target that runs it, and why earlier targets do not, a sentence each."""

    policy: ArmPolicy
    target: str
    refused: tuple[str, ...]


def target_names() -> tuple[str, ...]:
    """Return the names of all targets, those of a checkpoint last."""
    return (*sorted((*registry.names(TARGETS), *VARIANTS)), *CHECKPOINT_TARGETS)


def check_targets(names: tuple[str, ...]) -> None:
    """Raise ValueError unless these are targets, each named once."""
    known = target_names()
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=2, cutoff=0.5)
            hint = f"did you mean {' or '.join(near)}? " if near else ""
            raise ValueError(f"unknown target {name!r}: {hint}known names are {', '.join(known)}")
        if names.count(name) > 1:
            raise ValueError(f"targets: got {name} twice; name each once, the first choice first")


def check_graph_targets(names: tuple[str, ...]) -> None:
    """Raise ValueError unless these are targets that run exported graphs, each named once."""
    check_targets(names)
    wrong = [name for name in names if name in CHECKPOINT_TARGETS]
    if wrong:
        raise ValueError(
            f"targets: {wrong[0]} runs a checkpoint and has no engines; `vla bench policy` times "
            "it, and `vla verify-export` compares others with it"
        )


def config(name: str, threads: int) -> PluginConfig:
    """Return the settings of a target that runs exported graphs."""
    plugin, settings = VARIANTS.get(name, (name, {}))
    return registry.load(TARGETS, plugin).Config(threads=threads, **settings)


def select(names: tuple[str, ...], open_target: Callable[[str], ArmPolicy]) -> SelectedPolicy:
    """Return the policy on the first of some targets that runs it.

    `open_target` opens one by name; its ValueError says why it cannot.

    Raises:
        ValueError: none does; it gives the reason for each.
    """
    refused: list[str] = []
    for name in names:
        try:
            policy = open_target(name)
            try_out(policy)
        except ValueError as error:
            refused.append(f"{name}: {' '.join(str(error).split())}")
        else:
            return SelectedPolicy(policy, name, tuple(refused))
    if len(refused) == 1:
        raise ValueError(refused[0])
    raise ValueError(f"none of {len(refused)} targets runs the policy here; {'; '.join(refused)}")


def open_policy(
    artefact: Artefact, names: tuple[str, ...], threads: int,
    reference_checkpoint: Path | None = None,
) -> SelectedPolicy:  # fmt: skip
    """Return an exported policy on the first of some targets that runs it.

    Targets `torch` and `torch-compile` need its checkpoint.

    Raises:
        ValueError: a name is unknown, or no target runs the policy.
    """

    def open_target(name: str) -> ArmPolicy:
        if name not in CHECKPOINT_TARGETS:
            return DeployedPolicy(artefact, config(name, threads).open(artefact))
        if reference_checkpoint is None:
            raise ValueError(
                "runs the checkpoint, not the graphs; give it with --reference-checkpoint"
            )
        loaded = import_function(CHECKPOINT_TARGETS[name])(
            reference_checkpoint, threads, robot=artefact.manifest.robot.name
        )  # fmt: skip
        artefact.check_origin(loaded.task, loaded.step)
        return loaded.policy

    check_targets(names)
    try:
        return select(names, open_target)
    except ValueError as error:
        raise ValueError(f"{artefact.folder}: {error}") from error


def try_out(policy: ArmPolicy) -> None:
    """Let a policy act on black images, as one arm.

    Raises:
        ValueError: it cannot, or its actions are not finite.
    """
    robot, state = policy.robot, policy.initial_state(1)
    camera = robot.cameras[0]
    shape = (1, len(robot.cameras), camera.height_px, camera.width_px, 3)
    for k in range(TRIAL_DECISIONS):
        obs = Observation(
            images=np.zeros(shape, np.uint8), image_ok=np.ones(shape[:2], np.bool_),
            proprio=np.array([robot.home], np.float32), task=("go",),
            time_s=np.array([k * policy.n_action_steps / robot.control_hz]),
        )  # fmt: skip
        noise = np.zeros((1, *policy.noise_shape), np.float32)
        chunk, state = policy.act(obs, state, noise)
        if not np.isfinite(to_numpy(chunk.values)).all():
            raise ValueError(
                "its actions are not finite; export again, or name another target with --targets"
            )
