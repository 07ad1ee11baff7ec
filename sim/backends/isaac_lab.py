"""Our tasks on Isaac Lab, 2.3 or 3.x, in the interpreter where it is installed: one app of it."""

import dataclasses

from sim.engines import hosted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(hosted.ExternalEngineConfig):
    """How the environments are run."""

    python: str = ""
    """The interpreter in which Isaac Lab is installed: `python` of its environment, or the script
    with which Isaac Sim starts one."""
    startup_timeout_s: float = 900.0
    """Seconds that it may take to start; the first time it compiles shaders."""
