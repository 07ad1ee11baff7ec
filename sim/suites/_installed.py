"""What suites share that live in an environment of their own: its interpreter and their tasks."""

import dataclasses
import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from sim import environments
from sim.suites._suite import SuiteConfig
from vla.contracts.config import type_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstalledConfig(SuiteConfig):
    """A task of a suite that `vla env add` installs; a suite adds `tasks` and `arm`."""

    tasks: ClassVar[Mapping[str, str]] = {}
    """Every task of the suite -> what to do in it, in words."""

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
        """Return the task, and what to do in words."""
        return {"task": self.name, "instruction": self.tasks[self.name]}

    def python(self) -> Path:
        """Return the Python of the suite's environment.

        Raises:
            ValueError: it is not installed.
        """
        return environments.interpreter(type_name(self))

    def environ(self) -> dict[str, str]:
        """Return the variables that the suite needs."""
        return dict(environments.described(type_name(self)).variables)
