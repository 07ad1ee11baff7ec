"""Who says what practice is worth: the source of reward that a run names, and its critic."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from reward_models import checkpoint as critics
from reward_models.scorer import Scorer
from sim import vec_env
from training.rl.config import PracticeConfig, Start
from training.rl.experience import Episode
from training.rl.rewards import Worth, worth
from vla.contracts import config as configs
from vla.contracts import registry
from vla.contracts.config import PluginConfig
from vla.contracts.protocols import RewardModel
from vla.contracts.specs import RobotSpec

FOREIGN = 10
"""Episodes of a round, the first ones, that are also judged by an instruction of another task."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Verdict:
    """What one practised episode is worth."""

    worth: Worth
    """By its own instruction."""
    foreign: Worth | None
    """What it would have been worth, had the instruction been another task's; None if not asked."""


class Judge:
    """Judges practised episodes of one run.

    Args:
        config: Names the source of reward.
        start: Where the critic is.
        robot: Its cameras are those of the episodes.

    Raises:
        ValueError: a critic is needed and none is given, or it looks through other cameras.
    """

    def __init__(self, config: PracticeConfig, start: Start, robot: RobotSpec) -> None:
        self.config = config
        self.scorer, self.views = _critic(config, start, robot)
        self.foreign = _foreign(config.task, robot)

    def worth(self, episodes: Sequence[Episode]) -> list[Worth]:
        """Return what episodes are worth."""
        config = self.config
        return worth(
            episodes, config.reward, gamma=config.gamma, scorer=self.scorer, views=self.views
        )

    def verdicts(self, episodes: Sequence[Episode]) -> list[Verdict]:
        """Return what episodes are worth, and what the first of a round would be elsewhere.

        The numbers follow from the episodes but for the rounding of batches of another size.
        """
        asked = [e for e in episodes if e.number < FOREIGN] if self.scorer else []
        told = self.worth([replace(e, task=self.foreign) for e in asked]) if asked else []
        foreign = {e.number: one for e, one in zip(asked, told, strict=True)}
        return [
            Verdict(worth=one, foreign=foreign.get(e.number))
            for e, one in zip(episodes, self.worth(episodes), strict=True)
        ]


def _critic(
    config: PracticeConfig, start: Start, robot: RobotSpec
) -> tuple[RewardModel | None, tuple[int, ...]]:
    """Return the critic, if the reward names one, and its cameras among the robot's.

    Raises:
        ValueError: none is given, or it looks through cameras the robot does not have.
    """
    if "critic" not in config.reward:
        return None, ()
    if start.critic is None:
        raise ValueError(f"reward {config.reward!r} needs a critic; give one with --critic")
    scorer: Scorer = critics.load(start.critic)
    known = [camera.name for camera in robot.cameras]
    missing = [name for name in scorer.critic.cameras if name not in known]
    if missing:
        raise ValueError(
            f"{start.critic}: looks through {', '.join(missing)}; {robot.name} has only "
            f"{', '.join(known)}"
        )
    return scorer, tuple(known.index(name) for name in scorer.critic.cameras)


def _foreign(task: PluginConfig, robot: RobotSpec) -> str:
    """Return an instruction of another task."""
    others = [name for name in registry.names("sim.tasks") if name != configs.type_name(task)]
    return vec_env.load_task(others[0]).build(robot).instructions[0]
