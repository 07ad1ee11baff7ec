"""Listens to states of an arm's driver, such as its robot mode or an emergency stop."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from robot_bridge.launching.driver import DriverState
from robot_bridge.nodes import common
from robot_bridge.nodes.controllers import message_type


class DriverStates:
    """The faults of a driver's states.

    Args:
        listen: Subscribes to a topic: type, topic, callback, QoS.
        states: States to listen to.
        on_change: Called after each message.

    Raises:
        ValueError: the type of a message is not installed.
    """

    def __init__(
        self, listen: Callable[..., None], states: tuple[DriverState, ...],
        on_change: Callable[[], None],
    ) -> None:  # fmt: skip
        self.states, self.on_change = states, on_change
        self.heard_s = [0.0] * len(states)
        """When each was last heard; 0 before the first time."""
        self.faults = [""] * len(states)
        for i, state in enumerate(states):
            take = partial(self._take, i)
            for qos in (common.LATCHED, common.SENSORS):  # between them, publishers of all kinds
                listen(message_type(state.type), state.topic, take, qos)

    def fault(self) -> str:
        """Return why the arm may not move, "" if it may."""
        now_s = time.monotonic()
        for state, heard_s, fault in zip(self.states, self.heard_s, self.faults, strict=True):
            if not heard_s:
                return f"the driver has not said {state.topic}; see whether it publishes it"
            if state.timeout_s and now_s - heard_s > state.timeout_s:
                return f"no {state.topic} of the driver for {state.timeout_s:g} s"
            if fault:
                return f"driver: {fault}"
        return ""

    def _take(self, i: int, message: Any) -> None:
        self.heard_s[i], self.faults[i] = time.monotonic(), self.states[i].fault(message)
        self.on_change()
