"""The rounds of practice of one run: who acts, where, and what their episodes are worth."""

import contextlib
from pathlib import Path

import numpy as np

from reward_models.metrics import ranks
from training.rl import curriculum, store
from training.rl.clock import Stopwatch
from training.rl.config import PracticeConfig, Start
from training.rl.experience import Episode
from training.rl.help import Helper
from training.rl.judge import Judge, Verdict
from training.rl.practice import Acting, Stage, play, practise
from training.rl.processes import parts
from training.rl.processes.team import Team
from training.rl.returns import discounted
from training.rl.rewards import Worth, truth
from training.rl.stand_in import StandIn
from vla import checkpoint
from vla.data import check
from vla.data.store import EpisodeStore, load_episodes
from vla.policies.vla import VLAPolicy

ALARM = 0.3
"""Rank correlation of predicted and true returns below which the reward is not to be trusted."""


class Rounds:
    """The rounds of practice of one run, and what they are worth."""

    def __init__(self, config: PracticeConfig, start: Start) -> None:
        self.config, self.start = config, start
        self.policy, self.origin = checkpoint.load_ours(start.policy, "practice", config.device)
        self.judge = Judge(config, start, self.policy.robot)
        self.team: Team | None = None
        self.stand_in: StandIn | None = None
        self.demos = _demonstrations(self.policy, start.demos)
        self.episodes: list[Episode] = []
        self.worth: list[Worth] = []
        self.count = 0
        self.clock = Stopwatch()
        for place in start.earlier:
            self._take_(_fitting(store.read_newest(place, config.earlier), self.policy, place))
        self.earlier = len(self.episodes)

    def due(self, updates: int) -> bool:
        """Whether practice comes before update `updates` (from 0)."""
        return updates * self.config.rounds >= self.count * self.config.steps

    def practise(self, policy: VLAPolicy, updates: int) -> dict[str, float]:
        """Practise one round, keep it, judge it; return figures of it."""
        with self.clock.on("practise"):
            found, told = self._round(policy, updates)
            self.episodes += found
            self.worth += [one.worth for one in told]
            self.count += 1
            for one in (self.team, self.stand_in):
                if one and self.count == self.config.rounds:
                    one.close()
            behind = updates - min(e.version for e in found)
            return {
                **self._audit(len(found)),
                **self._audit_foreign([one.foreign for one in told if one.foreign]),
                "practice/behind": float(behind),
            }

    def tend(self) -> None:
        """See to the processes that practise and judge, if there are any."""
        if self.team and self.count < self.config.rounds:
            self.team.tend()

    def _round(self, policy: VLAPolicy, updates: int) -> tuple[list[Episode], list[Verdict]]:
        """Return the next round and what it is worth, from here or from other processes."""
        config, start = self.config, self.start
        leads = None
        if config.help.curriculum:
            mine = slice(self.earlier, None)
            leads = curriculum.leads(self.episodes[mine], self.worth[mine], config.help.lead)
            store.write_leads(start.experience, self.count, leads)  # an actor reads them there
        if config.runtime.processes:
            # Only now: an algorithm may have changed how the policy samples.
            self.team = self.team or Team(config, start, policy, self.judge)
            self.team.publish(policy, updates)
            return self.team.take(self.count)
        found = self._practise(policy, updates, leads)
        store.write_round(start.experience, store.name_of(self.count), found)
        parts.drop(start.experience, store.name_of(self.count))
        with self.clock.on("score"):
            return found, self.judge.verdicts(found)

    def _practise(self, policy: VLAPolicy, updates: int, leads: np.ndarray | None) -> list[Episode]:
        config, seed, judge = self.config, self.config.seed_of(self.count), self.judge
        self.stand_in = self.stand_in or config.help.begin(policy.robot)
        helper = Helper(
            config.help, seed=seed, left=config.left(self.count), scorer=judge.scorer,
            views=judge.views, stand_in=self.stand_in, leads=leads,
        )  # fmt: skip
        if config.backend.live:
            return self._live(Acting(policy=policy, seed=seed, version=updates, helper=helper))
        return practise(
            policy, config.task, episodes=config.episodes, seed=seed, version=updates,
            environments=config.side_by_side, helper=helper, clock=self.clock,
        )  # fmt: skip

    def _live(self, acting: Acting) -> list[Episode]:
        """Practise where time is real: what has ended is kept at once, and not done again."""
        config, folder, name = self.config, self.start.experience, store.name_of(self.count)
        there, _ = parts.there(folder, name)
        left = [number for number in range(config.episodes) if number not in there]
        if left:
            stage = Stage(acting.policy, config.task, 1, self.clock, config.backend)
            with contextlib.closing(stage):
                for episode in play(stage, acting, left):
                    parts.keep(folder, name, episode)
        return [parts.read(folder, name, number) for number in range(config.episodes)]

    def restore_(self, count: int) -> None:
        """Read the first `count` rounds and what was said of them, or judge them as they were."""
        folder = self.start.experience
        for name in map(store.name_of, range(count)):
            episodes = store.read_round(folder, name)
            told = parts.told(folder, name, episodes)
            self._take_(episodes, [one.worth for one in told] if told else None)
        self.count = count

    def _take_(self, episodes: list[Episode], told: list[Worth] | None = None) -> None:
        with self.clock.on("score"):
            self.worth += told or self.judge.worth(episodes)
        self.episodes += episodes

    def _audit(self, latest: int) -> dict[str, float]:
        """Compare what the reward says of the latest episodes with what the simulator says."""
        episodes, told = self.episodes[-latest:], self.worth[-latest:]
        gamma = self.config.gamma
        real = truth(episodes, self.config.reward, gamma=gamma)
        predicted, returns = (
            np.array([discounted(w.reward, gamma)[0] for w in one]) for one in (told, real)
        )
        true = np.array([float(e.success) for e in episodes])
        claimed = np.array([w.success for w in told])
        agreement = ranks.spearman(predicted, returns)
        return {
            "practice/episodes": float(len(self.episodes) - self.earlier),
            "practice/success": float(true.mean()),
            "practice/claimed": float(claimed.mean()),
            "practice/right": float((claimed == (true > 0)).mean()),
            "practice/return": float(predicted.mean()),
            "practice/agreement": float(agreement),
            "practice/alarm": float(agreement < ALARM),
            "practice/control_steps": float(sum(e.steps for e in episodes)),
            "practice/helped": float(np.mean(np.concatenate([e.helped for e in episodes]))),
            "practice/attended": float(np.mean([e.helped.any() for e in episodes])),
            "practice/retried": float(np.mean([e.retried.any() for e in episodes])),
        }

    def _audit_foreign(self, told: list[Worth]) -> dict[str, float]:
        """Return what episodes would have earned, had the instruction been another task's."""
        if not told:
            return {}
        earned = [discounted(w.reward, self.config.gamma)[0] for w in told]
        return {
            "practice/foreign": float(np.mean([w.success for w in told])),
            "practice/foreign_return": float(np.mean(earned)),
        }


def _fitting(episodes: list[Episode], policy: VLAPolicy, place: Path) -> list[Episode]:
    """Return episodes of an earlier run.

    Raises:
        ValueError: they were practised by another robot, or by a policy unlike this one.
    """
    robot, config = policy.robot, policy.config
    camera = robot.cameras[0]
    wanted = {
        "actions": (config.execute, len(robot.channels)),
        "images": (len(robot.cameras), camera.height_px, camera.width_px, 3),
        "latents": policy.noise_shape,
    }
    for name, shape in wanted.items():
        got = getattr(episodes[0], name).shape[1:]
        if got != shape:
            raise ValueError(
                f"{place}: {name} of shape {got}, this policy has {shape}; leave it out"
            )
    return episodes


def _demonstrations(policy: VLAPolicy, demos: Path) -> EpisodeStore:
    side = policy.config.backbone.image_px
    found = load_episodes(
        demos, cameras=policy.config.cameras, image_hw=(side, side),
        # Without memory every step can stand for a decision; with one, only those of its cadence.
        stride=policy.config.execute if policy.remembers else 1, phase_seed=0, phases=1,
        cache_dir=demos.parent / f"{demos.name}-cache",
    )  # fmt: skip
    check.fits_robot(found, policy.robot, demos)
    return found
