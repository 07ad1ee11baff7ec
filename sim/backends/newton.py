"""Our tasks on Newton, NVIDIA's engine under Isaac Lab 3, in its own interpreter; CPU or GPU."""

import dataclasses
from typing import Any, Literal

from sim.engines import hosted
from sim.env_server import suite_installs
from sim.env_server.suite_installs import Environment
from vla.contracts import registry
from vla.contracts.config import validate_min

ENVIRONMENT = Environment(
    pythons=("3.11", "3.12"),
    requirements=(
        "absl-py==2.5.1", "etils==1.15.0", "fsspec==2026.9.0", "glfw==2.11.0", "mujoco==3.17.0",
        "mujoco-warp==3.17.0", "newton==1.8.0", "numpy==2.4.6", "pyopengl==3.1.10",
        "typing-extensions==4.16.0", "warp-lang==1.19.0", "websockets==17.4", "zipp==4.1.2",
    ),
    sample="reach",
)  # fmt: skip

PACKAGE = "newton"
TASKS = registry.names("sim.tasks")
HAS_EXPERT = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(hosted.ExternalEngineConfig):
    """How the environments are run."""

    randomize: bool = True
    """Whether episodes differ in colour, light, camera pose, friction and mass; light does not
    where Newton renders."""
    python: str = ""
    """The interpreter that has Newton; empty: that of `vla env add newton`."""
    device: str = ""
    """A device of Warp, such as "cpu" or "cuda:0"; empty: the first GPU, or the processor."""
    renderer: Literal["engine", "mujoco"] = "mujoco"
    """MuJoCo in this process, with the same images as the other backends; or Newton's ray tracer
    ("engine"), all worlds at once, with slightly different colours."""
    contacts: int = 64
    """Contacts that each world may have. Newton's own estimate counts those of the scene at rest:
    too few for a hand that holds something."""
    constraints: int = 400
    """Rows of constraints that each world may have: up to ten for each contact."""
    step_timeout_s: float = 300.0
    """Seconds that a step may take; the first compiles kernels, which takes a minute."""

    def __post_init__(self) -> None:
        validate_min(self, contacts=1, constraints=1)

    def interpreter(self) -> str:
        """Return `python`, or that of `vla env add newton`."""
        return self.python or str(suite_installs.interpreter("newton"))

    def engine_options(self) -> dict[str, Any]:
        """Return the adapter's options besides the description of the scene."""
        return {**super().engine_options(), "nconmax": self.contacts, "njmax": self.constraints}
