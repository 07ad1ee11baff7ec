"""Registers every task with Gymnasium as "mneme/TaskName-v0" when imported; imports no simulator.

`import sim.gym_plugin`, or name it: `gymnasium.make("sim.gym_plugin:mneme/CueColour-v0")`.
"""

from gymnasium.envs import registration

from vla.contracts import registry

NAMESPACE = "mneme"


def register() -> None:
    """Register all tasks; doing it twice does no harm."""
    for task in registry.names("sim.tasks"):
        if env_id(task) not in registration.registry:
            registration.register(
                id=env_id(task), entry_point="sim.vector.gym_env:MnemeEnv", kwargs={"task": task}
            )


def env_id(task: str) -> str:
    """Return the Gymnasium id of a task: cue_colour is "mneme/CueColour-v0"."""
    return f"{NAMESPACE}/{''.join(word.capitalize() for word in task.split('_'))}-v0"


register()
