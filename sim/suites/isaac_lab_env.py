"""Environments of Isaac Lab: "isaac_lab_env/ID", in the interpreter where Isaac Lab is installed.

All rows live in one simulator, which steps and resets them together and draws their episodes from
one stream of chance: (seed, index) does not give an episode back. It has no expert. The arm is read
off the environment: channels a0, a1 and so on.
"""

import dataclasses
import functools
import os
from pathlib import Path
from typing import Any

from sim.bridge.client import HostError, Process
from sim.suites._arm import announced
from sim.suites._suite import SuiteConfig
from vla.contracts.specs import RobotSpec

PYTHON = "MNEME_ISAAC_LAB_PYTHON"
"""The variable that names the interpreter where `interpreter` does not."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(SuiteConfig):
    """Which environment, and what it does not say of itself; the name is ID, or MODULE:ID."""

    interpreter: str = ""
    """Python in which Isaac Lab is installed; empty for $MNEME_ISAAC_LAB_PYTHON."""
    path: str = ""
    """Folder from which to import MODULE, if it is no installed package."""
    instruction: str = ""
    """What to do, in words; required."""
    device: str = "cuda:0"
    """"cuda:N" or "cpu", for physics."""
    camera_px: int = 96
    """Height and width to which pictures are brought."""
    cameras: tuple[str, ...] = ()
    """Terms of the observation, or cameras of the scene; empty for all of the former that are
    uint8, or else all of the latter."""
    proprio: str = ""
    """Term of the observation with the arm's state; empty to guess."""
    success_term: str = "success"
    """Termination term, or key of `extras`, that says success; "none" where nothing does."""
    low: float = -1.0
    """Limits of actions that have none of their own."""
    high: float = 1.0
    open_s: float = 900.0
    """Seconds that it may take to start while its arm is asked for."""

    def __post_init__(self) -> None:
        """Refuse what is no environment's name, and numbers out of range."""
        if not self.name:
            raise ValueError(
                "task: got 'isaac_lab_env', expected isaac_lab_env/ID, such as "
                "isaac_lab_env/Isaac-Lift-Cube-Franka-v0"
            )
        if not 8 <= self.camera_px <= 1024:
            raise ValueError(f"camera_px: got {self.camera_px}, expected 8 to 1024")
        if not -float("inf") < self.low < self.high < float("inf"):
            raise ValueError(f"low, high: got {self.low} and {self.high}, expected low below high")
        if not self.open_s > 0.0:
            raise ValueError(f"open_s: got {self.open_s}, expected above 0")

    def options(self) -> dict[str, Any]:
        """Return what the host is told.

        Raises:
            ValueError: there is no instruction.
        """
        if not self.instruction.strip():
            raise ValueError(
                f"isaac_lab_env/{self.name}: got no instruction, expected what to do in words, "
                "which the environment does not say; set `instruction` of the task"
            )
        names = ("instruction", "path", "device", "camera_px", "cameras", "proprio")
        told = {name: getattr(self, name) for name in (*names, "success_term", "low", "high")}
        return {"task": self.name, **told, "cameras": list(self.cameras)}

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
        """Return the arm that the environment announces, from one that is made to ask.

        Raises:
            ValueError: it cannot be made, has no pictures, or does not say when it is solved.
        """
        return _arm(self)


@functools.lru_cache(maxsize=16)
def _arm(config: Config) -> RobotSpec:
    options = {"rows": [0, 1], "num_envs": 1, "randomize": True, **config.options()}
    try:
        host = Process(config.python(), config.host(), options, open_s=config.open_s)
    except HostError as error:
        raise ValueError(error.sentence) from error
    told = host.announced
    host.close()
    return announced(f"isaac_lab_env/{config.name}", told)
