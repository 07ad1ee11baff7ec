"""LIBERO's 130 tasks of one Panda arm (MIT licence), as packaged by hf-libero; no expert.

The parts of the benchmark, "spatial", "object", "goal", "10" (long) and "90", and a task's number
within its part: "spatial-0". A task brings its instruction. Scenes and objects (200 MB) are not
part of the package: the adapter's error says how to fetch them. Actions and proprioception are
those of robosuite.
"""

import dataclasses

from sim.env_server.suite_installs import Environment
from sim.suites._arm import panda
from sim.suites._installed import InstalledConfig

ENVIRONMENT = Environment(
    pythons=("3.11",),
    requirements=(
        "absl-py==2.5.1", "bddl==1.0.1", "cloudpickle==3.1.2", "contourpy==1.3.3",
        "cycler==0.12.1", "easydict==1.14", "etils==1.15.0", "farama-notifications==0.0.6",
        "fonttools==4.68.0", "fsspec==2026.9.0", "future==1.0.0", "glfw==2.11.0",
        "gymnasium==1.4.0", "hf-libero==0.1.4", "kiwisolver==1.5.1", "llvmlite==0.50.0",
        "matplotlib==3.11.2", "mujoco==3.8.1", "numba==0.68.1", "numpy==2.4.6",
        "opencv-python-headless==4.12.0.88", "packaging==26.3", "pillow==13.0.0",
        "pyopengl==3.1.10", "pyparsing==3.3.3", "python-dateutil==4.0.0", "pyyaml==6.0.3",
        "robosuite==1.4.0", "scipy==1.17.1", "termcolor==3.3.0", "typing-extensions==4.16.0",
        "zipp==4.1.2",
    ),
    sample="spatial-0",
)  # fmt: skip

PARTS = {"spatial": 10, "object": 10, "goal": 10, "10": 10, "90": 90}
"""Part -> number of tasks."""
TASKS = {f"{part}-{i}": "" for part, count in PARTS.items() for i in range(count)}
"""Tasks; LIBERO provides the instruction when a task is opened."""

HAS_EXPERT = False
PACKAGE = "hf-libero"

ARM = panda("libero_panda")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(InstalledConfig):
    """A task of LIBERO."""

    name: str = "spatial-0"
    """Part and number of the task."""
