"""Practice in processes beside the learner: an actor, and a scorer where a critic gives reward.

The learner publishes its weights, goes on learning, and takes a round when all of it is there and
judged. What ties the processes together is the run's folder and one board of weights.
"""

import time
from dataclasses import replace

from safetensors.torch import save

from training.rl import store
from training.rl.config import PracticeConfig, Start
from training.rl.experience import Episode
from training.rl.judge import Judge, Verdict
from training.rl.processes import actor, parts, scoring
from training.rl.processes.member import Job, Member, Work
from training.rl.processes.weights import Board
from vla.policies.vla import VLAPolicy

PAUSE_S = 0.02
"""Time between looks at a round that is waited for."""


class Team:
    """What practises and judges for one run.

    Args:
        config: The run.
        start: What it starts from.
        policy: What acts, with any weights; how it samples is settled here.
        judge: Judges here what nobody judges elsewhere.
        score: What the scorer does.
    """

    def __init__(
        self, config: PracticeConfig, start: Start, policy: VLAPolicy, judge: Judge,
        score: Work = scoring.work,
    ) -> None:  # fmt: skip
        self.config, self.folder, self.judge = config, start.experience, judge
        self.board = Board(len(_payload(policy)))
        acts = replace(policy.config, head=policy.head.config)
        job = Job(config=config, start=start, policy=acts, board=self.board.name)
        works = {"actor": actor.work} | ({"scorer": score} if judge.scorer else {})
        self.members = [Member(name, work, job) for name, work in works.items()]

    def publish(self, policy: VLAPolicy, version: int) -> None:
        """Let episodes that begin from now on be practised with these weights."""
        self.board.publish(version, _payload(policy))

    def tend(self) -> None:
        """Start anew who has died or is silent.

        Raises:
            ValueError: one failed for a reason of its own, or died too often.
        """
        for member in self.members:
            member.tend_(self._done)

    def _done(self) -> int:
        """Return how much there is of rounds that are not whole yet."""
        names = [store.name_of(number) for number in range(self.config.rounds)]
        return sum(len(found) for name in names for found in parts.there(self.folder, name))

    def take(self, number: int) -> tuple[list[Episode], list[Verdict]]:
        """Wait until a round is whole and judged, put it into the store and return it."""
        name = store.name_of(number)
        if store.has(self.folder, name):  # taken by a run that was killed before it was saved
            episodes = store.read_round(self.folder, name)
            told = parts.told(self.folder, name, episodes)
            return episodes, told or self.judge.verdicts(episodes)
        while not self._ready(name):
            self.tend()
            time.sleep(PAUSE_S)
        episodes = [parts.read(self.folder, name, k) for k in range(self.config.episodes)]
        if self.judge.scorer:
            verdicts = [parts.read_verdict(self.folder, name, e.number) for e in episodes]
        else:
            verdicts = self.judge.verdicts(episodes)
        parts.finish(self.folder, name)
        return episodes, verdicts

    def _ready(self, name: str) -> bool:
        finished, judged = parts.there(self.folder, name)
        return len(judged if self.judge.scorer else finished) == self.config.episodes

    def close(self) -> None:
        """End the processes; what is not finished is dropped."""
        for member in self.members:
            member.close()
        self.board.close()


def _payload(policy: VLAPolicy) -> bytes:
    weights = {name: value.detach().cpu() for name, value in policy.state_dict().items()}
    return save(weights)
