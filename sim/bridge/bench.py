"""`python -m sim.bridge.bench`: what the process bridge adds to a step, beside the same environment
in this process; the two take turns in one run, and medians of single steps are compared.
"""

import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from sim import hosts
from sim.backends.process import Config, HostedVecEnv
from sim.gym_plugin import env_id
from sim.suites import gymnasium_env
from vla import arguments
from vla.contracts import registry
from vla.contracts.config import check_least

ROOT = Path(hosts.__path__[0]).parents[1]
BAR = 0.1


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchArgs:
    """Measure the bridge under a task of ours, with its two cameras of 96 pixels."""

    task: str = "pick_place"
    """Which one."""
    steps: int = 200
    """Of one turn."""
    turns: int = 7
    """Of each."""

    def __post_init__(self) -> None:
        """Refuse what is no task, and numbers out of range."""
        registry.check("sim.tasks", self.task)
        check_least(self, steps=1, turns=1)


def main(argv: list[str] | None = None) -> int:
    """Measure and print; 1 if the bridge takes 10 % of a step or more."""
    words = sys.argv[1:] if argv is None else argv
    args = arguments.read(BenchArgs, words, "python -m sim.bridge.bench")
    taken = measure(args.task, args.steps, args.turns)
    here, bridge = (np.median(np.concatenate(turns)) for turns in taken.values())
    table = Table("one step, two cameras", "median ms", "its turns")
    for name, turns in taken.items():
        each = " ".join(f"{1e3 * np.median(turn):.2f}" for turn in turns)
        table.add_row(name, f"{1e3 * np.median(np.concatenate(turns)):.3f}", each)
    Console(highlight=False).print(table)
    share = bridge / here - 1.0
    print(f"the bridge adds {1e6 * (bridge - here):.0f} us, {share:.1%} of a step (bar {BAR:.0%})")
    return int(share >= BAR)


def measure(task: str, steps: int, turns: int) -> dict[str, list[np.ndarray]]:
    """Return the seconds of each step, by turn, in this process and through the bridge."""
    name = f"sim.gym_plugin:{env_id(task)}"
    inside = gymnasium_env.Config(name=name)
    outside = gymnasium_env.Config(name=name, interpreter=sys.executable, path=str(ROOT))
    robot = inside.arm()
    envs = {
        "in this process": Config().build(inside, robot, 1),
        "process bridge": Config().build(outside, robot, 1),
    }
    taken: dict[str, list[np.ndarray]] = {name: [] for name in envs}
    actions = _swing(envs["in this process"], steps)
    for turn in range(turns + 1):
        for name, env in envs.items():
            env.reset(0)
            seconds = np.zeros(steps)
            for i, action in enumerate(actions):
                begin = time.perf_counter()
                env.step(action)
                seconds[i] = time.perf_counter() - begin
            if turn:  # the first warms up
                taken[name].append(seconds)
    for env in envs.values():
        env.close()
    return taken


def _swing(env: HostedVecEnv, steps: int) -> np.ndarray:
    """Return actions f32 [steps, 1, u] that move the arm about where it began."""
    home = env.reset(0).proprio
    wave = 0.15 * np.sin(np.arange(steps) * 0.3)
    return (home[None] + wave[:, None, None]).astype(np.float32)


if __name__ == "__main__":
    sys.exit(main())
