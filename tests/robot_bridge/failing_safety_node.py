"""The safety node with a callback that fails."""

from robot_bridge.nodes import common, safety


class FailingSafetyNode(safety.SafetyNode):
    """It cannot stand the topic `deadman`."""

    def _on_deadman(self, message):
        raise KeyError(message.data)


if __name__ == "__main__":
    raise SystemExit(common.run(FailingSafetyNode, None))
