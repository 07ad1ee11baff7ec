"""The interface of intervention sources: who acts in place of the policy. Each is a file in
`training/rl/intervention_sources`.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from vla.contracts.types import Observation


@dataclass(frozen=True, kw_only=True, eq=False)
class InterventionContext:
    """What an intervention source sees of D environments out of E."""

    obs: Observation
    """Current observation of all E environments."""
    rows: np.ndarray
    """i64 [d], which environments they are."""
    requested: np.ndarray
    """bool [d], in which of them an intervention is due."""
    decision: np.ndarray
    """i64 [d], decisions of each episode before the present one."""
    time_limit_s: float
    """Longest duration of an episode, in seconds."""
    progress: np.ndarray
    """f32 [d], the reward model's progress at the latest decision; NaN where there is none."""


class InterventionAction(NamedTuple):
    """What an intervention source does."""

    active: np.ndarray
    """bool [d], in which environments it acts; in the others the policy continues."""
    actions: np.ndarray | None
    """f32 [d, h, u], position targets from now on, for at most as long as the decision lasts; the
    last one is held. None: the environment's scripted expert acts."""


@runtime_checkable
class InterventionSource(Protocol):
    """Acts in place of the policy: where an intervention is due, or anywhere if it takes over.

    A decision in which it acted counts as an intervention, and the policy decides again after it.
    """

    every_step: bool
    """Whether it is asked at every control step; otherwise at every stored frame."""

    def act(self, context: InterventionContext) -> InterventionAction:
        """Return what is done until the next call.

        Calls for an episode come in order of time; `obs.time_s` is 0 at the first of each.
        """
        ...

    def close(self) -> None:
        """Release everything; calling it twice does no harm."""
        ...
