"""`policy_node`: a lifecycle node that decides; logic in `robot_bridge.pilot` and `.sync`.

configure loads an exported policy and lets it decide a few times, or connects to a policy server;
activate begins an episode, if a task is known; deactivate brings the arm to rest and ends it.
Without a task, a fresh observation or a policy it says nothing, and the safety node stops the arm.
"""

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from std_msgs.msg import Header
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from deploy.client import RemotePolicy
from robot_bridge import convert
from robot_bridge.gate import LEASE_S
from robot_bridge.log import DecisionLog
from robot_bridge.nodes import common
from robot_bridge.nodes.eyes import Eyes
from robot_bridge.pilot import Decision, Job, Pilot
from robot_bridge.settings import check, chosen, ranged
from robot_bridge.sync import Seen, SyncConfig
from vla import opening
from vla.contracts.protocols import ArmPolicy
from vla.realtime import MODES, RealtimeConfig, delay_of

ADDRESS = r"unix:.+|[^/]+:\d+"
AHEAD = 6
"""Targets of a message: silence stops the arm before the last of them."""
BEAT_S = 0.005
"""How often it is looked whether a decision is due."""
WARM, MEASURED = 5, 20
"""Decisions before and while the time of one is measured."""
KEPT = 1000
"""Latencies that are told."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters of `policy_node`."""

    robot: str = ""
    """Arm that is driven, a file name under vla/robots; the policy's own if empty."""
    policy: str = ""
    """Folder that `vla export` wrote or a checkpoint, or the address of `vla serve`: unix:PATH or
    HOST:PORT."""
    token_file: str = ""
    """File with the server's token."""
    authority: str = ""
    """Certificate of who signed the server's."""
    jpeg: int = ranged(0, 0, 100)
    """Quality of pictures sent to the server; 0 sends them raw."""
    targets: tuple[str, ...] = ()
    """Who may run the policy, in order; ONNX Runtime if empty."""
    threads: int = ranged(1, 1, 64)
    """CPU threads of the policy."""
    instruction: str = ""
    """What is to be done from activation on; topic `task` changes it."""
    gated: bool = True
    """Whether an episode begins when the safety node is enabled, and ends when it is not; without,
    when the task is known."""
    cameras: tuple[str, ...] = ()
    """Cameras by name, in view order; those of the robot if empty."""
    mode: str = chosen("skip", *MODES)
    """What is done about the time that a decision takes: see vla.realtime."""
    delay: int = ranged(1, 0, 100)
    """Control steps that a decision may take."""
    seed: int = ranged(0, 0, 2**31 - 1)
    """Seed of the policy's noise."""
    compressed: bool = False
    """Whether pictures come as cameras/NAME/image_raw/compressed."""
    stale_s: float = ranged(0.2, 0.01, 10.0)
    """Oldest part of an observation that is decided on."""
    apart_s: float = ranged(0.1, 0.001, 10.0)
    """Largest distance in time between the parts of an observation."""
    frozen_s: float = ranged(1.0, 0.05, 60.0)
    """How long a camera may show the same to the bit while the arm moves."""
    log: str = ""
    """Folder for what was seen and decided, an episode a file; nothing is kept if empty."""

    def __post_init__(self) -> None:
        """Refuse values out of range."""
        check(self)
        if not self.policy:
            raise ValueError(
                "policy: not given; name a folder of `vla export`, or the address of `vla serve`"
            )


class PolicyNode(LifecycleNode):
    """See the module's sentence."""

    def __init__(self) -> None:
        super().__init__("policy_node")
        self.settings: Settings = common.parameters(self, Settings)
        self.lock = threading.RLock()
        self.task, self.episode = self.settings.instruction, -1
        self.waiting, self.armed = False, not self.settings.gated
        self.pilot: Pilot | None = None
        self.chunks: Any = None
        self.target = ""
        self.latencies_s: deque[float] = deque(maxlen=KEPT)
        self.counts: Counter[str] = Counter()
        self.why = ""
        self.sent_step = -1
        self.log = DecisionLog(Path(self.settings.log)) if self.settings.log else None
        self.pool = ThreadPoolExecutor(1, "policy")
        self.made: list[tuple[Callable[..., Any], Any]] = []
        self.status = self.create_publisher(DiagnosticArray, "~/status", common.LATCHED)
        self.enable = self.create_client(SetBool, "safety_node/enable")
        self.create_timer(0.1, lambda: self.status.publish(common.array(self, self._line())))
        common.diagnose(self, self._line)

    # --- lifecycle ----------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the policy and measure how long it decides."""
        try:
            self._load()
        except (ValueError, OSError) as error:
            return self._refused(error)
        # Lives until clean-up: its end latches the arm, which is to come to rest in peace first.
        self.chunks = self.create_publisher(JointTrajectory, "chunk", common.alive(LEASE_S / 2))
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Listen, and begin with the task that is known."""
        assert self.pilot is not None
        s = self.settings
        robot = self.pilot.policy.robot
        camera = robot.cameras[0]
        self.eyes = Eyes(
            self,
            SyncConfig(
                cameras=self._cameras(), stale_s=s.stale_s, apart_s=s.apart_s,
                frozen_s=s.frozen_s,
            ),
            robot.names, (camera.height_px, camera.width_px), compressed=s.compressed,
            wrong=lambda why: self._not("joint_states", why),
        )  # fmt: skip
        subs = [
            self.create_subscription(Header, "task", self._task, common.LATCHED),
            self.create_subscription(
                DiagnosticArray, "safety_node/status", self._gate, common.LATCHED
            ),
        ]
        self.made = [
            *((self.destroy_subscription, one) for one in subs),
            (self.destroy_timer, self.create_timer(BEAT_S, self._beat)),
            (Eyes.close, self.eyes),
        ]
        hz = self.pilot.hz
        self.after = [Duration(seconds=i / hz).to_msg() for i in range(AHEAD)]
        self.waiting = bool(self.task)
        return TransitionCallbackReturn.SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Ask the safety node for a standstill, and end the episode."""
        self._disarm()
        self._end()
        return TransitionCallbackReturn.SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Let the policy go."""
        with self.lock:
            policy: Any = self.pilot.policy if self.pilot else None
            self.pilot, self.target = None, ""
            chunks, self.chunks = self.chunks, None
        if chunks is not None:
            self.destroy_publisher(chunks)
        if hasattr(policy, "close"):
            policy.close()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End whatever there is."""
        self._end()
        return self.on_cleanup(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Go back to where it can be configured anew; the silence stops the arm."""
        return self.on_shutdown(state)

    def _refused(self, error: Exception) -> TransitionCallbackReturn:
        self.why = " ".join(str(error).split())
        self.get_logger().error(self.why)
        return TransitionCallbackReturn.FAILURE

    def _load(self) -> None:
        s = self.settings
        policy: ArmPolicy
        if re.fullmatch(ADDRESS, s.policy):
            token = Path(s.token_file).read_text().strip() if s.token_file else ""
            authority = Path(s.authority) if s.authority else None
            remote = RemotePolicy(s.policy, token=token, authority=authority, jpeg=s.jpeg)
            policy, self.target = remote, f"server {s.policy}"
        else:
            found = opening.open_(Path(s.policy), s.threads, s.targets)
            for line in found.refusals():
                self.get_logger().warning(line)
            policy, self.target = found.policy, found.target
        if s.robot and s.robot != policy.robot.name:
            raise ValueError(f"robot: got {s.robot}, the policy drives {policy.robot.name}")
        mode: Any = s.mode
        realtime = RealtimeConfig(mode=mode, execute=policy.execute, delay=s.delay)
        pilot = Pilot(policy, realtime, s.seed)
        needed = delay_of(rehearse(policy, pilot), policy.robot.control_hz, WARM)
        if needed > s.delay and s.mode != "synchronous":
            raise ValueError(
                f"delay: a decision takes {needed} control steps here, {s.delay} are allowed; "
                f"decide faster, or set delay to {needed}"
            )
        if len(s.cameras or policy.robot.cameras) != len(policy.robot.cameras):
            raise ValueError(
                f"cameras: got {len(s.cameras)}, the policy looks through "
                f"{len(policy.robot.cameras)}"
            )
        with self.lock:
            self.pilot = pilot
        self.get_logger().info(f"policy runs on {self.target}")

    def _cameras(self) -> tuple[str, ...]:
        assert self.pilot is not None
        return self.settings.cameras or tuple(c.name for c in self.pilot.policy.robot.cameras)

    # --- what comes in ------------------------------------------------------------------------

    def _task(self, message: Header) -> None:
        """Begin anew: a task is an episode, and what was remembered of another does not count."""
        with self.lock:
            if self.pilot is not None:
                self.pilot.stop()
            self._write_log()
            self.task, self.waiting = message.frame_id, bool(message.frame_id)

    def _gate(self, message: DiagnosticArray) -> None:
        """Fly while the arm is armed: who cannot move would remember what was never done."""
        told = {one.key: one.value for one in message.status[0].values}
        armed = told.get("state") in ("holding", "following") or not self.settings.gated
        with self.lock:
            if self.armed and not armed and self.pilot is not None:
                self.pilot.stop()
                self._write_log()
                self.waiting = bool(self.task)
            self.armed = armed

    # --- what goes out ------------------------------------------------------------------------

    def _beat(self) -> None:
        now_s = time.monotonic()
        with self.lock:
            pilot = self.pilot
            if pilot is None:
                return
            pose = self.eyes.pose()
            if self.waiting and self.armed and pose is not None:
                self.episode += 1
                pilot.start(now_s, pose, self.task, self.episode)
                self.waiting = False
            if pilot.due(now_s):
                self._begin(pilot, now_s)
            if pilot.flying and pilot.decision and pilot.scheduler.step(now_s) != self.sent_step:
                self._send(pilot, now_s)

    def _begin(self, pilot: Pilot, now_s: float) -> None:
        seen = self.eyes.look(now_s)
        if isinstance(seen, str):
            self._not("observation", seen)
            return
        job = pilot.ask(now_s, seen)
        job = job._replace(made_s=time.monotonic() - now_s)
        self.pool.submit(self._decide, pilot, job, now_s)

    def _decide(self, pilot: Pilot, job: Job, begin_s: float) -> None:
        """Ask the policy, take its chunk and send it at once."""
        try:
            chunk, state = pilot.decide(job)
            with self.lock:
                now_s = time.monotonic()
                found = pilot.arrive(now_s, job, chunk, state, now_s - begin_s)
                if found is not None:
                    self._keep(replace(found, stamp=self._send(pilot, now_s)))
        except Exception as error:  # noqa: BLE001  whatever it is, the arm is to stand still
            with self.lock:
                pilot.fail(job)
                self._not("policy", " ".join(str(error).split()) or type(error).__name__)

    def _send(self, pilot: Pilot, now_s: float) -> int:
        """Publish the targets from the current control step on; return the stamp."""
        begin_s, targets = pilot.ahead(now_s, AHEAD)
        stamp = self.get_clock().now() - Duration(seconds=now_s - begin_s)
        message = JointTrajectory(joint_names=list(pilot.policy.robot.names))
        message.header.stamp = stamp.to_msg()
        message.points = [
            JointTrajectoryPoint(positions=target.tolist(), time_from_start=after)
            for target, after in zip(targets, self.after, strict=True)
        ]
        self.chunks.publish(message)
        self.sent_step = pilot.scheduler.step(now_s)
        return stamp.nanoseconds

    # --- what is told -------------------------------------------------------------------------

    def _keep(self, found: Decision) -> None:
        self.latencies_s.append(found.latency_s)
        self.counts["decisions"] += 1
        if self.log is not None:
            self.log.add(found)

    def _write_log(self) -> None:
        if self.log is not None:
            self.log.write()

    def _not(self, what: str, why: str) -> None:
        """Note why nothing was decided."""
        self.why = why
        self.counts[f"no decision: {what}"] += 1
        self.get_logger().warning(why, throttle_duration_sec=1.0)

    def _line(self) -> DiagnosticStatus:
        with self.lock:
            pilot, latencies = self.pilot, list(self.latencies_s)
            values: dict[str, Any] = {
                "target": self.target or "none", "task": self.task, "episode": self.episode,
                "why": self.why, **self.counts,
            }  # fmt: skip
            if pilot is not None:
                values |= {
                    "flying": pilot.flying, "late": pilot.scheduler.late,
                    "starved": pilot.scheduler.starved,
                }  # fmt: skip
        if latencies:
            p50, p99 = np.percentile(latencies, (50, 99))
            values |= {"latency p50 ms": 1e3 * float(p50), "latency p99 ms": 1e3 * float(p99)}
        flying = pilot is not None and pilot.flying
        return common.status(
            "policy_node", "ok", "flying" if flying else "waits", values, self.target
        )

    # --- the end ------------------------------------------------------------------------------

    def _disarm(self) -> None:
        """Ask for a standstill; who does not hear it is stopped by the silence."""
        if self.enable.service_is_ready():
            self.enable.call_async(SetBool.Request(data=False))

    def _end(self) -> None:
        with self.lock:
            if self.pilot is not None:
                self.pilot.stop()
            self._write_log()
            self.waiting = False
            made, self.made = self.made, []
        for destroy, one in made:
            destroy(one)

    def destroy_node(self) -> None:
        """End the episode and the thread, then the node."""
        self._end()
        self.pool.shutdown(wait=False, cancel_futures=True)
        super().destroy_node()


def rehearse(policy: ArmPolicy, pilot: Pilot) -> list[float]:
    """Return seconds of decisions on nothing, the first of which warm up; and what reads pictures
    is loaded, too.
    """
    robot, state, seconds = policy.robot, policy.initial_state(1), []
    camera = robot.cameras[0]
    large = np.zeros((2 * camera.height_px, 2 * camera.width_px, 3), np.uint8)
    small = convert.fitted(large, camera.height_px, camera.width_px)
    images = np.stack([small] * len(robot.cameras))
    seen = Seen(images=images, proprio=np.array(robot.home, np.float32), time_s=0.0)
    for _ in range(WARM + MEASURED):
        pilot.start(0.0, seen.proprio, "go", 0)
        job = pilot.ask(0.0, seen)._replace(state=state)
        begin_s = time.perf_counter()
        _, state = pilot.decide(job)
        seconds.append(time.perf_counter() - begin_s)
        pilot.fail(job)
    pilot.stop()
    return seconds


def main(argv: list[str] | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM."""
    return common.run(PolicyNode, argv)


if __name__ == "__main__":
    raise SystemExit(main())
