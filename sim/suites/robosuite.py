"""Robosuite's tasks of one Panda arm (ARISE initiative, MIT licence); no expert.

An action moves and turns the hand, 20 times a second (OSC_POSE); proprioception is the hand's
position in metres, its rotation from pointing down in radians, and its opening in [0, 1]. Tasks of
two arms and `Wipe`, whose hand has no fingers, are left out.
"""

import dataclasses

from sim.env_server.suite_installs import Environment
from sim.suites._arm import panda
from sim.suites._installed import InstalledConfig

ENVIRONMENT = Environment(
    pythons=("3.11",),
    requirements=(
        "absl-py==2.5.1", "etils==1.15.0", "fsspec==2026.9.0", "glfw==2.11.0",
        "llvmlite==0.50.0", "mujoco==3.8.1", "numba==0.68.1", "numpy==1.26.4",
        "opencv-python-headless==4.11.0.86", "packaging==26.3", "pillow==13.0.0",
        "pyopengl==3.1.10", "robosuite==1.5.2", "scipy==1.17.1", "termcolor==3.3.0",
        "tqdm==4.70.1", "typing-extensions==4.16.0", "zipp==4.1.2",
    ),
    sample="Lift",
)  # fmt: skip

TASKS = {
    "Door": "open the door",
    "Lift": "lift the cube",
    "NutAssembly": "put each nut on its peg",
    "NutAssemblyRound": "put the round nut on the round peg",
    "NutAssemblySquare": "put the square nut on the square peg",
    "PickPlace": "put every object into its bin",
    "PickPlaceBread": "put the bread into its bin",
    "PickPlaceCan": "put the can into its bin",
    "PickPlaceCereal": "put the cereal box into its bin",
    "PickPlaceMilk": "put the milk carton into its bin",
    "Stack": "put the red cube on the green cube",
}
"""Task -> instruction."""

HAS_EXPERT = False
PACKAGE = "robosuite"

ARM = panda("robosuite_panda")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(InstalledConfig):
    """A task of robosuite."""

    name: str = "Lift"
    """Name of the task (see `vla env list`)."""
