"""Any environment that is registered with Gymnasium: "gymnasium_env/ID", in this process or not.

Its pictures come from the observation or, if that has none, from `render()`; success from
`info["is_success"]` or `info["success"]`. It has no expert. The arm is read off the environment:
channels a0, a1 and so on, of which proprioception has the first numbers of the state.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

from sim.bridge.client import HostError, Process
from sim.bridge.local import LocalHost
from sim.suites._arm import announced
from sim.suites._suite import SuiteConfig
from vla.contracts.specs import RobotSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(SuiteConfig):
    """Which environment, and what it does not say of itself."""

    interpreter: str = ""
    """Python in which it is installed; empty for this process."""
    path: str = ""
    """Folder from which to import what registers it, if it is no installed package."""
    kwargs: str = "{}"
    """Arguments of `gymnasium.make`, a JSON object."""
    camera_px: int = 96
    """Height and width to which pictures are brought."""
    proprio: str = ""
    """Key of the arm's state in the observation; empty to guess."""
    instruction: str = ""
    """What to do, in words; empty for `info["task"]` or the id."""
    control_hz: float = 0.0
    """Actions a second; 0 for its `render_fps`."""
    max_episode_steps: int = 0
    """Time limit in control steps; 0 for its own."""

    def __post_init__(self) -> None:
        """Refuse what is no environment's name, and numbers out of range."""
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
        """Return what the host is told."""
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
        """Return the arm that the environment announces, from one that is made to ask.

        Raises:
            ValueError: it cannot be made, has no pictures, or takes no Box of actions.
        """
        return _arm(self)

    def _arguments(self) -> dict[str, Any]:
        try:
            arguments = json.loads(self.kwargs)
        except ValueError as error:
            raise ValueError(f"kwargs: got {self.kwargs!r}, expected JSON ({error})") from error
        if not isinstance(arguments, dict):
            raise ValueError(f"kwargs: got {self.kwargs!r}, expected a JSON object")
        return arguments


@functools.lru_cache(maxsize=16)
def _arm(config: Config) -> RobotSpec:
    options = {"rows": [0, 1], "num_envs": 1, "randomize": True, **config.options()}
    python = config.python()
    try:
        host = (
            Process(python, config.host(), options) if python else LocalHost(config.host(), options)
        )
    except HostError as error:
        raise ValueError(error.sentence) from error
    told = host.announced
    host.close()
    return announced(f"gymnasium_env/{config.name}", told)
