"""Configures and activates another node, once, and ends: what `ros2 launch` does by events."""

import sys
import time
from typing import Any

import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import ExternalShutdownException
from rclpy.utilities import remove_ros_args

STEPS = {"configure": Transition.TRANSITION_CONFIGURE, "activate": Transition.TRANSITION_ACTIVATE}
"""Transitions, in order."""
APPEARS_S = 120.0
"""Longest time in s until the node appears; its imports take a minute on a small board."""
POLL_S = 0.5


def main(argv: list[str] | None = None) -> int:
    """Run `lifecycle NODE`; return 0 once it is active, 1 if it refuses or ends."""
    rclpy.init(args=argv)
    try:
        target = remove_ros_args(args=argv if argv is not None else sys.argv)[-1]
        bring_up(rclpy.create_node("lifecycle"), target)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, ExternalShutdownException):
        return 1
    finally:
        rclpy.try_shutdown()
    return 0


def bring_up(node: Any, target: str, appears_s: float = APPEARS_S) -> None:
    """Configure and activate `target`, a name relative to the node's namespace.

    Configuring may build engines for minutes, so it has no time limit while the target exists.

    Raises:
        ValueError: the target does not appear, refuses, or ends meanwhile.
    """
    client = node.create_client(ChangeState, f"{target}/change_state")
    until = time.monotonic() + appears_s
    while not client.wait_for_service(POLL_S):
        if not rclpy.ok():
            raise ExternalShutdownException
        if time.monotonic() > until:
            raise ValueError(f"{target} did not appear within {appears_s:g} s; see its own lines")
    for step, transition in STEPS.items():
        answer = client.call_async(ChangeState.Request(transition=Transition(id=transition)))
        while not answer.done():
            rclpy.spin_until_future_complete(node, answer, timeout_sec=POLL_S)
            if not rclpy.ok():
                raise ExternalShutdownException
            if not answer.done() and not client.service_is_ready():
                raise ValueError(f"{target} ended while it was to {step}; see its own lines")
        if not answer.result().success:
            raise ValueError(f"{target} did not {step}; see its own lines")
        print(f"{target}: {step} done", flush=True)
