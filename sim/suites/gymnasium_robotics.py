"""Fetch's four tasks of Gymnasium-Robotics (Farama Foundation, MIT licence); no expert.

An action moves the hand, 25 times a second; proprioception is the hand's position in metres and
its opening in [0, 1]. The hands, mazes and kitchen of the package are left out.
"""

import dataclasses

from sim.env_server.suite_installs import Environment
from sim.suites._arm import arm, channels
from sim.suites._installed import InstalledConfig
from vla.contracts.specs import Gripper

ENVIRONMENT = Environment(
    pythons=("3.11", "3.12"),
    requirements=(
        "absl-py==2.5.1", "cloudpickle==3.1.2", "etils==1.15.0", "farama-notifications==0.0.6",
        "fsspec==2026.9.0", "glfw==2.11.0", "gymnasium==1.4.0", "gymnasium-robotics==1.4.2",
        "imageio==2.38.1", "jinja2==3.1.6", "markupsafe==3.0.4", "mujoco==3.8.1", "numpy==2.4.6",
        "packaging==26.3", "pettingzoo==1.27.0", "pillow==13.0.0", "pyopengl==3.1.10",
        "typing-extensions==4.16.0", "zipp==4.1.2",
    ),
    sample="FetchPush-v4",
)  # fmt: skip

TASKS = {
    "FetchPickAndPlace-v4": "pick up the block and hold it at the red mark",
    "FetchPush-v4": "push the block to the red mark",
    "FetchReach-v4": "move the hand to the red mark",
    "FetchSlide-v4": "hit the puck so that it slides to the red mark",
}
"""Task -> instruction."""

HAS_EXPERT = False
PACKAGE = "gymnasium-robotics"
CONTROL_HZ = 25.0

ARM = arm(
    "fetch",
    channels(("dx", "dy", "dz", "grip"), CONTROL_HZ),
    CONTROL_HZ,
    Gripper(channel="grip", open=1.0, closed=-1.0),
    {"corner": 45.0, "front": 45.0},
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(InstalledConfig):
    """A task of Gymnasium-Robotics."""

    name: str = "FetchPush-v4"
    """Name of the task (see `vla env list`)."""
