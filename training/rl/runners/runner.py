"""The iterations of one run: rollouts, their rewards, and the audit of those rewards."""

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from reward_models.metrics import ranks
from training.data import batches
from training.rl.config import OnlineRLConfig, Start
from training.rl.experience import episode_store
from training.rl.experience.episode import Episode
from training.rl.experience.gae import discounted
from training.rl.experience.rewards import EpisodeReward, true_rewards
from training.rl.intervention.intervention import InterventionController
from training.rl.intervention.source import InterventionSource
from training.rl.processes import incremental_store
from training.rl.processes.actor_pool import ActorPool
from training.rl.rollout.collector import (
    ActingPolicy,
    RolloutWorker,
    make_env,
    run_episodes,
)
from training.rl.rollout.explorer import Explorer
from training.rl.rollout.reward_source import EpisodeScore, RewardSource
from training.rl.runners import curriculum
from vla import checkpoint
from vla.policies.vla import VLAPolicy

MIN_SPEARMAN = 0.3
"""Rank correlation of predicted and true returns below which the reward is not to be trusted."""


class OnlineRunner:
    """Collects the rollouts of one run and computes their rewards."""

    def __init__(self, config: OnlineRLConfig, start: Start) -> None:
        self.config, self.start = config, start
        self.policy, self.origin = checkpoint.load_vla(start.policy, "online RL", config.device)
        self.reward_source = RewardSource(config, start, self.policy.robot)
        self.actor_pool: ActorPool | None = None
        self.worker: RolloutWorker | None = None
        self.intervention_source: InterventionSource | None = None
        self.demos = batches.load_for_policy(self.policy, start.dataset, phase_seed=0)
        self.episodes: list[Episode] = []
        self.rewards: list[EpisodeReward] = []
        self.iteration = 0
        """Iterations collected so far."""
        self.keep_images: Literal["all", "first and latest", "none"] = "all"
        """The iterations of which `drop_images` leaves the images in memory."""
        for folder in start.prior_runs:
            newest = episode_store.read_newest(folder, config.max_prior_episodes)
            self._add(_check_fits(newest, self.policy, folder))
        self.num_prior = len(self.episodes)
        """Episodes of prior runs, the first ones of `episodes`."""

    def make_env(self, num_envs: int) -> Any:
        """Return environments like those of rollouts."""
        return make_env(self.config, self.policy.robot, num_envs)

    @property
    def latest(self) -> tuple[list[Episode], list[EpisodeReward]]:
        """The rollouts of the newest iteration, and their rewards."""
        count = self.config.episodes_of(self.iteration - 1)
        return self.episodes[-count:], self.rewards[-count:]

    def due(self, updates: int) -> bool:
        """Return whether rollouts come before update `updates` (from 0)."""
        return updates * self.config.n_iterations >= self.iteration * self.config.steps

    def collect(self, policy: VLAPolicy | Explorer, updates: int) -> dict[str, float]:
        """Collect, store and score the rollouts of one iteration; return metrics of them."""
        episodes, scores = self._iteration(policy, updates)
        self.episodes += episodes
        self.rewards += [score.reward for score in scores]
        self.iteration += 1
        for resource in (self.actor_pool, self.intervention_source, self.worker):
            if resource and self.iteration == self.config.n_iterations:
                resource.close()
        return {
            **self._audit(len(episodes)),
            **self._audit_mismatched([s.mismatched for s in scores if s.mismatched]),
            "rollout/policy_lag": float(updates - min(e.version for e in episodes)),
        }

    def check_processes(self) -> None:
        """Restart the processes that collect and score where they have died, if there are any."""
        if self.actor_pool and self.iteration < self.config.n_iterations:
            self.actor_pool.check()

    def _iteration(
        self, policy: VLAPolicy | Explorer, updates: int
    ) -> tuple[list[Episode], list[EpisodeScore]]:
        """Return the next iteration and its scores, from here or from other processes."""
        config, start = self.config, self.start
        probs = None
        if config.jump_start.curriculum:
            this_run = slice(self.num_prior, None)
            probs = curriculum.guide_step_probs(
                self.episodes[this_run], self.rewards[this_run], config.jump_start.max_guide_steps
            )
            # An actor process reads them there.
            episode_store.write_guide_step_probs(start.experience, self.iteration, probs)
        if config.runtime.distributed:
            # Only now: an algorithm may have changed how the policy samples.
            self.actor_pool = self.actor_pool or ActorPool(
                config, start, policy, self.reward_source
            )
            self.actor_pool.publish(policy, updates)
            return self.actor_pool.take(self.iteration)
        episodes = self._collect(policy, updates, probs)
        name = episode_store.iteration_name(self.iteration)
        episode_store.write_iteration(start.experience, name, episodes)
        incremental_store.drop(start.experience, name)
        return episodes, self.reward_source.score(episodes)

    def _collect(
        self, policy: VLAPolicy | Explorer, updates: int, probs: np.ndarray | None
    ) -> list[Episode]:
        config, seed = self.config, self.config.rollout_seed(self.iteration)
        source = self.intervention_source or config.intervention.make_source(policy.robot)
        self.intervention_source = source
        controller = InterventionController(
            config, seed=seed, remaining=config.remaining(self.iteration),
            scorer=self.reward_source.scorer, views=self.reward_source.views, source=source,
            guide_step_probs=probs,
        )  # fmt: skip
        if config.backend.is_realtime:
            return self._collect_realtime(
                ActingPolicy(policy=policy, seed=seed, version=updates, controller=controller)
            )
        acting = ActingPolicy(policy=policy, seed=seed, version=updates, controller=controller)
        count = config.episodes_of(self.iteration)
        if self.worker is None:
            envs = min(config.parallel_envs, count)
            self.worker = RolloutWorker(policy, config.task, envs, config.backend)
        ended = {e.number: e for e in run_episodes(self.worker, acting, range(count))}
        return [ended[number] for number in range(count)]

    def _collect_realtime(self, acting: ActingPolicy) -> list[Episode]:
        """Collect on a real-time backend: each episode is stored when it ends, never repeated."""
        config, folder = self.config, self.start.experience
        name, count = (
            episode_store.iteration_name(self.iteration),
            config.episodes_of(self.iteration),
        )
        finished, _ = incremental_store.progress(folder, name)
        left = [number for number in range(count) if number not in finished]
        if left:
            worker = RolloutWorker(acting.policy, config.task, 1, config.backend)
            with contextlib.closing(worker):
                for episode in run_episodes(worker, acting, left):
                    incremental_store.write_episode(folder, name, episode)
        return [incremental_store.read_episode(folder, name, number) for number in range(count)]

    def restore(self, iterations: int) -> None:
        """Read the first iterations and their scores, or score them as they were."""
        folder = self.start.experience
        for name in map(episode_store.iteration_name, range(iterations)):
            episodes = episode_store.read_iteration(folder, name)
            scores = incremental_store.read_scores(folder, name, episodes)
            self._add(episodes, [score.reward for score in scores] if scores else None)
            self.iteration += 1
            self.drop_images()

    def _add(self, episodes: list[Episode], rewards: list[EpisodeReward] | None = None) -> None:
        self.rewards += rewards or self.reward_source.compute_rewards(episodes)
        self.episodes += episodes

    def drop_images(self) -> None:
        """Drop the images of rollouts, unless they are kept."""
        if self.keep_images == "all":
            return
        kept: set[int] = set()
        if self.keep_images == "first and latest":
            first, end = self.num_prior, len(self.episodes)
            kept.update(range(first, first + self.config.episodes_of(0)))
            kept.update(range(end - len(self.latest[0]), end))
        self.episodes = [
            e if i in kept else replace(e, images=e.images[:0].copy())
            for i, e in enumerate(self.episodes)
        ]

    def _audit(self, latest: int) -> dict[str, float]:
        """Compare the rewards of the latest episodes with those of the simulator's truth."""
        episodes, rewards = self.episodes[-latest:], self.rewards[-latest:]
        gamma = self.config.gamma
        truth = true_rewards(episodes, self.config.reward, gamma=gamma)
        predicted_return, true_return = (
            np.array([discounted(r.reward, gamma)[0] for r in each]) for each in (rewards, truth)
        )
        success = np.array([float(e.success) for e in episodes])
        predicted = np.array([r.success for r in rewards])
        spearman = ranks.spearman(predicted_return, true_return)
        return {
            "rollout/episodes": float(len(self.episodes) - self.num_prior),
            "rollout/success": float(success.mean()),
            "rollout/predicted_success": float(predicted.mean()),
            "rollout/success_accuracy": float((predicted == (success > 0)).mean()),
            "rollout/return": float(predicted_return.mean()),
            "rollout/reward_spearman": float(spearman),
            "rollout/reward_spearman_alarm": float(spearman < MIN_SPEARMAN),
            "rollout/control_steps": float(sum(e.steps for e in episodes)),
            "rollout/intervention_rate": float(
                np.mean(np.concatenate([e.is_intervention for e in episodes]))
            ),
            "rollout/intervention_episodes": float(
                np.mean([e.is_intervention.any() for e in episodes])
            ),
            "rollout/retry_episodes": float(np.mean([e.is_retry.any() for e in episodes])),
        }

    def _audit_mismatched(self, rewards: list[EpisodeReward]) -> dict[str, float]:
        """Return what episodes would have earned with another task's instruction."""
        if not rewards:
            return {}
        returns = [discounted(r.reward, self.config.gamma)[0] for r in rewards]
        return {
            "rollout/mismatched_success": float(np.mean([r.success for r in rewards])),
            "rollout/mismatched_return": float(np.mean(returns)),
        }


def _check_fits(episodes: list[Episode], policy: VLAPolicy, folder: Path) -> list[Episode]:
    """Return episodes of a prior run, unless of another robot, or of a policy unlike this one."""
    robot, config = policy.robot, policy.config
    camera = robot.cameras[0]
    shapes = {
        "actions": (config.n_action_steps, len(robot.channels)),
        "images": (len(robot.cameras), camera.height_px, camera.width_px, 3),
        "latents": policy.noise_shape[1:],
    }
    for name, expected in shapes.items():
        shape = getattr(episodes[0], name).shape[-len(expected) :]
        if shape != expected:
            raise ValueError(
                f"{folder}: {name} of shape {shape}, this policy has {expected}; leave it out"
            )
    return episodes
