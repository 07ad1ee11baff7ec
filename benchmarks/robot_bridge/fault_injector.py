"""Publishes as a faulty policy and records the commands at the controller.

`python -m benchmarks.robot_bridge.fault_injector` publishes as a good policy, to be killed.
"""

import itertools
import threading
import time
from typing import Any

import numpy as np
from rclpy.duration import Duration
from rclpy.qos import HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.time import Time
from rosgraph_msgs.msg import Clock
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from benchmarks.robot_bridge import chunk_faults
from benchmarks.robot_bridge.chunk_faults import Chunk
from benchmarks.robot_bridge.sim_episode_client import SimEpisodeClient
from robot_bridge.launching import driver
from robot_bridge.nodes import common
from robot_bridge.safety.gate_config import LEASE_S
from robot_bridge.sensing import convert
from robot_bridge.sim_arm.trajectory_controller import Trajectory
from vla.contracts import registry
from vla.contracts.specs import RobotSpec

CLOCK_S = 0.005
"""Period of the clock."""
ALL = QoSProfile(history=HistoryPolicy.KEEP_ALL, reliability=ReliabilityPolicy.RELIABLE)


class FaultInjector(SimEpisodeClient):
    """A client that publishes as the policy, records every command with its time, and can drive the
    clock of stamps.
    """

    def __init__(self, robot: RobotSpec) -> None:
        self.robot = robot
        self.commands: list[tuple[float, Trajectory]] = []
        self.base_ns = 0
        """System time at which the recording began; all its times count from there."""
        self.pose = np.array(robot.home, np.float64)
        self.speaker: Any = None
        self.ahead_s = 0.0
        self.stands_s = 0.0
        """When the clock stopped; 0 while it runs."""
        self.over = threading.Event()
        self.clockwork: threading.Thread | None = None
        self.spoken = 0
        """Number of received chunks."""
        super().__init__()

    def _connect(self) -> None:
        super()._connect()
        self.node.create_subscription(JointTrajectory, "action_chunk", self._spoke, common.COMMANDS)
        topic = driver.TOPICS["trajectory"]
        self.node.create_subscription(JointTrajectory, topic, self._command, ALL)
        self.faults = self.node.create_publisher(String, "safety_node/fail", common.COMMANDS)

    def close(self) -> None:
        """End clock, thread and node."""
        self.over.set()
        self.silence()
        if self.clockwork is not None:
            self.clockwork.join(5.0)
        super().close()

    @property
    def time_s(self) -> float:
        """Time of the clock of stamps."""
        return (self.stands_s or time.time()) + self.ahead_s

    def keep_time(self) -> None:
        """Publish the clock of stamps from now on."""
        clock = self.node.create_publisher(Clock, "/clock", 10)

        def keep() -> None:
            while not self.over.wait(CLOCK_S):
                with self.changed:
                    now = Time(nanoseconds=round(1e9 * self.time_s))
                    clock.publish(Clock(clock=now.to_msg()))

        self.clockwork = threading.Thread(target=keep, daemon=True)
        self.clockwork.start()

    def repair(self, episode: int) -> None:
        """Undo all faults: clock, sensors, latch and pose."""
        self.ahead_s, self.stands_s = 0.0, 0.0
        self.set("sim_arm", silent=[""])
        self.enable(False)
        self.rearm()
        self.begin(0, episode)

    def wait_for_chunks(self) -> None:
        """Wait until another node publishes as a policy.

        Raises:
            ValueError: none does.
        """
        before = self.spoken
        self.wait(lambda: self.spoken > before, "a policy")

    def silence(self) -> None:
        """Stop to publish as a policy."""
        if self.speaker is not None:
            self.speaker.close()
            self.speaker = None

    def speak(self) -> None:
        """Start to publish as a policy."""
        if self.speaker is None:
            self.speaker = common.AlivePublisher(
                self.node, JointTrajectory, "action_chunk", LEASE_S / 2
            )

    def fail(self, how: str) -> None:
        """Cause a fault of `faulty_safety_node`."""
        self.faults.publish(String(data=how))

    def send(self, chunk: Chunk) -> None:
        """Publish a chunk, faulty or not; nothing without a publisher."""
        if self.speaker is not None:
            self.speaker.publish(message(self.time_s, chunk))

    def taken(self) -> list[tuple[float, Trajectory]]:
        """Return times of arrival and trajectories since the last call."""
        with self.changed:
            commands, self.commands = self.commands, []
            self.base_ns = time.time_ns()
        return commands

    def now_s(self) -> float:
        """Return the time of the recording."""
        return 1e-9 * (time.time_ns() - self.base_ns)

    def _command(self, message: JointTrajectory, info: dict[str, int]) -> None:
        positions, velocities, accelerations = (
            np.array([getattr(point, name) for point in message.points])
            for name in ("positions", "velocities", "accelerations")
        )
        with self.changed:
            # In whole ns before they are floats: system time as a float is rounded at 240 ns.
            stamp_ns = Time.from_msg(message.header.stamp).nanoseconds - self.base_ns
            times_s = [
                1e-9 * Duration.from_msg(p.time_from_start).nanoseconds for p in message.points
            ]
            trajectory = Trajectory(
                times_s=np.array(times_s), positions=positions, velocities=velocities,
                accelerations=accelerations, stamp_s=1e-9 * stamp_ns,
            )  # fmt: skip
            # By the middleware's clock: this process may be late to look.
            arrival_ns = info["received_timestamp"] - self.base_ns
            self.commands.append((1e-9 * arrival_ns, trajectory))

    def _spoke(self, _: JointTrajectory) -> None:
        with self.changed:
            self.spoken += 1
            self.changed.notify_all()

    def _joints(self, message: Any) -> None:
        super()._joints(message)
        self.pose = convert.by_name(
            message.name, message.position, self.robot.names, "joint_states"
        )


def message(now_s: float, chunk: Chunk) -> JointTrajectory:
    """Return a chunk as a message with its age in the stamp."""
    trajectory = JointTrajectory(joint_names=list(chunk.names))
    trajectory.header.stamp = Time(nanoseconds=round(1e9 * (now_s - chunk.age_s))).to_msg()
    for time_s, position in zip(chunk.times_s, chunk.positions, strict=True):
        point = JointTrajectoryPoint(positions=[float(p) for p in position])
        point.time_from_start = Duration(seconds=float(time_s)).to_msg()
        trajectory.points.append(point)
    return trajectory


def main(argv: list[str] | None = None) -> int:
    """Publish good chunks around the present pose, until killed."""
    robot = registry.load("vla.robots", "so101").SPEC
    with FaultInjector(robot) as injector:
        injector.speak()
        injector.wait(lambda: injector.measured_s > 0, "joint states")
        path = chunk_faults.Path(robot, np.random.default_rng(0), injector.pose)
        for k in itertools.count():
            injector.send(path.chunk(k))
            time.sleep(chunk_faults.PERIOD_S)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
