"""Environments of Isaac Lab: "isaac_lab_env/ID", in the interpreter where Isaac Lab is installed.

All rows are in one simulator, which steps and resets them together and draws their episodes from
one generator: (seed, index) does not reproduce an episode. There is no expert. The environment
defines the arm: channels a0, a1 and so on.
"""

import dataclasses
import os
from pathlib import Path
from typing import Any

from sim.suites._suite import SuiteConfig, arm_of
from vla.contracts.specs import RobotSpec

PYTHON = "MNEME_ISAAC_LAB_PYTHON"
"""Environment variable with the interpreter if `interpreter` is empty."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(SuiteConfig):
    """Which environment, and settings that it does not define; the name is ID, or MODULE:ID."""

    interpreter: str = ""
    """Python in which Isaac Lab is installed; empty for $MNEME_ISAAC_LAB_PYTHON."""
    path: str = ""
    """Folder of MODULE, if it is not an installed package."""
    instruction: str = ""
    """Instruction; required."""
    device: str = "cuda:0"
    """"cuda:N" or "cpu", for physics."""
    camera_px: int = 96
    """Height and width of the resized images."""
    cameras: tuple[str, ...] = ()
    """Terms of the observation, or cameras of the scene; empty for all uint8 terms or, without
    any, all cameras."""
    proprio: str = ""
    """Term of the observation with the arm's state; empty to guess."""
    success_term: str = "success"
    """Termination term, or key of `extras`, that says success; "none" where nothing does."""
    low: float = -1.0
    """Lower limit of actions without limits."""
    high: float = 1.0
    """Upper limit of actions without limits."""
    startup_timeout_s: float = 900.0
    """Seconds that the simulator may take to start when only its arm is read."""

    def __post_init__(self) -> None:
        """Refuse an empty name and numbers out of range."""
        if not self.name:
            raise ValueError(
                "task: got 'isaac_lab_env', expected isaac_lab_env/ID, such as "
                "isaac_lab_env/Isaac-Lift-Cube-Franka-v0"
            )
        if not 8 <= self.camera_px <= 1024:
            raise ValueError(f"camera_px: got {self.camera_px}, expected 8 to 1024")
        if not -float("inf") < self.low < self.high < float("inf"):
            raise ValueError(f"low, high: got {self.low} and {self.high}, expected low below high")
        if not self.startup_timeout_s > 0.0:
            raise ValueError(f"startup_timeout_s: got {self.startup_timeout_s}, expected above 0")

    def options(self) -> dict[str, Any]:
        """Return the adapter's options.

        Raises:
            ValueError: there is no instruction.
        """
        if not self.instruction.strip():
            raise ValueError(
                f"isaac_lab_env/{self.name}: got no instruction, expected one, since the "
                "environment has none; set `instruction` of the task"
            )
        names = ("instruction", "path", "device", "camera_px", "cameras", "proprio")
        options = {name: getattr(self, name) for name in (*names, "success_term", "low", "high")}
        return {"task": self.name, **options, "cameras": list(self.cameras)}

    def python(self) -> Path:
        """Return the interpreter.

        Raises:
            ValueError: none is named, or there is none.
        """
        named = self.interpreter or os.environ.get(PYTHON, "")
        if not Path(named).is_file():
            raise ValueError(
                f"interpreter: got {named!r}, expected the Python in which Isaac Lab is installed; "
                f"set `interpreter` of the task, or {PYTHON}"
            )
        return Path(named)

    def arm(self) -> RobotSpec:
        """Return the arm that the environment describes; makes one to ask.

        Raises:
            ValueError: it cannot be made, has no images, or does not report success.
        """
        return arm_of(self, startup_timeout_s=self.startup_timeout_s)
