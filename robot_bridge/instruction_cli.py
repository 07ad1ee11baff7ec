"""`vla ros execute`: has an arm follow an instruction until it is done, and shows how far it is."""

import signal
import threading
from dataclasses import dataclass
from typing import Annotated

import tyro.conf
from rich.console import Console

from robot_bridge.launching import interfaces
from vla.utils import arguments

LONGEST_S = 86_400.0
"""Longest time limit."""


@dataclass(frozen=True, kw_only=True)
class InstructionArgs:
    """Have an arm follow an instruction until the reward model says that it is done.

    The arm has to be enabled (`vla safety enable`), and is held afterwards. Ctrl-C cancels.
    """

    instruction: Annotated[str, tyro.conf.Positional]
    """What to do."""
    time_limit_s: float = 0.0
    """Time limit in s; 0 for the policy node's own."""
    namespace: str = ""
    """Namespace of the arm."""

    def __post_init__(self) -> None:
        if not 0 <= self.time_limit_s <= LONGEST_S:
            raise ValueError(f"time_limit_s: got {self.time_limit_s}, expected 0 to {LONGEST_S:g}")
        if not self.instruction.strip():
            raise ValueError("instruction: got an empty one; say what to do")


def main(argv: list[str]) -> int:
    """Run `vla ros execute INSTRUCTION`; return 0 if it was done, else 1.

    Raises:
        ValueError: the action is not offered, or rejects the instruction.
    """
    args = arguments.read(InstructionArgs, argv, "vla ros execute")
    if not interfaces.available():
        raise ValueError(
            f"no {interfaces.PACKAGE} in this environment: vla ros interfaces builds it; with "
            "ROS 2 of the system, colcon builds launch/interfaces"
        )
    from robot_bridge.nodes.instruction_client import InstructionClient, text

    console = Console()
    with InstructionClient(args.namespace, "instruction_client") as client:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, lambda *_: client.cancel())
        with console.status("waits for the policy node") as shown:
            result = client.run(
                args.instruction, args.time_limit_s, lambda said: shown.update(text(said))
            )
    done = result.error_code == 0
    ended = "done" if done else "not done"
    print(f"{ended} after {result.elapsed_s:.1f} s: {result.error_msg}")
    return 0 if done else 1
