"""`monitor`: an exported critic watches the episode; what it says slows the arm, holds it, or asks
for help.

When that is due, `robot_bridge.watch` decides. It judges moments while the arm follows a task, and
says how fast to go on topic `pace` for as long as it can judge them: its silence stops an arm that
is `monitored`. It commands nothing, and it never makes an arm faster than it was allowed to be.
"""

import dataclasses
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from std_msgs.msg import Float64, Header

from deploy.critic.deployed import Stream
from deploy.opening import open_critic
from robot_bridge.nodes import common
from robot_bridge.nodes.eyes import Eyes
from robot_bridge.settings import check, ranged
from robot_bridge.sync import Seen, SyncConfig
from robot_bridge.watch import Watch, WatchConfig
from vla.contracts import registry
from vla.contracts.types import Frames, Progress

STATUS_S = 0.1
KEPT = 1000
"""Steps whose time is told."""
WARM = 3
"""Moments judged before the first that counts."""
MANNER = {"fine": "ok", "done": "ok", "slow": "warn", "help": "warn", "hold": "warn"}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters of `monitor`."""

    robot: str = "so101"
    """Arm that is watched: a file name under vla/robots."""
    critic: str = ""
    """Folder that `vla export` wrote of a critic."""
    cameras: tuple[str, ...] = ()
    """Cameras there are, those of the critic among them; the critic's if empty."""
    compressed: bool = False
    """Whether pictures come as cameras/NAME/image_raw/compressed."""
    instruction: str = ""
    """What is to be done until topic `task` says something else."""
    hz: float = ranged(0.0, 0.0, 50.0)
    """Moments judged per second; 0 for as many as the critic was made for."""
    threads: int = ranged(1, 1, 64)
    """CPU threads of the critic."""
    slow: float = ranged(0.3, 0.0, 1.0)
    """Share of its speed at which an arm goes on that makes no progress."""
    blind_s: float = ranged(2.0, 0.1, 60.0)
    """Time without a moment judged after which nothing is said on `pace`."""
    stale_s: float = ranged(0.3, 0.01, 10.0)
    """Oldest part of what is judged."""
    apart_s: float = ranged(0.1, 0.001, 10.0)
    """Largest distance in time between the parts of it."""
    frozen_s: float = ranged(1.0, 0.05, 60.0)
    """How long a camera may show the same to the bit while the arm moves."""
    window_s: float = ranged(WatchConfig.window_s, 0.0, 10.0)
    """Over which the median of progress is taken."""
    gain: float = ranged(WatchConfig.gain, 0.0, 1.0)
    """Progress beyond the best so far that counts as going on."""
    stall_s: float = ranged(WatchConfig.stall_s, 0.1, 600.0)
    """Time without such a gain after which the arm is slowed."""
    help_s: float = ranged(WatchConfig.help_s, 0.1, 600.0)
    """Time without such a gain after which help is asked for."""
    drop: float = ranged(WatchConfig.drop, 0.01, 1.0)
    """Fall from the best progress of the episode after which the arm is held."""
    sustain_s: float = ranged(WatchConfig.sustain_s, 0.0, 60.0)
    """How long that fall has to last."""
    confident: float = ranged(WatchConfig.confident, 0.0, 1.0)
    """Least confidence of what is looked at."""
    done: float = ranged(WatchConfig.done, 0.01, 1.0)
    """Probability of completion from which nothing is watched any more."""

    def __post_init__(self) -> None:
        """Refuse values out of range, and a critic that is not given."""
        check(self)
        if not self.critic:
            raise ValueError("critic: not given; name a folder of `vla export` of a critic")


class Monitor(Node):
    """See the module's sentence."""

    def __init__(self) -> None:
        super().__init__("monitor")
        s: Settings = common.parameters(self, Settings)
        self.settings, self.robot = s, registry.load("vla.robots", s.robot).SPEC
        names = {f.name for f in dataclasses.fields(WatchConfig)}
        values = {k: v for k, v in dataclasses.asdict(s).items() if k in names}
        self.watching, self.critic = WatchConfig(**values), open_critic(Path(s.critic), s.threads)
        there = s.cameras or self.critic.cameras
        missing = [name for name in self.critic.cameras if name not in there]
        if missing:
            raise ValueError(
                f"cameras: got {', '.join(there)}, the critic looks through {missing[0]} as well"
            )
        self.steps_s: deque[float] = deque(maxlen=KEPT)
        self.counts: Counter[str] = Counter()
        self.episode, self.follows, self.trouble, self.helped = -1, False, "", False
        self._begin(s.instruction)
        self._warm()
        self._connect()

    def _connect(self) -> None:
        s, subscribe = self.settings, self.create_subscription
        self.eyes = Eyes(
            self,
            SyncConfig(
                cameras=self.critic.cameras, stale_s=s.stale_s, apart_s=s.apart_s,
                frozen_s=s.frozen_s,
            ),
            self.robot.names, self.critic.image_hw, compressed=s.compressed,
            wrong=lambda why: self._not("joint_states", why),
        )  # fmt: skip
        subscribe(Header, "task", self._task, common.LATCHED)
        subscribe(DiagnosticArray, "safety_node/status", self._safety, common.LATCHED)
        self.pace = self.create_publisher(Float64, "pace", common.COMMANDS)
        self.help = self.create_publisher(Header, "help", common.LATCHED)
        self.status = self.create_publisher(DiagnosticArray, "~/status", common.LATCHED)
        self.create_timer(1 / s.hz if s.hz else self.critic.config.stride_s, self._judge)
        self.create_timer(STATUS_S, self._tell)
        common.diagnose(self, self._line)

    # --- what comes in ------------------------------------------------------------------------

    def _task(self, message: Header) -> None:
        self._begin(message.frame_id)
        self._tell()

    def _safety(self, message: DiagnosticArray) -> None:
        values = {one.key: one.value for one in message.status[0].values}
        follows = values.get("state") == "following"
        if follows and not self.follows:
            self.judged_s = time.monotonic()  # from now on it is to see something
        self.follows = follows

    # --- what is made of it -------------------------------------------------------------------

    def _begin(self, task: str) -> None:
        """Begin an episode: nothing is kept of the one before."""
        self.task, self.episode = task, self.episode + bool(task)
        self.watch = Watch(self.watching)
        self.stream: Stream = self.critic.start(1)
        self.began_s, self.last_s, self.judged_s = np.nan, -np.inf, time.monotonic()
        self.progress: Progress | None = None

    def _warm(self) -> None:
        images = np.zeros((len(self.critic.cameras), *self.critic.image_hw, 3), np.uint8)
        stream = self.critic.start(1)
        for i in range(WARM):
            _, stream = self.critic.step(stream, _frames(images, float(i)), ("go",))

    def _judge(self) -> None:
        """Judge what is seen now, if the arm is at work and this is something new."""
        if not (self.task and self.follows):
            return
        seen = self.eyes.look(time.monotonic())
        try:
            if isinstance(seen, str):
                self._not("seen", seen)
            elif seen.time_s > self.last_s:
                self._step(seen)
        except ValueError as error:
            self._not("critic", " ".join(str(error).split()))

    def _step(self, seen: Seen) -> None:
        begin_s = time.perf_counter()
        first = np.isnan(self.began_s)
        since_s = 0.0 if first else seen.time_s - self.began_s
        frames = _frames(seen.images, since_s)
        progress, self.stream = self.critic.step(self.stream, frames, (self.task,))
        if first:
            self.began_s = seen.time_s
        self.last_s, self.judged_s, self.progress = seen.time_s, time.monotonic(), progress
        self.counts["steps"] += 1
        self.trouble, before = "", self.watch.state
        state = self.watch.take(
            since_s, float(progress.value[0]), float(progress.done_prob[0]),
            float(progress.confidence[0]),
        )  # fmt: skip
        self.steps_s.append(time.perf_counter() - begin_s)
        if state != before:
            self.counts[f"count {state}"] += 1
            self.get_logger().info(f"{state}: {self.watch.why}")
            self._tell()

    def _not(self, what: str, why: str) -> None:
        """Note why nothing was judged."""
        self.trouble = why
        self.counts[f"not judged: {what}"] += 1
        self.get_logger().warning(why, throttle_duration_sec=1.0)

    # --- what goes out ------------------------------------------------------------------------

    @property
    def share(self) -> float:
        """Share of its speed at which the arm may go on."""
        return {"hold": 0.0, "slow": self.settings.slow, "help": self.settings.slow}.get(
            self.watch.state, 1.0
        )

    @property
    def blind(self) -> bool:
        """Whether there was something to judge, and nothing was judged for long."""
        waited_s = time.monotonic() - self.judged_s
        return bool(self.task) and self.follows and waited_s > self.settings.blind_s

    def _tell(self) -> None:
        if not self.blind:
            self.pace.publish(Float64(data=self.share))
        needed = self.watch.state in ("help", "hold")
        if needed != self.helped:
            self.helped = needed
            message = Header(frame_id=self.watch.why if needed else "")
            message.stamp = self.get_clock().now().to_msg()
            self.help.publish(message)
        self.status.publish(common.array(self, self._line()))

    def _line(self) -> DiagnosticStatus:
        state = self.watch.state if self.task else "waits"
        blind = self.blind
        values: dict[str, Any] = {
            "state": "blind" if blind else state, "value": self.watch.level,
            "why": self.trouble or self.watch.why, "task": self.task, "episode": self.episode,
            "pace": self.share, **self.counts,
        }  # fmt: skip
        if self.progress is not None:
            for name in ("done_prob", "confidence", "delta"):
                values[name] = float(getattr(self.progress, name)[0])
        if self.steps_s:
            p50, p99 = np.percentile(self.steps_s, (50, 99))
            values |= {"step p50 ms": 1e3 * float(p50), "step p99 ms": 1e3 * float(p99)}
        level = "error" if blind else MANNER.get(state, "ok")
        told = f"{values['state']}: {values['why']}" if level != "ok" else state
        return common.status("monitor", level, told, values, self.settings.robot)


def _frames(images: np.ndarray, time_s: float) -> Frames:
    """Return one moment u8 [v, h, w, 3] of one episode."""
    return Frames(
        images=images[None], image_ok=np.ones((1, len(images)), np.bool_),
        time_s=np.array([time_s]), row=np.zeros(1, np.int64),
    )  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM."""
    return common.run(Monitor, argv)


if __name__ == "__main__":
    raise SystemExit(main())
