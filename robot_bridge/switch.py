"""`vla safety`: arm, stop and look at a safety node, for who has no `ros2` command at hand."""

from dataclasses import dataclass
from typing import Annotated, Literal

import tyro.conf

from robot_bridge.gate import STAGES
from vla import arguments

What = Literal["enable", "disable", "estop", "reset", "status"]


@dataclass(frozen=True, kw_only=True)
class SwitchArgs:
    """Arm, stop or look at the safety node of an arm."""

    what: Annotated[What, tyro.conf.Positional]
    """enable arms; disable comes to rest and disarms; estop comes to rest and latches; reset clears
    the latch; status tells."""
    namespace: str = ""
    """Namespace of the arm."""


def main(argv: list[str]) -> int:
    """Run `vla safety WHAT`; return the exit code.

    Raises:
        ValueError: there is no safety node, or it refuses.
    """
    args = arguments.read(SwitchArgs, argv, "vla safety")
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
