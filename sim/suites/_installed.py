"""The common part of suites with their own environment: interpreter and tasks."""

import dataclasses
import difflib
from pathlib import Path
from typing import Any

from sim.env_server import suite_installs
from sim.suites._suite import SuiteConfig
from vla.contracts.config import type_name
from vla.contracts.specs import RobotSpec


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstalledConfig(SuiteConfig):
    """A task of a suite that `vla env add` installs; its file has `TASKS` and `ARM`."""

    def __post_init__(self) -> None:
        """Refuse a task that the suite does not have."""
        tasks = suite_installs.module(type_name(self)).TASKS
        if self.name not in tasks:
            near = difflib.get_close_matches(self.name, tasks, n=3, cutoff=0.4)
            hint = f"did you mean {' or '.join(near)}?" if near else "such as " + next(iter(tasks))
            raise ValueError(
                f"{type_name(self)}: got the task {self.name!r}, expected one of its "
                f"{len(tasks)}; {hint}"
            )

    def options(self) -> dict[str, Any]:
        """Return task and instruction."""
        tasks = suite_installs.module(type_name(self)).TASKS
        return {"task": self.name, "instruction": tasks[self.name]}

    def arm(self) -> RobotSpec:
        """Return the arm of the suite."""
        return suite_installs.module(type_name(self)).ARM

    def python(self) -> Path:
        """Return the Python of the suite's environment.

        Raises:
            ValueError: it is not installed.
        """
        return suite_installs.interpreter(type_name(self))
