"""What every suite of tasks shares: how the process backend finds its host, interpreter and arm."""

import dataclasses
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from vla.contracts.config import PluginConfig, type_name
from vla.contracts.specs import RobotSpec

HOSTS = Path(__file__).parents[1] / "hosts"


@runtime_checkable
class Suite(Protocol):
    """The `Config` of a file in `sim/suites`, as `sim.backends.process` needs it."""

    name: str
    """Which task of the suite; SUITE/NAME is what users call it."""

    def host(self) -> Path:
        """Return the file with `open_host` that drives its simulator."""
        ...

    def options(self) -> dict[str, Any]:
        """Return what the host's `World` is told, as JSON: which task, and how it looks.

        The backend adds `rows`, `num_envs` and `randomize`.
        """
        ...

    def python(self) -> Path | None:
        """Return the interpreter that the simulator lives in; None for this process.

        Raises:
            ValueError: its environment is not installed; the message says how to.
        """
        ...

    def environ(self) -> dict[str, str]:
        """Return the variables that its process gets beside the usual few."""
        ...

    def arm(self) -> RobotSpec:
        """Return who acts; `mjcf` is "", since its simulator brings its own model."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteConfig(PluginConfig):
    """A task of a suite; a suite adds `python` and `arm`, and to the rest what it needs."""

    name: str = ""
    """Which task of the suite."""

    def host(self) -> Path:
        """Return the file of the suite's own name in `sim/hosts`."""
        return HOSTS / f"{type_name(self)}.py"

    def options(self) -> dict[str, Any]:
        """Return the name of the task as the option `task`."""
        return {"task": self.name}

    def environ(self) -> dict[str, str]:
        """Return nothing."""
        return {}
