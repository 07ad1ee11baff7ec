"""`vla tasks`: lists tasks and robots by name, or describes one; lists import nothing heavy."""

import argparse
import dataclasses

from rich.console import Console
from rich.table import Table

from vla.contracts import registry

TASKS, SUITES, ROBOTS = "sim.tasks", "sim.suites", "vla.robots"


def main(argv: list[str]) -> int:
    """Print the names of tasks and robots, or all about one of them.

    Raises:
        ValueError: there is no such task or robot.
    """
    parser = argparse.ArgumentParser(prog="vla tasks", description="List tasks and robots.")
    parser.add_argument("--describe", metavar="NAME", help="a task or a robot to describe")
    name = parser.parse_args(argv).describe
    console = Console(highlight=False)
    if name is None:
        table = Table("kind", "names")
        table.add_row("tasks", ", ".join(registry.names(TASKS)))
        table.add_row("suites", ", ".join(registry.names(SUITES)) + " (vla env list)")
        table.add_row("robots", ", ".join(registry.names(ROBOTS)))
        console.print(table)
        console.print("more about one of them: vla tasks --describe NAME")
    elif name in registry.names(ROBOTS):
        _describe_robot(console, name)
    else:
        _describe_task(console, registry.check(TASKS, name))
    return 0


def _describe_task(console: Console, name: str) -> None:
    module = registry.load(TASKS, name)
    console.print(f"[bold]{name}[/bold]: {_first_line(module.__doc__)}")
    config = module.Config()
    task = config.build(registry.load(ROBOTS, "so101").SPEC)
    table = Table("setting", "default")
    for field in dataclasses.fields(config):
        table.add_row(field.name, str(getattr(config, field.name)))
    console.print(table)
    console.print(f"at most {task.max_episode_steps} control steps; instructions:")
    for instruction in task.instructions:
        console.print(f"  {instruction}")


def _describe_robot(console: Console, name: str) -> None:
    module = registry.load(ROBOTS, name)
    robot = module.SPEC
    console.print(f"[bold]{name}[/bold]: {_first_line(module.__doc__)}")
    table = Table("channel", "unit", "low", "high", "velocity", "acceleration", "jerk", "home")
    for channel, home in zip(robot.channels, robot.home, strict=True):
        limits = (channel.low, channel.high, channel.velocity, channel.acceleration, channel.jerk)
        table.add_row(channel.name, channel.unit, *(f"{x:g}" for x in (*limits, home)))
    console.print(table)
    cameras = ", ".join(f"{c.name} {c.width_px}x{c.height_px}" for c in robot.cameras)
    console.print(f"{robot.control_hz:g} Hz; cameras: {cameras}; model: {robot.mjcf}")


def _first_line(text: str | None) -> str:
    return (text or "").split("\n", 1)[0]
