"""Actor and scorer processes next to the learner; the scorer where a reward model gives reward.

The learner publishes its weights, continues to learn, and takes an iteration when all of it is
there and scored. What ties the processes together is the run's folder and one board of weights.
"""

import time
from dataclasses import replace

from safetensors.torch import save

from training.rl.config import OnlineRLConfig, Start
from training.rl.experience import episode_store
from training.rl.experience.episode import Episode
from training.rl.processes import actor, incremental_store, scoring
from training.rl.processes.supervised_process import Job, SupervisedProcess, Work
from training.rl.processes.weights import WeightBoard
from training.rl.rollout.explorer import Explorer
from training.rl.rollout.reward_source import EpisodeScore, RewardSource
from vla.policies.vla import VLAPolicy

POLL_S = 0.02
"""Time between looks at an iteration that is waited for."""


class ActorPool:
    """The processes that collect and score the rollouts of one run.

    Args:
        config: The run.
        start: What it starts from.
        policy: The acting policy, with any weights; how it samples is fixed here.
        reward_source: Scores in this process what no scorer process does.
        score: Work of the scorer process.
    """

    def __init__(
        self, config: OnlineRLConfig, start: Start, policy: VLAPolicy | Explorer,
        reward_source: RewardSource, score: Work = scoring.work,
    ) -> None:  # fmt: skip
        self.config, self.folder, self.reward_source = config, start.experience, reward_source
        self.board = WeightBoard(len(_payload(policy)))
        head = policy.policy.head if isinstance(policy, Explorer) else policy.head
        acts = replace(policy.config, head=head.config)
        job = Job(config=config, start=start, policy=acts, board=self.board.name)
        works = {"actor": actor.work} | ({"scorer": score} if reward_source.scorer else {})
        self.processes = [SupervisedProcess(name, work, job) for name, work in works.items()]

    def publish(self, policy: VLAPolicy | Explorer, version: int) -> None:
        """Let episodes that begin from now on use these weights."""
        self.board.publish(version, _payload(policy))

    def check(self) -> None:
        """Restart processes that have died or send no heartbeat.

        Raises:
            ValueError: one failed with an error, or died too often.
        """
        for process in self.processes:
            process.check(self._count_finished)

    def _count_finished(self) -> int:
        """Return how many episodes and scores incomplete iterations have."""
        names = map(episode_store.iteration_name, range(self.config.n_iterations))
        parts = [incremental_store.progress(self.folder, name) for name in names]
        return sum(len(finished) + len(scored) for finished, scored in parts)

    def take(self, iteration: int) -> tuple[list[Episode], list[EpisodeScore]]:
        """Wait until an iteration is complete and scored, publish it in the store and return it."""
        name = episode_store.iteration_name(iteration)
        if episode_store.has(self.folder, name):  # by a run that was killed before it was saved
            episodes = episode_store.read_iteration(self.folder, name)
            scores = incremental_store.read_scores(self.folder, name, episodes)
            return episodes, scores or self.reward_source.score(episodes)
        numbers = range(self.config.episodes_of(iteration))
        while not self._complete(name, len(numbers)):
            self.check()
            time.sleep(POLL_S)
        episodes = [incremental_store.read_episode(self.folder, name, k) for k in numbers]
        if self.reward_source.scorer:
            scores = [incremental_store.read_score(self.folder, name, k) for k in numbers]
        else:
            scores = self.reward_source.score(episodes)
        incremental_store.publish(self.folder, name)
        return episodes, scores

    def _complete(self, name: str, episodes: int) -> bool:
        finished, scored = incremental_store.progress(self.folder, name)
        done = scored if self.reward_source.scorer else finished
        return len(done) == episodes

    def close(self) -> None:
        """End the processes; unfinished episodes are dropped."""
        for process in self.processes:
            process.close()
        self.board.close()


def _payload(policy: VLAPolicy | Explorer) -> bytes:
    weights = {name: value.detach().cpu() for name, value in policy.state_dict().items()}
    return save(weights)
