"""An operator of a simulated arm: also starts its episodes and receives their state."""

import json
from typing import Any, Literal

from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from robot_bridge.nodes import common
from robot_bridge.nodes.operator import Operator

SETTLE_S = 0.1
"""Time in s of joint states after a reset before the arm is enabled."""


class SimOperator(Operator):
    """An operator that also resets the simulation; `heard["episode"]` is its last message."""

    def _connect(self) -> None:
        super()._connect()
        self.measured_s = 0.0
        store = lambda message: self._store("episode", json.loads(message.data))  # noqa: E731
        self.node.create_subscription(String, "sim_arm/episode", store, common.LATCHED)
        self.node.create_subscription(JointState, "joint_states", self._joints, common.SENSORS)

    def set(self, node: str, **values: Any) -> None:
        """Set parameters of a node."""
        parameters = [Parameter(name, value=v).to_parameter_msg() for name, v in values.items()]
        request = SetParameters.Request(parameters=parameters)
        self.call(SetParameters, f"{node}/set_parameters", request)

    def begin(
        self, seed: int, episode: int, how: Literal["reset", "next"] = "reset"
    ) -> dict[str, Any]:
        """Start an episode of the simulation; return its instruction and time of beginning.

        Returns after the first joint states of the episode.

        Args:
            seed: Seed of the episode.
            episode: Index of the episode.
            how: "reset" puts arm and objects in place; "next" leaves the world as it is.

        Raises:
            ValueError: the task cannot start this way.
        """
        self.set("sim_arm", seed=seed, episode=episode)
        answer = self.call(Trigger, f"sim_arm/{how}")
        if not answer.success:
            raise ValueError(f"sim_arm: {answer.message}")
        began: dict[str, Any] = json.loads(answer.message)
        self.wait(
            lambda: self.heard.get("episode", {}).get("began_s") == began["began_s"],
            "the simulated arm",
        )
        # The safety node needs the pose since the reset before it is enabled.
        self.wait(lambda: self.measured_s > began["began_s"] + SETTLE_S, "joint states")
        return began

    def _joints(self, message: JointState) -> None:
        with self.changed:
            self.measured_s = common.seconds(message.header.stamp)
            self.changed.notify_all()
