"""The safety node with a fault on request: its tick fails, or never ends."""

import time

from std_msgs.msg import String

from robot_bridge.nodes import common, safety

FAULTS = ("raise", "hang")


class FaultySafetyNode(safety.SafetyNode):
    """Takes the name of a fault on topic `~/fail`."""

    def _connect(self) -> None:
        super()._connect()
        self.create_subscription(String, "~/fail", self._on_fail, common.COMMANDS)

    def _on_fail(self, message: String) -> None:
        def fail(*args: object) -> None:
            if message.data == "raise":
                raise RuntimeError("a fault that was asked for")
            time.sleep(60)

        assert message.data in FAULTS, message
        self.gate.tick = fail  # type: ignore[method-assign,assignment]


def main(argv: list[str] | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM."""
    return common.run(FaultySafetyNode, argv)


if __name__ == "__main__":
    raise SystemExit(main())
