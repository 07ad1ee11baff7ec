"""Exported policies, by the first target that runs them, and critics, as other verbs open them."""

from pathlib import Path

from deploy import artefact as artefacts
from deploy import order
from deploy.critic import artefact as critics
from deploy.critic.deployed import DeployedCritic
from deploy.targets import onnxruntime
from vla.opening import Opened


def open_(
    folder: Path, threads: int, targets: tuple[str, ...] = (), against: Path | None = None
) -> Opened:
    """Return the policy in a folder that `vla export` wrote.

    Args:
        folder: Where it is.
        threads: CPU threads it may use.
        targets: Who may run it, in order; () for ONNX Runtime on the CPU.
        against: The checkpoint it was exported from, for targets of a checkpoint.

    Raises:
        ValueError: it is damaged, or no target runs it.
    """
    found = artefacts.read(folder)
    active = order.open_first(found, targets or order.DEFAULT, threads, against)
    return Opened(
        policy=active.policy, folder=folder.resolve(), task=found.manifest.task,
        step=found.manifest.step, target=active.target, refused=active.refused,
    )  # fmt: skip


def open_critic(folder: Path, threads: int = 1) -> DeployedCritic:
    """Return the critic in a folder that `vla export` wrote, as a monitor uses it.

    Raises:
        ValueError: there is none, or it is damaged.
    """
    found = critics.read(folder)
    return DeployedCritic(found, onnxruntime.Config(threads=threads).open(found))
