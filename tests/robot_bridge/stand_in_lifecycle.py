"""A node with a lifecycle that says what is asked of it; with parameter `refuses` it refuses."""

import contextlib

import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.lifecycle import LifecycleNode, TransitionCallbackReturn


class LifecycleStandIn(LifecycleNode):
    def __init__(self):
        super().__init__("stand_in")
        self.refuses = self.declare_parameter("refuses", False).value
        words = {name: self.declare_parameter(name, "").value for name in ("robot", "instruction")}
        numbers = self.declare_parameter("max_velocity_scaling_factor", 1.0).value
        cameras = self.declare_parameter("cameras", [""]).value
        print(self.get_fully_qualified_name(), words, numbers, list(cameras), flush=True)

    def on_configure(self, state):
        print("configuring", flush=True)
        return (
            TransitionCallbackReturn.FAILURE if self.refuses else TransitionCallbackReturn.SUCCESS
        )

    def on_activate(self, state):
        print("activating", flush=True)
        return super().on_activate(state)


def main(argv=None):
    rclpy.init(args=argv)
    with contextlib.suppress(KeyboardInterrupt, ExternalShutdownException):
        rclpy.spin(LifecycleStandIn())
    rclpy.try_shutdown()
    return 0
