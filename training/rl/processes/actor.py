"""The actor process: it begins every episode that may begin, and stores each that ends.

The run's folder shows which episodes are missing; that is all it needs to continue where another
actor was killed. A free environment continues with the next iteration as soon as the weights allow.
"""

import contextlib
import copy
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load

from training.core import runtime
from training.rl.config import OnlineRLConfig
from training.rl.experience import episode_store
from training.rl.intervention.intervention import InterventionController
from training.rl.intervention.source import InterventionSource
from training.rl.processes import incremental_store
from training.rl.processes.supervised_process import Job
from training.rl.processes.weights import WeightBoard
from training.rl.rollout.collector import ActingPolicy, RolloutWorker
from training.rl.rollout.explorer import Explorer
from training.rl.rollout.reward_source import RewardSource
from vla import checkpoint
from vla.policies.vla import VLAPolicy

POLL_S = 0.02
"""Time between looks for new weights where there is nothing to do."""


def work(job: Job, heartbeat: Callable[[], None]) -> None:
    """Collect rollouts until every iteration is complete."""
    config, folder = job.config, job.start.experience
    runtime.prepare(config.threads)
    start, _ = checkpoint.load_vla(job.start.policy, "online RL")
    policy = job.policy.build(start.robot, start.statistics, start.text.tokenizer)
    policy = config.algo.acting_policy(policy, config)
    policy = policy.to(config.device).eval()  # its weights come from the board
    left = deque(missing(config, folder))
    lag = config.runtime.max_policy_lag
    num_envs = min(
        config.parallel_envs, config.episodes_of(0) + config.episodes_per_iteration * lag
    )
    with (
        contextlib.closing(config.intervention.make_source(policy.robot)) as source,
        contextlib.closing(RolloutWorker(policy, config.task, num_envs, config.backend)) as worker,
    ):
        make_controller = controllers(job, policy, source)
        actor = Actor(config, policy, WeightBoard(name=job.board), make_controller)
        while left or worker.busy:
            heartbeat()
            worker.begin(actor.next_episodes(left, worker.num_free))
            if not worker.busy:
                time.sleep(POLL_S)
                continue
            for episode in worker.step():
                name = episode_store.iteration_name(config.iteration_of(episode.seed))
                incremental_store.write_episode(folder, name, episode)


def missing(config: OnlineRLConfig, folder: Path) -> list[tuple[int, int]]:
    """Return iteration and number of every episode that is not finished, oldest first."""
    episodes = []
    for iteration in range(config.n_iterations):
        name = episode_store.iteration_name(iteration)
        finished, _ = incremental_store.progress(folder, name)
        # In this order: the learner completes an iteration by one rename.
        if not episode_store.has(folder, name):
            numbers = range(config.episodes_of(iteration))
            episodes += [(iteration, k) for k in numbers if k not in finished]
    return episodes


def controllers(
    job: Job, policy: VLAPolicy | Explorer, source: InterventionSource
) -> Callable[[int], InterventionController]:
    """Return what makes the controller of an iteration; a reward model is loaded only where
    progress is watched.
    """
    config = job.config
    rewards = RewardSource(config, job.start, policy.robot) if config.needs_progress else None
    scorer, views = (rewards.scorer, rewards.views) if rewards else (None, ())

    def make_controller(iteration: int) -> InterventionController:
        probs = None
        if config.jump_start.curriculum:
            probs = episode_store.read_guide_step_probs(job.start.experience, iteration)
        return InterventionController(
            config, seed=config.rollout_seed(iteration), remaining=config.remaining(iteration),
            scorer=scorer, views=views, source=source, guide_step_probs=probs,
        )  # fmt: skip

    return make_controller


class Actor:
    """Chooses who acts in the episodes that begin: a policy with the newest weights on the board,
    and the controller that `make_controller` makes for the iteration.
    """

    def __init__(
        self, config: OnlineRLConfig, policy: VLAPolicy | Explorer, board: WeightBoard,
        make_controller: Callable[[int], InterventionController],
    ) -> None:  # fmt: skip
        self.config, self.policy, self.board = config, policy, board
        self.make_controller = make_controller
        self.version = -1
        self.acting: dict[int, ActingPolicy] = {}

    def next_episodes(
        self, left: deque[tuple[int, int]], most: int
    ) -> list[tuple[ActingPolicy, int]]:
        """Take from `left` and return the episodes that may begin now, at most so many."""
        episodes: list[tuple[ActingPolicy, int]] = []
        if not (left and most):
            return episodes
        self._load_weights()
        oldest_version = self.config.oldest_version
        while left and len(episodes) < most and oldest_version(left[0][0]) <= self.version:
            iteration, number = left.popleft()
            episodes.append((self._acting(iteration), number))
        return episodes

    def _load_weights(self) -> None:
        """Load newer weights; running episodes continue with theirs."""
        published = self.board.read(self.version)
        if published is None:
            return
        self.version, payload = published
        self.policy = copy.deepcopy(self.policy)
        self.policy.load_state_dict(load(payload))
        self.policy.eval()
        self.acting = {}

    def _acting(self, iteration: int) -> ActingPolicy:
        if iteration not in self.acting:
            self.acting[iteration] = ActingPolicy(
                policy=self.policy, seed=self.config.rollout_seed(iteration), version=self.version,
                controller=self.make_controller(iteration),
            )  # fmt: skip
        return self.acting[iteration]
