"""A leader arm: whatever a person moves by hand and whose joint states come on a topic."""

import time
from collections.abc import Callable, Mapping

import numpy as np
from sensor_msgs.msg import JointState

from robot_bridge import convert
from robot_bridge.nodes import common
from robot_bridge.nodes.threaded import Threaded


class Leader(Threaded):
    """The pose of a leader arm, in the order of another's joints. A context manager."""

    def __init__(
        self, names: tuple[str, ...], topic: str, *, namespace: str = "",
        called: Mapping[str, str] | None = None, stale_s: float = 0.5,
    ) -> None:  # fmt: skip
        """Subscribe.

        Args:
            names: Joints in the order of poses.
            topic: Where the leader's joint states come.
            namespace: Of that topic, where it is relative.
            called: What the leader calls a joint, where it has another name.
            stale_s: Longest silence.
        """
        called = called or {}
        strange = sorted(set(called) - set(names))
        if strange:
            raise ValueError(f"joints: got {strange[0]!r}, expected names among {', '.join(names)}")
        self.wanted = tuple(called.get(name, name) for name in names)
        self.topic, self.stale_s = topic, stale_s
        self.last: np.ndarray | None = None
        self.last_s, self.trouble = -np.inf, ""
        super().__init__(namespace, "leader_ear")

    def _connect(self) -> None:
        self.node.create_subscription(JointState, self.topic, self._joints, common.SENSORS)

    def pose(self, limit_s: float = 0.0) -> np.ndarray:
        """Return the latest pose f64 [u].

        Args:
            limit_s: How long to wait for one.

        Raises:
            ValueError: the leader is silent, or has other joints.
        """
        fresh: Callable[[], bool] = lambda: time.monotonic() - self.last_s <= self.stale_s  # noqa: E731
        with self.changed:
            if self.changed.wait_for(fresh, limit_s) and self.last is not None:
                return self.last
            why = self.trouble or f"silent for {max(self.stale_s, limit_s):g} s"
        topic = self.node.resolve_topic_name(self.topic)
        raise ValueError(f"leader: {why}; see what is published on {topic}")

    def _joints(self, message: JointState) -> None:
        try:
            pose = convert.by_name(message.name, message.position, self.wanted, "joint states")
        except ValueError as error:
            self.trouble = str(error)
            return
        with self.changed:
            self.last, self.last_s = pose, time.monotonic()
            self.changed.notify_all()
