"""Our tasks on Isaac Gym Preview 4, in the interpreter where it is installed: one sim of it."""

import dataclasses

from sim.engines import hosted


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config(hosted.ExternalEngineConfig):
    """How the environments are run."""

    python: str = ""
    """The interpreter in which Isaac Gym is installed (3.6 to 3.8; 3.8 here)."""
    step_timeout_s: float = 120.0
    """Seconds that a step may take."""
