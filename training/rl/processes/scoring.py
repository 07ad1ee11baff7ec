"""The scorer process: it looks for finished episodes and stores their rewards.

All that waits is scored in one call of the reward model. Only the learner waits for it: a slow
reward model delays learning, not rollouts.
"""

import time
from collections.abc import Callable
from pathlib import Path

from training.core import runtime
from training.rl.config import OnlineRLConfig
from training.rl.experience import episode_store
from training.rl.processes import incremental_store
from training.rl.processes.supervised_process import Job
from training.rl.rollout.reward_source import RewardSource
from vla import checkpoint

POLL_S = 0.02
"""Time between looks for finished episodes where there are none."""


def work(job: Job, heartbeat: Callable[[], None]) -> None:
    """Score until the learner ends this process."""
    runtime.prepare(job.config.threads)
    policy, _ = checkpoint.load_vla(job.start.policy, "online RL")
    serve(job, RewardSource(job.config, job.start, policy.robot), heartbeat)


def serve(job: Job, reward_source: RewardSource, heartbeat: Callable[[], None]) -> None:
    """Score with a reward source until this process is ended."""
    folder = job.start.experience
    while True:
        heartbeat()
        batch = waiting(job.config, folder)
        if batch is None:
            time.sleep(POLL_S)
            continue
        name, numbers = batch
        episodes = [incremental_store.read_episode(folder, name, number) for number in numbers]
        for number, score in zip(numbers, reward_source.score(episodes), strict=True):
            incremental_store.write_score(folder, name, number, score)


def waiting(config: OnlineRLConfig, folder: Path) -> tuple[str, list[int]] | None:
    """Return the oldest iteration with episodes that wait for scores, and their numbers.

    Without lag an iteration is scored once it is complete, in one call: then not even the rounding
    differs from a run in one process.
    """
    for iteration in range(config.n_iterations):
        name = episode_store.iteration_name(iteration)
        finished, scored = incremental_store.progress(folder, name)
        left = finished - scored
        if left and config.runtime.max_policy_lag:
            return name, sorted(left)
        if left and len(finished) == config.episodes_of(iteration):
            return name, sorted(finished)
    return None
