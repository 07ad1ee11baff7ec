"""Gym-aloha's two tasks of two ViperX arms (Hugging Face, Apache licence 2.0); no expert.

An action is where each joint should be, 50 times a second; proprioception is where they are. The
package says that actions lie in [-1, 1], but its own demonstrations go beyond: the ranges here are
those of the joints.
"""

import dataclasses

from sim.env_server.suite_installs import Environment
from sim.suites._arm import arm, channels
from sim.suites._installed import InstalledConfig
from vla.contracts.specs import Channel, Gripper

ENVIRONMENT = Environment(
    pythons=("3.11", "3.12"),
    requirements=(
        "absl-py==2.5.1", "certifi==2026.10.18", "charset-normalizer==3.5.2", "cloudpickle==3.1.2",
        "dm-control==1.0.41", "dm-env==1.6", "dm-tree==0.1.10", "etils==1.15.0",
        "farama-notifications==0.0.6", "fsspec==2026.9.0", "glfw==2.11.0", "gym-aloha==0.1.5",
        "gymnasium==1.4.0", "idna==3.20", "imageio==2.38.1", "labmaze==1.0.6", "lxml==6.1.3",
        "mujoco==3.8.1", "numpy==2.4.6", "packaging==26.3", "pillow==13.0.0", "protobuf==7.36.2",
        "pyopengl==3.1.10", "pyparsing==3.3.3", "requests==2.34.2", "scipy==1.17.1",
        "tqdm==4.70.1", "typing-extensions==4.16.0", "urllib3==2.8.0", "wrapt==2.5.2",
        "zipp==4.1.2",
    ),
    sample="transfer_cube",
)  # fmt: skip

TASKS = {
    "insertion": "insert the peg into the socket",
    "transfer_cube": "pick up the red cube with the right arm and hand it to the left arm",
}
"""Task -> instruction."""

HAS_EXPERT = False
PACKAGE = "gym-aloha"
CONTROL_HZ = 50.0

SOURCE = (
    "position: the joint ranges of the suite's model; velocity: Dynamixel XM540-W270 data sheet, "
    "30 rpm unloaded; acceleration and jerk: our choice, no more than the simulator bears"
)
JOINTS = {
    "waist": (-3.14158, 3.14158), "shoulder": (-1.85005, 1.25664), "elbow": (-1.76278, 1.6057),
    "forearm_roll": (-3.14158, 3.14158), "wrist_angle": (-1.8675, 2.23402),
    "wrist_rotate": (-3.14158, 3.14158),
}  # fmt: skip
"""Joint -> range in radians."""
HOME = (0.0, -0.96, 1.16, 0.0, -0.3, 0.0, 0.1)
"""Where the suite begins."""


def _joint(name: str, low: float, high: float) -> Channel:
    return Channel(
        name=name, unit="rad", low=low, high=high, velocity=3.14, acceleration=30.0, jerk=1000.0,
        source=SOURCE,
    )  # fmt: skip


def _side(side: str) -> tuple[Channel, ...]:
    joints = (_joint(f"{side}_{name}", *limits) for name, limits in JOINTS.items())
    return (*joints, *channels((f"{side}_gripper",), CONTROL_HZ, low=0.0))


ARM = arm(
    "aloha",
    (*_side("left"), *_side("right")),
    CONTROL_HZ,
    Gripper(channel="right_gripper", open=1.0, closed=0.0),
    {"top": 78.0, "angle": 78.0},
    home=HOME * 2,
)
"""Both arms; `gripper` is the right one's, which grasps first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(InstalledConfig):
    """A task of gym-aloha."""

    name: str = "transfer_cube"
    """Name of the task (see `vla env list`)."""
