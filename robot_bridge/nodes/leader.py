"""A leader arm: any device moved by hand whose joint states come on a topic."""

import time
from collections.abc import Mapping

import numpy as np
from sensor_msgs.msg import JointState

from robot_bridge.nodes import common
from robot_bridge.nodes.threaded import Threaded
from robot_bridge.sensing import convert


class Leader(Threaded):
    """The pose of a leader arm, in the order of another's joints. A context manager."""

    def __init__(
        self, names: tuple[str, ...], topic: str, *, namespace: str = "",
        leader_names: Mapping[str, str] | None = None, max_observation_age_s: float = 0.5,
    ) -> None:  # fmt: skip
        """Subscribe.

        Args:
            names: Joints in the order of poses.
            topic: Topic of the leader's joint states.
            namespace: Namespace of a relative topic.
            leader_names: The leader's names of joints, where they differ.
            max_observation_age_s: Longest silence.
        """
        leader_names = leader_names or {}
        unknown = sorted(set(leader_names) - set(names))
        if unknown:
            raise ValueError(f"joints: got {unknown[0]!r}, expected names among {', '.join(names)}")
        self.wanted = tuple(leader_names.get(name, name) for name in names)
        self.topic, self.max_observation_age_s = topic, max_observation_age_s
        self.last: np.ndarray | None = None
        self.last_s, self.trouble = -np.inf, ""
        super().__init__(namespace, "leader_ear")

    def _connect(self) -> None:
        self.node.create_subscription(JointState, self.topic, self._joints, common.SENSORS)

    def pose(self, limit_s: float = 0.0) -> np.ndarray:
        """Return the latest pose f64 [u].

        Args:
            limit_s: Longest wait for a pose.

        Raises:
            ValueError: the leader is silent, or has other joints.
        """
        with self.changed:
            if self.changed.wait_for(self._is_recent, limit_s) and self.last is not None:
                return self.last
            why = self.trouble or f"silent for {max(self.max_observation_age_s, limit_s):g} s"
        topic = self.node.resolve_topic_name(self.topic)
        raise ValueError(f"leader: {why}; see what is published on {topic}")

    def _is_recent(self) -> bool:
        return time.monotonic() - self.last_s <= self.max_observation_age_s

    def _joints(self, message: JointState) -> None:
        try:
            pose = convert.by_name(message.name, message.position, self.wanted, "joint states")
        except ValueError as error:
            self.trouble = str(error)
            return
        with self.changed:
            self.last, self.last_s = pose, time.monotonic()
            self.changed.notify_all()
