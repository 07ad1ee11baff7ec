"""Any environment that is registered with Gymnasium: "gymnasium_env/ID", in this process or not.

Images come from the observation or, without any, from `render()`; success from
`info["is_success"]` or `info["success"]`. There is no expert. The environment defines the arm:
channels a0, a1 and so on; proprioception is the first numbers of the state.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

from sim.suites._suite import SuiteConfig, arm_of
from vla.contracts.specs import RobotSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(SuiteConfig):
    """Which environment, and settings that it does not define."""

    interpreter: str = ""
    """Python in which it is installed; empty for this process."""
    path: str = ""
    """Folder of the module that registers it, if it is not an installed package."""
    kwargs: str = "{}"
    """Arguments of `gymnasium.make`, a JSON object."""
    camera_px: int = 96
    """Height and width of the resized images."""
    proprio: str = ""
    """Key of the arm's state in the observation; empty to guess."""
    instruction: str = ""
    """Instruction; empty for `info["task"]` or the id."""
    control_hz: float = 0.0
    """Actions a second; 0 for its `render_fps`."""
    max_episode_steps: int = 0
    """Time limit in control steps; 0 for the environment's."""

    def __post_init__(self) -> None:
        """Refuse an empty name and numbers out of range."""
        if not self.name:
            raise ValueError(
                "task: got 'gymnasium_env', expected gymnasium_env/ID, such as "
                "gymnasium_env/Reacher-v5"
            )
        if not 8 <= self.camera_px <= 1024:
            raise ValueError(f"camera_px: got {self.camera_px}, expected 8 to 1024")
        if not self.control_hz >= 0.0 or self.max_episode_steps < 0:
            raise ValueError(
                f"control_hz, max_episode_steps: got {self.control_hz} and "
                f"{self.max_episode_steps}, expected 0 or more"
            )
        if self.interpreter and not Path(self.interpreter).is_file():
            raise ValueError(f"interpreter: got {self.interpreter}, expected a file")
        self._arguments()

    def options(self) -> dict[str, Any]:
        """Return the adapter's options."""
        names = ("camera_px", "proprio", "instruction", "control_hz", "max_episode_steps", "path")
        return {
            "task": self.name,
            "kwargs": self._arguments(),
            **{name: getattr(self, name) for name in names},
        }

    def python(self) -> Path | None:
        """Return the interpreter; None for this process."""
        return Path(self.interpreter) if self.interpreter else None

    def arm(self) -> RobotSpec:
        """Return the arm that the environment describes; makes one to ask.

        Raises:
            ValueError: it cannot be made, has no images, or takes no Box of actions.
        """
        return arm_of(self)

    def _arguments(self) -> dict[str, Any]:
        try:
            arguments = json.loads(self.kwargs)
        except ValueError as error:
            raise ValueError(f"kwargs: got {self.kwargs!r}, expected JSON ({error})") from error
        if not isinstance(arguments, dict):
            raise ValueError(f"kwargs: got {self.kwargs!r}, expected a JSON object")
        return arguments
