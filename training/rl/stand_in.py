"""Who acts in place of the policy: the one interface; each of them is a file in `stand_ins`."""

from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from vla.contracts.types import Observation


@dataclass(frozen=True, kw_only=True, eq=False)
class Moment:
    """What somebody who may act is told, of D environments out of E."""

    obs: Observation
    """What is seen now in all E environments."""
    rows: np.ndarray
    """i64 [d], which environments they are."""
    asked: np.ndarray
    """bool [d], in which of them help is due."""
    decision: np.ndarray
    """i64 [d], decisions of each one's episode before the present one."""
    limit_s: float
    """Seconds that an episode lasts at most."""
    progress: np.ndarray
    """f32 [d], the critic's progress at the latest decision; NaN where it has said nothing."""


class Move(NamedTuple):
    """What somebody who may act does about it."""

    acts: np.ndarray
    """bool [d], in which environments somebody acts; in the others the policy goes on."""
    actions: np.ndarray | None
    """f32 [d, h, u], position targets from now on, for at most as long as the decision lasts; the
    last one is held. None: the environment's own expert acts."""


@runtime_checkable
class StandIn(Protocol):
    """Acts in place of the policy: where help is due, or anywhere if it takes over by itself.

    A decision in which it has acted counts as its own, and the policy decides anew after it.
    """

    live: bool
    """Whether it is asked at every control step; otherwise when something is looked at."""

    def act(self, now: Moment) -> Move:
        """Return what is done in some environments until it is asked again.

        Moments of an episode come in order of time; `obs.time_s` is 0 at the first of each.
        """
        ...

    def close(self) -> None:
        """Leave; calling it twice does no harm."""
        ...
