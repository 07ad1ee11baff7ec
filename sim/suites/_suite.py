"""The interface of suites: adapter, interpreter and arm for the process backend."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sim.env_server.client import AdapterError, Process
from sim.env_server.in_process import InProcessAdapter
from sim.suites._arm import announced
from vla.contracts.config import PluginConfig, type_name
from vla.contracts.specs import RobotSpec

ADAPTERS = Path(__file__).parents[1] / "adapters"


@runtime_checkable
class Suite(Protocol):
    """The `Config` of a file in `sim/suites`, as `sim.backends.process` needs it."""

    name: str
    """Name of the task; users call it SUITE/NAME."""

    def adapter(self) -> Path:
        """Return the file with `open_adapter` that drives its simulator."""

    def options(self) -> dict[str, Any]:
        """Return the options of the adapter's `World` as JSON.

        The backend adds `rows`, `num_envs` and `randomize`.
        """

    def python(self) -> Path | None:
        """Return the interpreter of the simulator; None for this process.

        Raises:
            ValueError: its environment is not installed.
        """

    def arm(self) -> RobotSpec:
        """Return the arm; `mjcf` is "", since the simulator brings its model."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuiteConfig(PluginConfig):
    """A task of a suite; suites add `python` and `arm`, and extend the rest."""

    name: str = ""
    """Name of the task."""

    def adapter(self) -> Path:
        """Return the file of the suite's own name in `sim/adapters`."""
        return ADAPTERS / f"{type_name(self)}.py"

    def options(self) -> dict[str, Any]:
        """Return the name of the task as the option `task`."""
        return {"task": self.name}


@functools.lru_cache(maxsize=16)
def arm_of(config: Any, startup_timeout_s: float = 300.0) -> RobotSpec:
    """Return the arm that the adapter of a task describes; starts it and ends it again.

    Raises:
        ValueError: the adapter refuses the task.
    """
    options = {"rows": [0, 1], "num_envs": 1, "randomize": True, **config.options()}
    python, file = config.python(), config.adapter()
    try:
        adapter = (
            Process(python, file, options, startup_timeout_s=startup_timeout_s)
            if python
            else InProcessAdapter(file, options)
        )
    except AdapterError as error:
        raise ValueError(error.sentence) from error
    description = adapter.announced
    adapter.close()
    return announced(f"{type_name(config)}/{config.name}", description)
