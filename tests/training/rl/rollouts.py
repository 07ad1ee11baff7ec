"""Whole iterations of rollouts, for tests."""

import contextlib

from training.rl.experience.episode import Episode
from training.rl.intervention.intervention import InterventionController
from training.rl.rollout.collector import ActingPolicy, RolloutWorker, run_episodes
from training.rl.rollout.explorer import Explorer
from vla.contracts.config import PluginConfig
from vla.policies.vla import VLAPolicy


def collect_rollouts(
    policy: VLAPolicy | Explorer, task: PluginConfig, *, episodes: int, seed: int, version: int,
    num_envs: int = 32, controller: InterventionController | None = None,
    backend: PluginConfig | None = None,
) -> list[Episode]:  # fmt: skip
    """Return episodes 0 to `episodes` - 1 of `seed`, sampled stochastically.

    The result does not depend on how many environments run side by side. Of a policy without
    memory the frame of every control step is stored.

    Arguments are those of `ActingPolicy` and `RolloutWorker`.
    """
    acting = ActingPolicy(policy=policy, seed=seed, version=version, controller=controller)
    worker = RolloutWorker(policy, task, min(num_envs, episodes), backend)
    with contextlib.closing(worker):
        done = {e.number: e for e in run_episodes(worker, acting, range(episodes))}
    return [done[k] for k in range(episodes)]
