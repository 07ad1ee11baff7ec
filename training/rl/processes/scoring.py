"""The process that judges: it looks for finished episodes and writes beside each what it is worth.

Whatever waits is judged in one call of the critic. Nobody waits for it but the learner: a critic
that takes its time delays what is learned, not what is practised.
"""

import time
from collections.abc import Callable
from pathlib import Path

from training import host
from training.rl import store
from training.rl.config import PracticeConfig
from training.rl.judge import Judge
from training.rl.processes import parts
from training.rl.processes.member import Job
from vla import checkpoint

PAUSE_S = 0.02
"""Time between looks for finished episodes where there are none."""


def work(job: Job, alive: Callable[[], None]) -> None:
    """Judge until the learner ends this process."""
    host.prepare(job.config.threads)
    policy, _ = checkpoint.load_ours(job.start.policy, "practice")
    serve(job, Judge(job.config, job.start, policy.robot), alive)


def serve(job: Job, judge: Judge, alive: Callable[[], None]) -> None:
    """Let a judge judge, until this process is ended."""
    folder = job.start.experience
    while True:
        alive()
        found = waiting(job.config, folder)
        if found is None:
            time.sleep(PAUSE_S)
            continue
        name, numbers = found
        episodes = [parts.read(folder, name, number) for number in numbers]
        for number, verdict in zip(numbers, judge.verdicts(episodes), strict=True):
            parts.judge(folder, name, number, verdict)


def waiting(config: PracticeConfig, folder: Path) -> tuple[str, list[int]] | None:
    """Return the oldest round with episodes that wait to be judged, and their numbers.

    Without lag a round is judged once it is whole, and all of it in one call: then not even the
    rounding differs from a run in one process.
    """
    for number in range(config.rounds):
        name = store.name_of(number)
        finished, judged = parts.there(folder, name)
        left = finished - judged
        if left and config.runtime.lag:
            return name, sorted(left)
        if left and len(finished) == config.episodes:
            return name, sorted(finished)
    return None
