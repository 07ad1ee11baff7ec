"""Registers every task with Gymnasium as "mneme/TaskName-v0"; imports no simulator."""

from gymnasium.envs import registration

from vla.contracts import registry

NAMESPACE = "mneme"


def register() -> None:
    """Register all tasks; Gymnasium calls this entry point (group "gymnasium.envs") by itself."""
    for task in registry.names("sim.tasks"):
        if env_id(task) not in registration.registry:
            registration.register(
                id=env_id(task), entry_point="sim.gym_env:MnemeEnv", kwargs={"task": task}
            )


def env_id(task: str) -> str:
    """Return the Gymnasium id of a task: cue_colour is "mneme/CueColour-v0"."""
    return f"{NAMESPACE}/{''.join(word.capitalize() for word in task.split('_'))}-v0"
