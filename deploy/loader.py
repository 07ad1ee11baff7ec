"""Loads exported policies and reward models for other packages."""

from pathlib import Path

from deploy.reward_model import artefact as reward_model_artefact
from deploy.reward_model.deployed import DeployedRewardModel
from deploy.runtime import artefact as artefacts
from deploy.runtime import target_selection
from deploy.targets import onnxruntime
from vla.runtime.policy_loader import LoadedPolicy


def open_policy(
    folder: Path, threads: int, targets: tuple[str, ...] = (),
    reference_checkpoint: Path | None = None,
) -> LoadedPolicy:  # fmt: skip
    """Return the policy in a folder that `vla export` wrote, on the first target that runs it.

    Without targets it is ONNX Runtime on the CPU; targets of a checkpoint need the checkpoint.

    Raises:
        ValueError: it is damaged, or no target runs it.
    """
    artefact = artefacts.read(folder)
    active = target_selection.open_policy(
        artefact, targets or target_selection.DEFAULT, threads, reference_checkpoint
    )
    return LoadedPolicy(
        policy=active.policy, folder=folder.resolve(), task=artefact.manifest.task,
        step=artefact.manifest.step, target=active.target, refused=active.refused,
    )  # fmt: skip


def open_reward_model(folder: Path, threads: int = 1) -> DeployedRewardModel:
    """Return the reward model in a folder that `vla export` wrote, on ONNX Runtime.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    artefact = reward_model_artefact.read(folder)
    return DeployedRewardModel(artefact, onnxruntime.Config(threads=threads).open(artefact))
