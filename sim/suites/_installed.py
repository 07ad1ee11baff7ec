"""The common part of suites with their own environment: interpreter and tasks."""

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from sim.env_server import suite_installs
from sim.suites._suite import SuiteConfig
from vla.contracts.config import type_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstalledConfig(SuiteConfig):
    """A task of a suite that `vla env add` installs; a suite adds `tasks` and `arm`."""

    tasks: ClassVar[Mapping[str, str]] = {}
    """Task of the suite -> instruction."""

    def __post_init__(self) -> None:
        """Refuse a task that the suite does not have."""
        if self.name not in self.tasks:
            near = difflib.get_close_matches(self.name, self.tasks, n=3, cutoff=0.4)
            hint = (
                f"did you mean {' or '.join(near)}?"
                if near
                else "such as " + next(iter(self.tasks))
            )
            raise ValueError(
                f"{type_name(self)}: got the task {self.name!r}, expected one of its "
                f"{len(self.tasks)}; {hint}"
            )

    def options(self) -> dict[str, Any]:
        """Return task and instruction."""
        return {"task": self.name, "instruction": self.tasks[self.name]}

    def python(self) -> Path:
        """Return the Python of the suite's environment.

        Raises:
            ValueError: it is not installed.
        """
        return suite_installs.interpreter(type_name(self))

    def environ(self) -> dict[str, str]:
        """Return the suite's environment variables."""
        return dict(suite_installs.described(type_name(self)).variables)
