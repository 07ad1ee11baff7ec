"""The scripted expert of the simulated task; it acts in the environment."""

from training.rl.intervention.source import InterventionAction, InterventionContext
from vla.contracts.specs import RobotSpec


class Expert:
    """Satisfies `InterventionSource`."""

    every_step = False

    def act(self, context: InterventionContext) -> InterventionAction:
        """Act where an intervention is due."""
        return InterventionAction(active=context.requested, actions=None)

    def close(self) -> None:
        """Release nothing."""


def build(config: object, robot: RobotSpec) -> Expert:
    """Return the expert, which needs no settings."""
    return Expert()
