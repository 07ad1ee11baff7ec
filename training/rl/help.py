"""Who else acts in practice: somebody first, for a while, and where the critic sees no progress;
and when an episode is given up.

In three grades, after VLAC. A lead begins an episode in the middle of the work (jump-start, Uchendu
et al. 2023); leads shrink from round to round, or are drawn by `training.rl.curriculum`. Where
progress by the learned critic stands still, the arm of a retried episode goes back and tries anew.
Help comes in attended episodes, where that did not do or is not tried; it replaces the policy's
actions. All are kept as what they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from training.rl.experience import POLICY
from training.rl.retry import Retry
from training.rl.stand_in import StandIn
from training.rl.stand_ins.expert import Expert
from vla.contracts import registry
from vla.contracts.config import check_least
from vla.contracts.protocols import RewardModel
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Frames, Observation

STAND_INS = "training.rl.stand_ins"
"""Who may act: a file each."""
RISE = 0.05
"""Progress that counts as such."""


@dataclass(frozen=True, kw_only=True)
class HelpConfig:
    """How much of practice is done by somebody else, and who that is."""

    by: str = "expert"
    """Who: "expert", the scripted one in the simulator, or "human", a person at a page in a browser
    on this machine, in real time, who may take over at any time; one environment runs then."""
    led: float = 0.0
    """Share of episodes that begin with a lead, in [0, 1]."""
    lead: int = 8
    """Decisions of the longest lead in the first round; none in the last."""
    curriculum: bool = False
    """Leads do not shrink: they are drawn by s (1 - s), s being the share of success after as long
    a lead in earlier rounds, as far as the reward tells."""
    attended: float = 0.0
    """Share of episodes in which help comes when it is asked for, in [0, 1]: the budget."""
    patience: int = 3
    """Decisions without progress after which help is asked for."""
    retried: float = 0.0
    """Share of episodes in which the arm first goes back to where it began and tries anew with its
    targets displaced, in [0, 1]; if the episode is attended, too, help comes the next time."""
    stop: int = 0
    """Decisions without progress after which an episode that is neither attended nor retried is
    given up; 0: never."""
    port: int = 0
    """Port of the page on this machine; a free one if 0."""
    answer_s: float = 20.0
    """Seconds for which a person who is asked is waited for; then the policy goes on."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range."""
        registry.check(STAND_INS, self.by)
        check_least(self, led=0, lead=1, attended=0, patience=1, retried=0, stop=0, port=0,
                    answer_s=0)  # fmt: skip
        if max(self.led, self.attended, self.retried) > 1:
            raise ValueError(
                f"help: got led {self.led}, attended {self.attended} and retried {self.retried}, "
                "expected shares up to 1"
            )
        if self.curriculum and not self.led:
            raise ValueError(
                "help.curriculum: got no leads to draw; say which share of episodes begins with "
                "one, such as --help.led 0.5"
            )

    @property
    def watches(self) -> bool:
        """Whether anybody looks at the critic's progress."""
        return max(self.attended, self.retried, self.stop) > 0 or self.by != "expert"

    def begin(self, robot: RobotSpec) -> StandIn:
        """Return who acts."""
        return registry.load(STAND_INS, self.by).build(self, robot)


class _Drawn(NamedTuple):
    """What an episode is to be."""

    lead: int
    """Decisions of its lead."""
    attended: bool
    retried: bool


class Helper:
    """Says at every decision in which environments somebody else acts.

    What it says of an episode follows from its seed and number alone, whatever runs beside it,
    unless a person acts in it.

    Args:
        config: How much help.
        seed: Of the episodes.
        left: Share of the rounds that are still to come, in [0, 1].
        scorer: The critic that sees whether there is progress; needed if anybody attends or tries
            anew, or if episodes are given up.
        views: Its cameras among the robot's.
        stand_in: Who acts.
        leads: How likely a lead of 0, 1, ... decisions is, f64 [l]; evenly up to one that shrinks
            with `left` if None.
    """

    def __init__(
        self, config: HelpConfig, *, seed: int, left: float, scorer: RewardModel | None,
        views: Sequence[int], stand_in: StandIn | None = None, leads: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.config, self.seed, self.scorer, self.views = config, seed, scorer, list(views)
        self.stand_in = stand_in or Expert()
        self.lead, self.leads = round(config.lead * left), leads
        self.watched: dict[int, _Watched] = {}

    def helped(
        self, obs: Observation, rows: np.ndarray, number: np.ndarray, decision: np.ndarray
    ) -> np.ndarray:
        """Return in which of some environments help is due now, bool [d].

        Args:
            obs: What is seen in them at this decision.
            rows: i64 [d], which environments they are.
            number: i64 [d], number of the episode of each.
            decision: i64 [d], decisions before this one.
        """
        drawn = [self._drawn(int(n)) for n in number]
        led = decision < np.array([one.lead for one in drawn])
        for i, one in enumerate(drawn):
            if decision[i] == 0:
                self._begin_(obs, i, int(rows[i]), int(number[i]), one)
        asked = [
            row in self.watched and self._asks(obs, i, row, bool(decision[i] == 0), bool(led[i]))
            for i, row in enumerate(rows.tolist())
        ]
        return led | np.array(asked)

    def hopeless(self, rows: np.ndarray) -> np.ndarray:
        """Return which episodes are given up, as of what `helped` last saw of them: bool [d].

        Args:
            rows: i64 [d], which environments.
        """
        return np.array([self._hopeless(row) for row in rows.tolist()])

    def _hopeless(self, row: int) -> bool:
        one, stop = self.watched.get(row), self.config.stop
        if not stop or one is None or one.attended or one.retry is not None:
            return False
        return one.waited >= stop

    def retried(
        self, robot: RobotSpec, rows: np.ndarray, proprio: np.ndarray, plan_: np.ndarray
    ) -> np.ndarray:
        """Return who acts in some environments where nobody helps, i8 [d].

        Args:
            robot: The arm.
            rows: i64 [d], which environments they are; `helped` was told of this decision.
            proprio: f32 [d, u], measured.
            plan_: f32 [d, h, u], what the policy has decided; overwritten where it is not done.
        """
        by = np.full(len(rows), POLICY, np.int8)
        for i, row in enumerate(rows.tolist()):
            retry = self.watched[row].retry if row in self.watched else None
            if retry is not None:
                by[i] = retry.by
                plan_[i] = retry.actions(robot, proprio[i], plan_[i])
        return by

    def meet_(self, row: int) -> None:
        """Note that somebody acts in an environment: progress is waited for anew there."""
        one = self.watched.get(row)
        if one is None:
            return
        one.waited = 0
        if one.retry is not None:
            one.retry.end_()
        if self.stand_in.live:
            one.asked = False  # the expert stays to the end; a person gives back

    def progress(self, rows: np.ndarray) -> np.ndarray:
        """Return what the critic last said of some environments, f32 [d]; NaN if nothing."""
        said = [self.watched[row].value if row in self.watched else np.nan for row in rows.tolist()]
        return np.array(said, np.float32)

    def _drawn(self, number: int) -> _Drawn:
        """Return what an episode is to be."""
        rng, config = np.random.default_rng([self.seed, 2, number]), self.config
        led, attended = rng.random(2) < (config.led, config.attended)
        lead = self._lead(rng) if led else 0
        return _Drawn(lead, bool(attended), bool(rng.random() < config.retried))

    def _lead(self, rng: np.random.Generator) -> int:
        if self.leads is None:
            return int(rng.integers(self.lead + 1))
        return int(rng.choice(len(self.leads), p=self.leads))

    def _begin_(self, obs: Observation, i: int, row: int, number: int, drawn: _Drawn) -> None:
        """Begin to watch an episode in environment `row`, row i of what is seen, or do not."""
        self.watched.pop(row, None)
        curious = self.stand_in.live and self.scorer is not None
        if not (drawn.attended or drawn.retried or self.config.stop or curious):
            return
        assert self.scorer is not None
        self.watched[row] = one = _Watched(self.scorer.start(1), attended=drawn.attended)
        if drawn.retried:
            rng = np.random.default_rng([self.seed, 3, number])
            one.retry = Retry(np.asarray(obs.proprio)[i].copy(), rng)

    def _asks(self, obs: Observation, i: int, row: int, fresh: bool, led: bool) -> bool:
        """Look at row i, environment `row`, and return whether help is due."""
        assert self.scorer is not None
        one, part = self.watched[row], slice(i, i + 1)
        if one.asked and not self.stand_in.live:
            return True
        seen = Frames(
            images=np.asarray(obs.images)[part][:, self.views],
            image_ok=np.asarray(obs.image_ok)[part][:, self.views],
            time_s=np.asarray(obs.time_s)[part], row=np.zeros(1, np.int64),
        )  # fmt: skip
        said, one.state = self.scorer.step(one.state, seen, obs.task[part])
        one.value = value = float(said.value[0])
        rose = value >= one.best + RISE  # never where the critic abstains
        one.best = value if rose else one.best
        one.waited = 0 if rose or led or fresh else one.waited + 1
        stuck = one.waited >= self.config.patience
        if one.retry is not None and one.attended and stuck and one.retry.tries:
            one.retry = None  # it did not do
        if one.retry is None:
            one.asked = one.asked or (stuck and one.attended)
        elif one.retry.next_(stuck, value):
            one.best, one.waited = float(np.nan_to_num(value)), 0
        return one.asked


@dataclass
class _Watched:
    """What is known of an episode that is watched."""

    state: Any
    """The critic's."""
    attended: bool
    """Whether help comes when it is asked for."""
    retry: Retry | None = None
    """What becomes of its attempts anew, if it is to make any."""
    value: float = np.nan
    """The latest progress."""
    best: float = 0.0
    """Most progress so far."""
    waited: int = 0
    """Decisions since it rose."""
    asked: bool = False
    """Whether help was asked for."""
