"""Who else acts in practice: the expert first, for a while, and where the critic sees no progress;
and when an episode is given up.

A lead begins an episode in the middle of the work (jump-start, Uchendu et al. 2023); leads shrink
from round to round. Help comes in attended episodes, once progress by the learned critic has stood
still; it replaces the policy's actions until the episode ends. Both are kept as what they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vla.contracts.config import check_least
from vla.contracts.protocols import RewardModel
from vla.contracts.types import Frames, Observation

RISE = 0.05
"""Progress that counts as such."""


@dataclass(frozen=True, kw_only=True)
class HelpConfig:
    """How much of practice is done by somebody else."""

    led: float = 0.0
    """Share of episodes that begin with a lead, in [0, 1]."""
    lead: int = 8
    """Decisions of the longest lead in the first round; none in the last."""
    attended: float = 0.0
    """Share of episodes in which help comes when it is asked for, in [0, 1]: the budget."""
    patience: int = 3
    """Decisions without progress after which help is asked for."""
    stop: int = 0
    """Decisions without progress after which an episode that nobody helps is given up; 0: never."""

    @property
    def watched(self) -> bool:
        """Whether it takes a critic to see where help is due, or hope is lost."""
        return self.attended > 0 or self.stop > 0

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        check_least(self, led=0, lead=1, attended=0, patience=1, stop=0)
        if max(self.led, self.attended) > 1:
            raise ValueError(
                f"help: got led {self.led} and attended {self.attended}, expected shares up to 1"
            )


class Helper:
    """Says at every decision in which environments somebody else acts.

    What it says of an episode follows from its seed and number alone, whatever runs beside it.

    Args:
        config: How much help.
        seed: Of the episodes.
        left: Share of the rounds that are still to come, in [0, 1].
        scorer: The critic that sees whether there is progress; needed if anybody attends, or
            episodes are given up.
        views: Its cameras among the robot's.
    """

    def __init__(
        self, config: HelpConfig, *, seed: int, left: float, scorer: RewardModel | None,
        views: Sequence[int],
    ) -> None:  # fmt: skip
        self.config, self.seed, self.scorer, self.views = config, seed, scorer, list(views)
        self.lead = round(config.lead * left)
        self.watched: dict[int, _Watched] = {}

    def helped(
        self, obs: Observation, rows: np.ndarray, number: np.ndarray, decision: np.ndarray
    ) -> np.ndarray:
        """Return in which of some environments somebody else acts now, bool [d].

        Args:
            obs: What is seen in them at this decision.
            rows: i64 [d], which environments they are.
            number: i64 [d], number of the episode of each.
            decision: i64 [d], decisions before this one.
        """
        drawn = [self._drawn(int(n)) for n in number]
        led = decision < np.array([lead for lead, _ in drawn])
        for i, (_, attended) in enumerate(drawn):
            if attended or self.config.stop:
                told = {"fresh": bool(decision[i] == 0), "led": bool(led[i]), "attended": attended}
                self._watch_(obs, i, int(rows[i]), **told)
        asked = [
            attended and self.watched[int(row)].asked
            for row, (_, attended) in zip(rows, drawn, strict=True)
        ]
        return led | np.array(asked)

    def hopeless(self, rows: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Return which episodes are given up, as of what `helped` last saw of them: bool [d].

        Args:
            rows: i64 [d], which environments.
            number: i64 [d], number of the episode of each.
        """
        stop = self.config.stop
        return np.array([
            bool(stop) and self.watched[int(row)].waited >= stop and not self._drawn(int(n))[1]
            for row, n in zip(rows, number, strict=True)
        ])  # fmt: skip

    def _drawn(self, number: int) -> tuple[int, bool]:
        """Return how long the lead of an episode is, and whether it is attended."""
        rng = np.random.default_rng([self.seed, 2, number])
        led, attended = rng.random(2) < (self.config.led, self.config.attended)
        return int(rng.integers(self.lead + 1)) if led else 0, bool(attended)

    def _watch_(
        self, obs: Observation, i: int, row: int, *, fresh: bool, led: bool, attended: bool
    ) -> None:
        """Look at row i, environment `row`; once help is due there it is to the end."""
        assert self.scorer is not None
        if fresh:
            self.watched[row] = _Watched(self.scorer.start(1))
        one, part = self.watched[row], slice(i, i + 1)
        if one.asked:
            return
        seen = Frames(
            images=np.asarray(obs.images)[part][:, self.views],
            image_ok=np.asarray(obs.image_ok)[part][:, self.views],
            time_s=np.asarray(obs.time_s)[part], row=np.zeros(1, np.int64),
        )  # fmt: skip
        said, one.state = self.scorer.step(one.state, seen, obs.task[part])
        value = float(said.value[0])
        rose = value >= one.best + RISE  # never where the critic abstains
        one.best = value if rose else one.best
        one.waited = 0 if rose or led or fresh else one.waited + 1
        one.asked = attended and one.waited >= self.config.patience


@dataclass
class _Watched:
    """What is known of an episode that is attended."""

    state: Any
    """The critic's."""
    best: float = 0.0
    """Most progress so far."""
    waited: int = 0
    """Decisions since it rose."""
    asked: bool = False
    """Whether help was asked for."""
