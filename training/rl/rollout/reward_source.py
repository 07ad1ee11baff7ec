"""The source of reward that a run names, and its reward model."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reward_models.core import checkpoint
from reward_models.core.scorer import Scorer
from sim import vec_env
from training.rl.config import OnlineRLConfig, Start
from training.rl.experience.episode import Episode
from training.rl.experience.rewards import EpisodeReward, compute_rewards
from vla.contracts import config as configs
from vla.contracts import registry
from vla.contracts.protocols import RewardModel
from vla.contracts.specs import RobotSpec

MISMATCHED_EPISODES = 10
"""First episodes of an iteration, which are also scored with another task's instruction."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EpisodeScore:
    """Rewards of one rollout."""

    reward: EpisodeReward
    """With its own instruction."""
    mismatched: EpisodeReward | None
    """With the instruction of another task; None if not computed."""


class RewardSource:
    """Computes the rewards of one run's rollouts.

    Args:
        config: Names the source of reward.
        start: Where the reward model is.
        robot: Its cameras are those of the episodes.

    Raises:
        ValueError: a reward model is needed and none is given, or it needs other cameras.
    """

    def __init__(self, config: OnlineRLConfig, start: Start, robot: RobotSpec) -> None:
        self.config = config
        self.scorer, self.views = _reward_model(config, start, robot)
        task = configs.type_name(config.task)
        other = next(name for name in registry.names("sim.tasks") if name != task)
        self.mismatched_task = vec_env.load_task(other).build(robot).instructions[0]

    def compute_rewards(self, episodes: Sequence[Episode]) -> list[EpisodeReward]:
        """Return the rewards of episodes."""
        config = self.config
        return compute_rewards(
            episodes, config.reward, gamma=config.gamma, scorer=self.scorer, views=self.views
        )

    def score(self, episodes: Sequence[Episode]) -> list[EpisodeScore]:
        """Return the rewards of episodes, and of the first ones with another instruction.

        The numbers follow from the episodes but for the rounding of batches of another size.
        """
        first = [e for e in episodes if e.number < MISMATCHED_EPISODES] if self.scorer else []
        others = [replace(e, task=self.mismatched_task) for e in first]
        rewards = self.compute_rewards(others) if others else []
        mismatched = {e.number: reward for e, reward in zip(first, rewards, strict=True)}
        return [
            EpisodeScore(reward=reward, mismatched=mismatched.get(e.number))
            for e, reward in zip(episodes, self.compute_rewards(episodes), strict=True)
        ]


def _reward_model(
    config: OnlineRLConfig, start: Start, robot: RobotSpec
) -> tuple[RewardModel | None, tuple[int, ...]]:
    """Return the reward model, if the reward names one, and its cameras among the robot's."""
    if "learned" not in config.reward:
        return None, ()
    if start.reward_model is None:
        raise ValueError(
            f"reward {config.reward!r} needs a reward model; give one with --reward-model"
        )
    scorer = checkpoint.load(start.reward_model)
    return scorer, tuple(camera_indices(scorer, robot, str(start.reward_model)))


def camera_indices(scorer: Scorer, robot: RobotSpec, name: str) -> list[int]:
    """Return the indices of a reward model's cameras; ValueError if the robot lacks one."""
    needed = scorer.reward_model.cameras
    cameras = [camera.name for camera in robot.cameras]
    missing = [name for name in needed if name not in cameras]
    if missing:
        raise ValueError(
            f"{name} needs {', '.join(missing)}; {robot.name} has only {', '.join(cameras)}"
        )
    return [cameras.index(name) for name in needed]
