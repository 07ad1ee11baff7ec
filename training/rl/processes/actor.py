"""The process that practises: it begins every episode that may be begun, and keeps each that ends.

Which episodes are missing it sees in the run's folder; that is all it needs to go on where another
one was killed. A free environment goes on with the next round as soon as the weights allow it.
"""

import contextlib
import copy
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load

from training import host
from training.rl import store
from training.rl.config import PracticeConfig
from training.rl.help import Helper
from training.rl.judge import Judge
from training.rl.practice import Acting, Stage
from training.rl.processes import parts
from training.rl.processes.member import Job
from training.rl.processes.weights import Board
from training.rl.stand_in import StandIn
from vla import checkpoint
from vla.policies.vla import VLAPolicy

PAUSE_S = 0.02
"""Time between looks for new weights where there is nothing to do."""


def work(job: Job, alive: Callable[[], None]) -> None:
    """Practise until every round is whole."""
    config, folder = job.config, job.start.experience
    host.prepare(config.threads)
    begun, _ = checkpoint.load_ours(job.start.policy, "practice")
    made = job.policy.build(begun.robot, begun.statistics, begun.text.tokenizer)
    policy = made.to(config.device).eval()  # its weights come from the board
    left = deque(missing(config, folder))
    width = min(config.side_by_side, config.episodes * (1 + config.runtime.lag))
    with (
        contextlib.closing(config.help.begin(policy.robot)) as stand_in,
        contextlib.closing(Stage(policy, config.task, width)) as stage,
    ):
        cast = Cast(config, policy, Board(name=job.board), helpers(job, policy, stand_in))
        while left or stage.busy:
            alive()
            stage.begin_(cast.ready(left, stage.free))
            if not stage.busy:
                time.sleep(PAUSE_S)
                continue
            for episode in stage.step_():
                parts.keep(folder, store.name_of(config.round_of(episode.seed)), episode)


def missing(config: PracticeConfig, folder: Path) -> list[tuple[int, int]]:
    """Return the round and number of every episode that has not been finished, oldest first."""
    found = []
    for number in range(config.rounds):
        name = store.name_of(number)
        finished, _ = parts.there(folder, name)
        # In this order: the learner makes a round of its parts by one rename.
        if not store.has(folder, name):
            found += [(number, k) for k in range(config.episodes) if k not in finished]
    return found


def helpers(job: Job, policy: VLAPolicy, stand_in: StandIn) -> Callable[[int], Helper]:
    """Return who helps in a round; a critic is loaded only where somebody watches its progress."""
    config = job.config
    judge = Judge(config, job.start, policy.robot) if config.help.watches else None
    scorer, views = (judge.scorer, judge.views) if judge else (None, ())

    def helper(number: int) -> Helper:
        drawn = config.help.curriculum
        leads = store.read_leads(job.start.experience, number) if drawn else None
        return Helper(
            config.help, seed=config.seed_of(number), left=config.left(number), scorer=scorer,
            views=views, stand_in=stand_in, leads=leads,
        )  # fmt: skip

    return helper


class Cast:
    """Who acts in the episodes that begin now: the newest weights, and the round's help.

    Args:
        config: The run.
        policy: What acts, with any weights.
        board: Where weights are published.
        helper: Who helps in a round.
    """

    def __init__(
        self, config: PracticeConfig, policy: VLAPolicy, board: Board,
        helper: Callable[[int], Helper],
    ) -> None:  # fmt: skip
        self.config, self.policy, self.board, self.helper = config, policy, board, helper
        self.version = -1
        self.acting: dict[int, Acting] = {}

    def ready(self, left: deque[tuple[int, int]], most: int) -> list[tuple[Acting, int]]:
        """Take from `left` and return the episodes that may begin now, at most so many."""
        begun: list[tuple[Acting, int]] = []
        if not (left and most):
            return begun
        self._look_()
        while left and len(begun) < most and self.config.oldest(left[0][0]) <= self.version:
            number, episode = left.popleft()
            begun.append((self._acting(number), episode))
        return begun

    def _look_(self) -> None:
        """Take newer weights; episodes that run go on with theirs."""
        found = self.board.read(self.version)
        if found is None:
            return
        self.version, payload = found
        self.policy = copy.deepcopy(self.policy)
        self.policy.load_state_dict(load(payload))
        self.policy.eval()
        self.acting = {}

    def _acting(self, number: int) -> Acting:
        if number not in self.acting:
            self.acting[number] = Acting(
                policy=self.policy, seed=self.config.seed_of(number), version=self.version,
                helper=self.helper(number),
            )  # fmt: skip
        return self.acting[number]
