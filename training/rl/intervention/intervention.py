"""When an agent other than the policy acts in a rollout, and when a rollout ends early.

A jump start begins an episode in the middle of the work (Uchendu et al. 2023); jump starts shrink
from iteration to iteration, or are drawn by `training.rl.runners.curriculum`. Where the learned
progress stalls, an episode with retries retraces and tries again (after VLAC), and in an episode
with interventions the intervention source replaces the policy's actions. Episodes keep who acted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from training.rl.experience.episode import ActionSource
from training.rl.intervention.retry import Retry
from training.rl.intervention.source import InterventionSource
from vla.contracts import registry
from vla.contracts.config import validate_min
from vla.contracts.protocols import RewardModel
from vla.contracts.specs import RobotSpec
from vla.contracts.types import Frames, Observation

SOURCES = "training.rl.intervention_sources"
"""Package of the intervention sources."""
MIN_RISE = 0.05
"""Rise of the predicted progress that counts as progress."""


@dataclass(frozen=True, kw_only=True)
class InterventionConfig:
    """Interventions where progress stalls."""

    source: str = "expert"
    """Who intervenes: "expert", the scripted one in the simulator, or "human", a person at a page
    in a browser on this machine, in real time, who may take over at any time."""
    fraction: float = 0.0
    """Share of episodes in which an intervention comes when progress stalls, in [0, 1]."""
    patience: int = 3
    """Decisions without progress after which an intervention or a retry is due."""
    port: int = 0
    """Port of the person's page on this machine; a free one if 0."""
    response_timeout_s: float = 20.0
    """Seconds for which a person is waited for; then the policy continues."""

    def __post_init__(self) -> None:
        registry.check(SOURCES, self.source)
        validate_min(self, fraction=0, patience=1, port=0, response_timeout_s=0)

    def make_source(self, robot: RobotSpec) -> InterventionSource:
        """Return the intervention source."""
        return registry.load(SOURCES, self.source).build(self, robot)


@dataclass(frozen=True, kw_only=True)
class JumpStartConfig:
    """Episodes that an expert begins."""

    fraction: float = 0.0
    """Share of episodes that begin with a jump start, in [0, 1]."""
    max_guide_steps: int = 8
    """Decisions of the longest jump start in the first iteration; none in the last."""
    curriculum: bool = False
    """Jump starts do not shrink: their length is drawn by s (1 - s), where s is the share of
    success after as long a one in earlier iterations, by the reward."""

    def __post_init__(self) -> None:
        validate_min(self, fraction=0, max_guide_steps=1)
        if self.curriculum and not self.fraction:
            raise ValueError(
                "jump_start.curriculum: got no jump starts to draw; say which share of episodes "
                "begins with one, such as --jump-start.fraction 0.5"
            )


@dataclass(frozen=True, kw_only=True)
class RetryConfig:
    """Retries where progress stalls."""

    fraction: float = 0.0
    """Share of episodes in which the arm first retraces its way and tries again with an offset, in
    [0, 1]; if the episode has interventions, too, one comes the next time."""
    offset_std_m: float = 0.02
    """Standard deviation of the offset in x and in y, metres. 0 for a policy that is seldom wrong
    twice in the same way: there, an offset misses what the policy alone would grasp."""

    def __post_init__(self) -> None:
        validate_min(self, fraction=0, offset_std_m=0)


@dataclass(frozen=True, kw_only=True)
class EarlyTerminationConfig:
    """Episodes that end before their time limit."""

    patience: int = 0
    """Decisions without progress after which an episode without interventions and retries ends;
    0: never."""

    def __post_init__(self) -> None:
        validate_min(self, patience=0)


@dataclass(frozen=True, kw_only=True)
class EpisodeControlConfig:
    """Who acts in a rollout apart from the policy, and when it ends early."""

    intervention: InterventionConfig = field(default_factory=InterventionConfig)
    """Interventions where progress stalls."""
    jump_start: JumpStartConfig = field(default_factory=JumpStartConfig)
    """Episodes that an expert begins."""
    retry: RetryConfig = field(default_factory=RetryConfig)
    """Retries where progress stalls."""
    early_termination: EarlyTerminationConfig = field(default_factory=EarlyTerminationConfig)
    """Episodes that end before their time limit."""

    def __post_init__(self) -> None:
        """Refuse shares above 1."""
        for name in ("intervention", "jump_start", "retry"):
            fraction = getattr(self, name).fraction
            if fraction > 1:
                raise ValueError(f"{name}.fraction: got {fraction}, expected at most 1")

    @property
    def needs_progress(self) -> bool:
        """Whether the reward model's progress is watched during rollouts."""
        fraction = max(self.intervention.fraction, self.retry.fraction)
        patience = self.early_termination.patience
        return max(fraction, patience) > 0 or self.intervention.source != "expert"


class _EpisodePlan(NamedTuple):
    """What is drawn for an episode."""

    guide_steps: int
    """Decisions of its jump start."""
    intervenes: bool
    retries: bool


class InterventionController:
    """Decides at every decision in which environments an agent other than the policy acts.

    What it decides for an episode follows from its seed and number alone, whatever runs next to
    it, unless a person acts in it.

    Args:
        config: Shares and limits.
        seed: Of the episodes.
        remaining: Share of the iterations that are still to come, in [0, 1].
        scorer: Reward model that sees whether there is progress; needed if the configuration
            `needs_progress`.
        views: Its cameras among the robot's.
        source: Who intervenes; the scripted expert if None.
        guide_step_probs: Probability of a jump start of 0, 1, ... decisions, f64 [l]; uniform up to
            a limit that shrinks with `remaining` if None.
    """

    def __init__(
        self, config: EpisodeControlConfig, *, seed: int, remaining: float,
        scorer: RewardModel | None, views: Sequence[int], source: InterventionSource | None = None,
        guide_step_probs: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.config, self.seed, self.scorer, self.views = config, seed, scorer, list(views)
        self.source = source or registry.load(SOURCES, "expert").Expert()
        self.max_guide_steps = round(config.jump_start.max_guide_steps * remaining)
        self.guide_step_probs = guide_step_probs
        self.watched: dict[int, _WatchedEpisode] = {}

    def needs_intervention(
        self, obs: Observation, rows: np.ndarray, number: np.ndarray, decision: np.ndarray
    ) -> np.ndarray:
        """Return in which of some environments an intervention is due now, bool [d].

        Args:
            obs: What is seen in them at this decision.
            rows: i64 [d], which environments they are.
            number: i64 [d], number of the episode of each.
            decision: i64 [d], decisions before this one.
        """
        plans = [self._plan(int(n)) for n in number]
        guided = decision < np.array([plan.guide_steps for plan in plans])
        for i, plan in enumerate(plans):
            if decision[i] == 0:
                self._watch(obs, i, int(rows[i]), int(number[i]), plan)
        due = [
            row in self.watched
            and self._should_intervene(obs, i, row, bool(decision[i] == 0), bool(guided[i]))
            for i, row in enumerate(rows.tolist())
        ]
        return guided | np.array(due)

    def should_terminate(self, rows: np.ndarray) -> np.ndarray:
        """Return in which environments i64 [d] the episode ends early, as of the last
        `needs_intervention`: bool [d].
        """
        return np.array([self._should_terminate(row) for row in rows.tolist()])

    def _should_terminate(self, row: int) -> bool:
        episode, patience = self.watched.get(row), self.config.early_termination.patience
        if not patience or episode is None or episode.intervenes or episode.retry is not None:
            return False
        return episode.stalled_for >= patience

    def apply_retries(
        self, robot: RobotSpec, rows: np.ndarray, proprio: np.ndarray, plan: np.ndarray
    ) -> np.ndarray:
        """Return who acts in environments without an intervention (`ActionSource`), i8 [d].

        Args:
            robot: The arm.
            rows: i64 [d], which environments they are; `needs_intervention` saw this decision.
            proprio: f32 [d, u], measured.
            plan: f32 [d, h, u], the policy's actions; overwritten where a retry replaces them.
        """
        sources = np.full(len(rows), ActionSource.POLICY, np.int8)
        for i, row in enumerate(rows.tolist()):
            retry = self.watched[row].retry if row in self.watched else None
            if retry is not None:
                sources[i] = retry.action_source
                plan[i] = retry.actions(robot, proprio[i], plan[i])
        return sources

    def on_intervention(self, row: int) -> None:
        """Note an intervention in an environment: progress is waited for from zero there."""
        episode = self.watched.get(row)
        if episode is None:
            return
        episode.stalled_for = 0
        if episode.retry is not None:
            episode.retry.end()
        if self.source.every_step:
            episode.requested = False  # the expert stays to the end; a person gives back

    def progress(self, rows: np.ndarray) -> np.ndarray:
        """Return the latest predicted progress of some environments, f32 [d]; NaN if none."""
        values = [self.watched[r].value if r in self.watched else np.nan for r in rows.tolist()]
        return np.array(values, np.float32)

    def _plan(self, number: int) -> _EpisodePlan:
        """Draw what happens in an episode."""
        rng, config = np.random.default_rng([self.seed, 2, number]), self.config
        fractions = (config.jump_start.fraction, config.intervention.fraction)
        guided, intervenes = rng.random(2) < fractions
        guide_steps = self._guide_steps(rng) if guided else 0
        return _EpisodePlan(
            guide_steps, bool(intervenes), bool(rng.random() < config.retry.fraction)
        )

    def _guide_steps(self, rng: np.random.Generator) -> int:
        if self.guide_step_probs is None:
            return int(rng.integers(self.max_guide_steps + 1))
        return int(rng.choice(len(self.guide_step_probs), p=self.guide_step_probs))

    def _watch(self, obs: Observation, i: int, row: int, number: int, plan: _EpisodePlan) -> None:
        """Watch the progress of an episode in environment `row`, row i of `obs`, if it matters."""
        self.watched.pop(row, None)
        shown = self.source.every_step and self.scorer is not None
        ends_early = self.config.early_termination.patience
        if not (plan.intervenes or plan.retries or ends_early or shown):
            return
        assert self.scorer is not None
        self.watched[row] = episode = _WatchedEpisode(
            self.scorer.start(1), intervenes=plan.intervenes
        )
        if plan.retries:
            rng = np.random.default_rng([self.seed, 3, number])
            episode.retry = Retry(
                np.asarray(obs.proprio)[i].copy(), rng, self.config.retry.offset_std_m
            )

    def _should_intervene(
        self, obs: Observation, i: int, row: int, first: bool, guided: bool
    ) -> bool:
        """Score row i of `obs`, environment `row`; return whether an intervention is due."""
        assert self.scorer is not None
        episode, part = self.watched[row], slice(i, i + 1)
        if episode.requested and not self.source.every_step:
            return True
        frames = Frames(
            images=np.asarray(obs.images)[part][:, self.views],
            image_ok=np.asarray(obs.image_ok)[part][:, self.views],
            time_s=np.asarray(obs.time_s)[part], episode_index=np.zeros(1, np.int64),
        )  # fmt: skip
        prediction, episode.state = self.scorer.step(episode.state, frames, obs.task[part])
        episode.value = value = float(prediction.value[0])
        rose = value >= episode.best + MIN_RISE  # never where the reward model abstains
        episode.best = value if rose else episode.best
        episode.stalled_for = 0 if rose or guided or first else episode.stalled_for + 1
        stalled = episode.stalled_for >= self.config.intervention.patience
        if episode.retry is not None and episode.intervenes and stalled and episode.retry.count:
            episode.retry = None  # the retry did not help
        if episode.retry is None:
            episode.requested = episode.requested or (stalled and episode.intervenes)
        elif episode.retry.step(stalled, value):
            episode.best, episode.stalled_for = float(np.nan_to_num(value)), 0
        return episode.requested


@dataclass
class _WatchedEpisode:
    """Progress of a running episode."""

    state: Any
    """The reward model's."""
    intervenes: bool
    """Whether an intervention comes when progress stalls."""
    retry: Retry | None = None
    """Its retries, if it makes any."""
    value: float = np.nan
    """The latest progress."""
    best: float = 0.0
    """Most progress so far."""
    stalled_for: int = 0
    """Decisions since it rose."""
    requested: bool = False
    """Whether an intervention was asked for."""
