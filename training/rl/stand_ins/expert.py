"""The scripted expert of the simulated task: wherever help is due it acts, in the environment."""

from training.rl.stand_in import Moment, Move
from vla.contracts.specs import RobotSpec


class Expert:
    """Satisfies `StandIn`."""

    live = False

    def act(self, now: Moment) -> Move:
        """Act where help is due."""
        return Move(acts=now.asked, actions=None)

    def close(self) -> None:
        """Leave nothing behind: there is nothing."""


def build(config: object, robot: RobotSpec) -> Expert:
    """Return the expert, which needs to know nothing."""
    return Expert()
