"""`monitor`: scores the episode with an exported reward model, slows or holds the arm, and requests
interventions.

It scores frames while the arm is tracking and an instruction is known, and publishes the speed
scaling as long as it can score; its silence stops an arm that is `monitored`.
`robot_bridge.sensing.progress_monitor` derives the state from the scores. The node commands nothing
and never makes an arm faster.
"""

import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from std_msgs.msg import Float64, Header

from deploy.loader import open_reward_model
from deploy.reward_model.deployed import Stream
from robot_bridge.launching import driver
from robot_bridge.launching.node_settings import check, ranged
from robot_bridge.nodes import common
from robot_bridge.nodes.observation_subscriber import ObservationSubscriber
from robot_bridge.sensing.progress_monitor import ProgressMonitor, ProgressMonitorConfig
from robot_bridge.sensing.sync import SyncConfig, SyncedObservation
from vla.contracts import robot_file
from vla.contracts.types import Frames, Progress

STATUS_S = 0.1
LATENCIES = 1000
"""Number of scores in the reported percentiles."""
WARM = 3
"""Frames scored to warm up."""
ALARMS = ("stalled", "intervention_requested", "regressed")


@dataclass(frozen=True, kw_only=True)
class Settings(ProgressMonitorConfig, SyncConfig):
    """Parameters of `monitor`."""

    robot: str = "so101"
    """Robot, a file name under vla/robots, or a YAML file."""
    reward_model: str = ""
    """Folder of `vla export` of a reward model."""
    cameras: tuple[str, ...] = ()
    """Available cameras, which include the reward model's; only those if empty."""
    compressed: bool = False
    """Whether images come as cameras/NAME/image_raw/compressed."""
    driver: str = ""
    """Driver file, or its name under launch/drivers, with the names of joints."""
    instruction: str = ""
    """Instruction until another one comes on topic `instruction`."""
    hz: float = ranged(0.0, 0.0, 50.0)
    """Frames scored per second; 0 for the reward model's own rate."""
    threads: int = ranged(1, 1, 64)
    """CPU threads of the reward model."""
    slow: float = ranged(0.3, 0.0, 1.0)
    """Speed scaling of an arm that makes no progress."""
    score_timeout_s: float = ranged(2.0, 0.1, 60.0)
    """Time in s without a score after which no speed scaling is published."""

    def __post_init__(self) -> None:
        check(self)
        if not self.reward_model:
            raise ValueError(
                "reward model: not given; name a folder of `vla export` of a reward model"
            )
        super().__post_init__()


class Monitor(Node):
    """Scores an episode on ROS 2 topics."""

    def __init__(self) -> None:
        super().__init__("monitor")
        s: Settings = common.parameters(self, Settings)
        self.settings, self.robot = s, robot_file.load(s.robot)
        self.reward_model = open_reward_model(Path(s.reward_model), s.threads)
        cameras = s.cameras or self.reward_model.cameras
        missing = [name for name in self.reward_model.cameras if name not in cameras]
        if missing:
            raise ValueError(
                f"cameras: got {', '.join(cameras)}, the reward model also needs {missing[0]}"
            )
        self.steps_s: deque[float] = deque(maxlen=LATENCIES)
        self.counts: Counter[str] = Counter()
        self.newest = common.Newest(self)
        self.episode, self.tracking, self.trouble, self.requested = -1, False, "", False
        self._start_episode(s.instruction)
        self._warm()
        self._connect()

    def _connect(self) -> None:
        s, subscribe = self.settings, self.create_subscription
        self.observations = ObservationSubscriber(
            self, s, self.reward_model.cameras, driver.read(s.driver, self.robot).names,
            self.reward_model.image_hw, compressed=s.compressed,
            on_error=lambda why: self._skip("joint_states", why),
        )  # fmt: skip
        subscribe(Header, "instruction", self._on_instruction, common.LATCHED)
        subscribe(DiagnosticArray, "safety_node/status", self._on_safety, common.LATCHED)
        self.scaling = self.create_publisher(Float64, "speed_scaling", common.COMMANDS)
        self.request = self.create_publisher(Header, "intervention_request", common.LATCHED)
        self.publish_status = common.status_publisher(self, self._line)
        period_s = 1 / s.hz if s.hz else self.reward_model.config.stride_s
        common.create_timer(self, period_s, self._score)
        common.create_timer(self, STATUS_S, self._publish)

    # --- subscriptions ------------------------------------------------------------------------

    def _on_instruction(self, message: Header) -> None:
        if not self.newest.is_newer(message.stamp):
            return
        self._start_episode(message.frame_id)
        self._publish()

    def _on_safety(self, message: DiagnosticArray) -> None:
        tracking = common.key_values(message).get("state") == "tracking"
        if tracking and not self.tracking:
            self.scored_s = time.monotonic()  # the score timeout starts
        self.tracking = tracking

    # --- scores -------------------------------------------------------------------------------

    def _start_episode(self, instruction: str) -> None:
        """Start an episode with empty state."""
        self.instruction, self.episode = instruction, self.episode + bool(instruction)
        self.monitor = ProgressMonitor(self.settings)
        self.stream: Stream = self.reward_model.start(1)
        self.began_s, self.last_s, self.scored_s = np.nan, -np.inf, time.monotonic()
        self.progress: Progress | None = None

    def _warm(self) -> None:
        images = np.zeros(
            (len(self.reward_model.cameras), *self.reward_model.image_hw, 3), np.uint8
        )
        stream = self.reward_model.start(1)
        for i in range(WARM):
            _, stream = self.reward_model.step(stream, _frames(images, float(i)), ("go",))

    def _score(self) -> None:
        """Score the present observation if the arm is tracking and the observation is new."""
        if not (self.instruction and self.tracking):
            return
        observation = self.observations.look(time.monotonic())
        try:
            if isinstance(observation, str):
                self._skip("observation", observation)
            elif observation.time_s > self.last_s:
                self._step(observation)
        except ValueError as error:
            self._skip("reward_model", " ".join(str(error).split()))

    def _step(self, observation: SyncedObservation) -> None:
        begin_s, time_s = time.perf_counter(), observation.time_s
        first = np.isnan(self.began_s)
        since_s = 0.0 if first else time_s - self.began_s
        frames = _frames(observation.images, since_s)
        progress, self.stream = self.reward_model.step(self.stream, frames, (self.instruction,))
        if first:
            self.began_s = time_s
        self.last_s, self.scored_s, self.progress = time_s, time.monotonic(), progress
        self.counts["steps"] += 1
        self.trouble, before = "", self.monitor.state
        state = self.monitor.update(
            since_s, float(progress.value[0]), float(progress.done_prob[0]),
            float(progress.confidence[0]),
        )  # fmt: skip
        self.steps_s.append(time.perf_counter() - begin_s)
        if state != before:
            self.counts[f"count {state}"] += 1
            self.get_logger().info(f"{state}: {self.monitor.why}")
            self._publish()

    def _skip(self, what: str, why: str) -> None:
        """Count a frame that could not be scored, and keep the reason."""
        self.trouble = why
        self.counts[f"not scored: {what}"] += 1
        self.get_logger().warning(why, throttle_duration_sec=1.0)

    # --- publishers ---------------------------------------------------------------------------

    @property
    def share(self) -> float:
        """Speed scaling of the present state."""
        if self.monitor.state == "regressed":
            return 0.0
        return self.settings.slow if self.monitor.state in ALARMS else 1.0

    @property
    def scores_missing(self) -> bool:
        """Whether scores are due and have been missing for the timeout."""
        waited_s = time.monotonic() - self.scored_s
        return bool(self.instruction) and self.tracking and waited_s > self.settings.score_timeout_s

    def _publish(self) -> None:
        if not self.scores_missing:
            self.scaling.publish(Float64(data=self.share))
        needed = self.monitor.state in ("intervention_requested", "regressed")
        if needed != self.requested:
            self.requested = needed
            message = Header(frame_id=self.monitor.why if needed else "")
            message.stamp = self.get_clock().now().to_msg()
            self.request.publish(message)
        self.publish_status()

    def _line(self) -> DiagnosticStatus:
        state = self.monitor.state if self.instruction else "waits"
        missing = self.scores_missing
        values: dict[str, Any] = {
            "state": "no_observation" if missing else state, "value": self.monitor.level,
            "why": self.trouble or self.monitor.why, "instruction": self.instruction,
            "episode": self.episode, "speed_scaling": self.share, **self.counts,
        }  # fmt: skip
        if self.progress is not None:
            for name in ("done_prob", "confidence", "delta"):
                values[name] = float(getattr(self.progress, name)[0])
        values |= common.percentiles("step", self.steps_s)
        level = "error" if missing else "warn" if state in ALARMS else "ok"
        message = f"{values['state']}: {values['why']}" if level != "ok" else state
        return common.status("monitor", level, message, values, self.settings.robot)


def _frames(images: np.ndarray, time_s: float) -> Frames:
    """Return images u8 [v, h, w, 3] as one frame of one episode."""
    return Frames(
        images=images[None], image_ok=np.ones((1, len(images)), np.bool_),
        time_s=np.array([time_s]), episode_index=np.zeros(1, np.int64),
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM."""
    return common.run(Monitor, argv)


if __name__ == "__main__":
    raise SystemExit(main())
