"""`vla safety`: enable, stop and inspect a safety node, without the `ros2` command."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro.conf

from robot_bridge.safety.gate_config import STAGES
from vla.utils import arguments

What = Literal["enable", "disable", "estop", "reset", "status"]


@dataclass(frozen=True, kw_only=True)
class SafetyArgs:
    """Enable, stop or inspect the safety node of an arm."""

    what: Annotated[What, tyro.conf.Positional]
    """enable lets the arm move; disable brings it to rest; estop brings it to rest and latches;
    reset clears the latch; status prints the state."""
    namespace: str = ""
    """Namespace of the arm."""


def main(argv: list[str]) -> int:
    """Run `vla safety COMMAND`; return the exit code.

    Raises:
        ValueError: there is no safety node, or it refuses.
    """
    args = arguments.read(SafetyArgs, argv, "vla safety")
    from robot_bridge.nodes.operator import Operator

    with Operator(args.namespace) as operator:
        if args.what in ("enable", "disable"):
            operator.enable(args.what == "enable")
        elif args.what == "estop":
            operator.estop()
        elif args.what == "reset":
            operator.rearm()
        operator.wait(lambda: "safety_node" in operator.heard, "the safety node", 10.0)
        status = operator.heard["safety_node"]
    print(status["state"] + (f": {status['why']}" if status["why"] else ""))
    for name in STAGES:
        if f"count {name}" in status:
            print(f"  {name}: {status[f'count {name}']}")
    return 0
