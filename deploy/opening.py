"""An exported policy as `vla eval` and other verbs open it: on the CPU, by ONNX Runtime."""

from pathlib import Path

from deploy import artefact as artefacts
from deploy.policy import DeployedPolicy
from deploy.targets import onnxruntime
from vla.opening import Opened


def open_(folder: Path, threads: int) -> Opened:
    """Return the policy in a folder that `vla export` wrote.

    Raises:
        ValueError: it is damaged.
    """
    found = artefacts.read(folder)
    engine = onnxruntime.Config(threads=threads).open(found)
    return Opened(
        policy=DeployedPolicy(found, engine), folder=folder.resolve(), task=found.manifest.task,
        step=found.manifest.step,
    )  # fmt: skip
