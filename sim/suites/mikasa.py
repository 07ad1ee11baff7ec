"""MIKASA-Robo-VLA's tasks of a Panda that must remember (CognitiveAISystems, MIT licence).

Those in which one of several things is to be touched after a delay, in the control mode of the
benchmark: an action moves the hand by up to 10 cm an axis and turns it, 20 times a second. Tasks
with cups need assets that are no part of the package; the others have no expert here yet.
"""

import dataclasses
from typing import Any

from sim.env_server.suite_installs import Environment
from sim.suites._arm import arm, channels
from sim.suites._installed import InstalledConfig
from vla.contracts.config import validate_min
from vla.contracts.specs import Gripper

ENVIRONMENT = Environment(
    pythons=("3.11",),
    requirements=(
        "arm-pytorch-utilities==0.5.0", "certifi==2026.10.19.post1", "charset-normalizer==3.5.3",
        "cloudpickle==3.1.3", "contourpy==1.3.2", "cycler==0.12.1", "dacite==1.9.2",
        "farama-notifications==0.0.6", "filelock==4.3.1", "fonttools==4.68.0", "fsspec==2026.9.0",
        "gymnasium==0.29.1", "huggingface-hub==0.36.2", "idna==3.20", "imageio==2.38.1",
        "ipython==9.18.1", "jinja2==3.1.6", "kiwisolver==1.5.1", "lxml==6.1.3",
        "mani-skill==3.0.0b15", "markupsafe==3.0.4", "matplotlib==3.9.2",
        "mikasa-robo-suite==1.0.0", "mpmath==1.3.0", "networkx==3.6.1", "numpy==1.23.5",
        "nvidia-cublas-cu12==12.1.3.1", "nvidia-cuda-cupti-cu12==12.1.105",
        "nvidia-cuda-nvrtc-cu12==12.1.105", "nvidia-cuda-runtime-cu12==12.1.105",
        "nvidia-cudnn-cu12==8.9.2.26", "nvidia-cufft-cu12==11.0.2.54",
        "nvidia-curand-cu12==10.3.2.106", "nvidia-cusolver-cu12==11.4.5.107",
        "nvidia-cusparse-cu12==12.1.0.106", "nvidia-ml-py==13.615.71", "nvidia-nccl-cu12==2.19.3",
        "nvidia-nvjitlink-cu12==12.9.86", "nvidia-nvtx-cu12==12.1.105",
        "opencv-python==4.10.0.84", "packaging==26.4", "pillow==13.0.0", "platformdirs==4.14.8",
        "pygments==2.21.0", "pyparsing==3.3.3", "pyperclip==1.11.0", "python-dateutil==4.0.0",
        "pytorch-kinematics==0.7.4", "pytorch-seed==0.2.0", "pyyaml==6.0.4", "requests==2.34.2",
        "sapien==3.0.0b1", "scipy==1.15.3", "setuptools==80.9.0", "six==1.17.0", "sympy==1.14.0",
        "torch==2.2.1", "tqdm==4.70.1", "traitlets==5.16.1", "transforms3d==0.4.2",
        "trimesh==5.2.0", "typing-extensions==4.16.0", "urllib3==2.8.0",
    ),
    sample="RememberColor3-VLA-v0",
)  # fmt: skip

_COLOUR = "Observe the cube's color, wait, then touch the cube of the same color."
_SHAPE = "Observe the object's shape, wait, then touch the object of the same shape."
_BOTH = (
    "Observe the object's shape and color, wait, then touch the object of the same shape and color."
)
_NEW_COLOUR = (
    "Observe the cubes shown, wait, then touch the cube whose color was not present before."
)
_NEW_SHAPE = (
    "Observe the shapes shown, wait, then touch the object whose shape was not present before."
)
_NEW_BOTH = (
    "Observe the objects shown, wait, then touch the object whose shape and color combination was "
    "not present before."
)
_SIZES, _PAIRS = ("3", "5", "9"), ("3x2", "3x3", "5x3")

TASKS = {
    f"{kind}{size}{length}-VLA-v0": instruction
    for kind, sizes, lengths, instruction in (
        ("RememberColor", _SIZES, ("", "-Long"), _COLOUR),
        ("RememberShape", _SIZES, ("", "-Long"), _SHAPE),
        ("RememberShapeAndColor", _PAIRS, ("", "-Long"), _BOTH),
        ("FindImposterColor", _SIZES, ("",), _NEW_COLOUR),
        ("FindImposterShape", _SIZES, ("",), _NEW_SHAPE),
        ("FindImposterShapeAndColor", _PAIRS, ("",), _NEW_BOTH),
    )
    for size in sizes
    for length in lengths
}
"""Task -> instruction, in the benchmark's words."""

HAS_EXPERT = True
PACKAGE = "mikasa-robo-suite"
CONTROL_HZ = 20.0

ARM = arm(
    "mikasa_panda",
    channels(("dx", "dy", "dz", "droll", "dpitch", "dyaw", "grip"), CONTROL_HZ),
    CONTROL_HZ,
    Gripper(channel="grip", open=1.0, closed=-1.0),
    {"base": 90.0, "hand": 90.0},
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(InstalledConfig):
    """A task of MIKASA-Robo-VLA."""

    name: str = "RememberColor3-VLA-v0"
    """Name of the task (see `vla env list`)."""
    image_steps: int = 1
    """Control steps between two images, as of a slower camera. With `n_action_steps` of them a
    policy still sees a new image at every decision, and slow rendering takes less time."""

    def __post_init__(self) -> None:
        """Refuse an unknown task and a number out of range."""
        super().__post_init__()
        validate_min(self, image_steps=1)

    def options(self) -> dict[str, Any]:
        """Return task, instruction and rate of images."""
        return {**super().options(), "image_steps": self.image_steps}
