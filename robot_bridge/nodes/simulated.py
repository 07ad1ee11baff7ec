"""What an operator of a simulated arm can do as well: begin its episodes, hear how they stand."""

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
"""How long joint states have gone on since a reset before the arm is enabled."""


class Simulated(Operator):
    """An operator that also tells the simulation when to begin; `heard["episode"]` is what it says.

    It is the simulator's word, for reports and studies.
    """

    def _connect(self) -> None:
        super()._connect()
        self.measured_s = 0.0
        self.node.create_subscription(String, "sim_arm/episode", self._episode, common.LATCHED)
        self.node.create_subscription(JointState, "joint_states", self._joints, common.SENSORS)

    def set(self, node: str, **values: Any) -> None:
        """Set parameters of a node."""
        parameters = [Parameter(name, value=v).to_parameter_msg() for name, v in values.items()]
        request = SetParameters.Request(parameters=parameters)
        self.call(SetParameters, f"{node}/set_parameters", request)

    def begin(
        self, seed: int, episode: int, how: Literal["reset", "next"] = "reset"
    ) -> dict[str, Any]:
        """Begin an episode of the simulation; return its instruction and when it began.

        Returns once the arm has been seen for a while since.

        Args:
            seed: Of the episode.
            episode: Its number among those of the seed.
            how: "reset" puts arm and things in their places; "next" leaves the world as it is.

        Raises:
            ValueError: the task cannot begin so.
        """
        self.set("sim_arm", seed=seed, episode=episode)
        answer = self.call(Trigger, f"sim_arm/{how}")
        if not answer.success:
            raise ValueError(f"sim_arm: {answer.message}")
        told: dict[str, Any] = json.loads(answer.message)
        self.wait(
            lambda: self.heard.get("episode", {}).get("began_s") == told["began_s"],
            "the simulated arm",
        )
        # Whoever is armed has to have seen where the arm is since.
        self.wait(lambda: self.measured_s > told["began_s"] + SETTLE_S, "joint states")
        return told

    def _joints(self, message: JointState) -> None:
        with self.changed:
            self.measured_s = common.seconds(message.header.stamp)
            self.changed.notify_all()

    def _episode(self, message: String) -> None:
        with self.changed:
            self.heard["episode"] = json.loads(message.data)
            self.changed.notify_all()
