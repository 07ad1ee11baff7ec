"""`policy_node`: a lifecycle node that runs a policy and publishes its action chunks.

Configure loads and warms up an exported policy, or connects to a policy server. Activate starts an
episode if an instruction is known; deactivate brings the arm to rest and ends the episode. Without
an instruction, a recent observation or a policy the node publishes no chunk, and the safety node
stops the arm. `robot_bridge.policy.policy_runner` and `robot_bridge.sensing.sync` have the logic.
"""

import re
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from std_msgs.msg import Header
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from deploy.server.client import RemotePolicy
from robot_bridge.launching import driver, interfaces
from robot_bridge.nodes import common
from robot_bridge.nodes.observation_subscriber import ObservationSubscriber
from robot_bridge.policy.decision_log import DecisionLog
from robot_bridge.policy.latency import WARM, measure_latency
from robot_bridge.policy.policy_runner import DecisionRequest, PolicyRunner
from robot_bridge.policy.settings import Settings
from robot_bridge.safety.gate_config import LEASE_S
from vla.contracts import robot_file
from vla.contracts.protocols import ArmPolicy
from vla.runtime import policy_loader
from vla.runtime.rtc_scheduler import RealtimeConfig, inference_delay

ADDRESS = r"unix:.+|[^/]+:\d+"
AHEAD = 6
"""Targets of a message; on silence the arm stops before the last of them."""
STATUS_S = 0.1
POLL_S = 0.005
"""Period of the check whether a decision is due."""
LATENCIES = 1000
"""Number of decisions in the reported percentiles."""


class Hold(NamedTuple):
    """A pose that is held between two instructions."""

    targets: np.ndarray
    """f32 [k, u], all the same."""
    end_s: float
    """Time after which the arm is disabled."""
    sent_s: float
    """Time of the last message."""


class PolicyNode(LifecycleNode):
    """Runs a policy on ROS 2 topics."""

    def __init__(self) -> None:
        super().__init__("policy_node")
        self.settings: Settings = common.parameters(self, Settings)
        self.lock = threading.RLock()
        self.instruction, self.episode = self.settings.instruction, -1
        self.waiting, self.enabled = False, not self.settings.require_safety_enabled
        self.runner: PolicyRunner | None = None
        self.chunks: common.AlivePublisher | None = None
        self.newest = common.Newest(self)
        self.action: Any = None
        self.hold: Hold | None = None
        self.target = ""
        self.latencies_s: deque[float] = deque(maxlen=LATENCIES)
        self.counts: Counter[str] = Counter()
        self.why = ""
        self.sent_step, self.decided_s = -1, 0.0
        self.log = DecisionLog(Path(self.settings.log)) if self.settings.log else None
        self.pool = ThreadPoolExecutor(1, "policy")
        self.cleanups: list[tuple[Callable[..., Any], Any]] = []
        self.disable = self.create_client(Trigger, "safety_node/disable")
        common.create_timer(self, STATUS_S, common.status_publisher(self, self._line))

    # --- lifecycle ----------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the policy and measure its latency."""
        try:
            self._load()
        except (ValueError, OSError) as error:
            self.why = " ".join(str(error).split())
            self.get_logger().error(self.why)
            return TransitionCallbackReturn.FAILURE
        # Lives until clean-up: its end latches the arm, which should come to rest before.
        self.chunks = common.AlivePublisher(self, JointTrajectory, "action_chunk", LEASE_S)
        self._offer_action()
        return TransitionCallbackReturn.SUCCESS

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Subscribe, and start with the present instruction."""
        assert self.runner is not None
        s = self.settings
        robot = self.runner.policy.robot
        camera = robot.cameras[0]
        self.observations = ObservationSubscriber(
            self, s, s.cameras or tuple(c.name for c in robot.cameras),
            driver.read(s.driver, robot).names, (camera.height_px, camera.width_px),
            compressed=s.compressed, on_error=lambda why: self._skip("joint_states", why),
        )  # fmt: skip
        subs = [
            self.create_subscription(Header, "instruction", self._on_instruction, common.LATCHED),
            self.create_subscription(
                DiagnosticArray, "safety_node/status", self._on_safety, common.LATCHED
            ),
        ]
        self.cleanups = [
            *((self.destroy_subscription, sub) for sub in subs),
            (self.destroy_timer, common.create_timer(self, POLL_S, self._poll)),
            (ObservationSubscriber.close, self.observations),
        ]
        self.waiting = bool(self.instruction)
        return TransitionCallbackReturn.SUCCESS

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Disable the safety node, and end the episode."""
        if self.action is not None:
            self.action.end("POLICY", "the policy node was deactivated")
        self._disable_arm()
        self._end_episode()
        return TransitionCallbackReturn.SUCCESS

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Unload the policy."""
        with self.lock:
            self.instruction = self.settings.instruction
            policy: Any = self.runner.policy if self.runner else None
            self.runner, self.target = None, ""
            chunks, self.chunks = self.chunks, None
            action, self.action = self.action, None
        for offered in (action, chunks):
            if offered is not None:
                offered.close()
        if hasattr(policy, "close"):
            policy.close()
        return TransitionCallbackReturn.SUCCESS

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End the episode and unload the policy."""
        self._end_episode()
        return self.on_cleanup(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Return to the unconfigured state; silence stops the arm."""
        return self.on_shutdown(state)

    def _offer_action(self) -> None:
        """Offer the action `~/execute_instruction` where its interface is installed."""
        if not interfaces.available():
            self.get_logger().info(
                "no action execute_instruction: its interface is not built (vla ros interfaces)"
            )
            return
        try:
            from robot_bridge.nodes.instruction_action import InstructionAction
        except ImportError as error:
            self.get_logger().error(
                f"no action execute_instruction: {error}; build it again (vla ros interfaces)"
            )
            return
        self.action = InstructionAction(
            self, self.settings.time_limit_s, lambda: bool(self.cleanups), self._begin_hold
        )

    def _load(self) -> None:
        s = self.settings
        policy: ArmPolicy
        if re.fullmatch(ADDRESS, s.policy):
            token = Path(s.token_file).read_text().strip() if s.token_file else ""
            authority = Path(s.authority) if s.authority else None
            remote = RemotePolicy(s.policy, token=token, authority=authority, jpeg=s.jpeg)
            policy, self.target = remote, f"server {s.policy}"
        else:
            loaded = policy_loader.open_policy(Path(s.policy), s.threads, s.targets)
            for line in loaded.refusals():
                self.get_logger().warning(line)
            policy, self.target = loaded.policy, loaded.target
        if s.robot and robot_file.load(s.robot).name != policy.robot.name:
            raise ValueError(f"robot: got {s.robot}, the policy drives {policy.robot.name}")
        driver.read(s.driver, policy.robot)  # wrong ones are refused here
        mode: Any = s.mode
        realtime = RealtimeConfig(mode=mode, n_action_steps=policy.n_action_steps, delay=s.delay)
        runner = PolicyRunner(policy, realtime, s.seed)
        needed = inference_delay(measure_latency(policy, runner), policy.robot.control_hz, WARM)
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
            self.runner = runner
        self.get_logger().info(f"policy runs on {self.target}")

    # --- subscriptions ------------------------------------------------------------------------

    def _on_instruction(self, message: Header) -> None:
        """Start a new episode, with an empty memory."""
        with self.lock:
            if not self.newest.is_newer(message.stamp):
                return
            self._stop_runner()
            self.instruction, self.waiting = message.frame_id, bool(message.frame_id)

    def _on_safety(self, message: DiagnosticArray) -> None:
        """End the episode when the arm is disabled: its actions are not executed any more."""
        values = common.key_values(message)
        state = values.get("state")
        enabled = state in ("holding", "tracking") or not self.settings.require_safety_enabled
        with self.lock:
            if self.enabled and not enabled and self.runner is not None:
                self._stop_runner()
                self.waiting = bool(self.instruction)
            if not enabled or values.get("source") == "teleop":
                self.hold = None
            self.enabled = enabled

    # --- decisions ----------------------------------------------------------------------------

    def _poll(self) -> None:
        now_s = time.monotonic()
        with self.lock:
            runner = self.runner
            if runner is None:
                return
            pose = self.observations.pose()
            if self.waiting and self.enabled and pose is not None:
                self.episode += 1
                runner.start(now_s, pose, self.instruction, self.episode)
                self.waiting, self.decided_s = False, now_s
                if self.hold is not None:  # not for long: a policy that does not see has to stop
                    end_s = now_s + self.settings.decision_timeout_s
                    self.hold = self.hold._replace(end_s=min(self.hold.end_s, end_s))
            if runner.is_due(now_s):
                self._begin(runner, now_s)
            due = runner.active and runner.decision and not self._is_blind(runner, now_s)
            if due and runner.scheduler.step(now_s) != self.sent_step:
                self._send(runner, now_s)
            elif self.hold is not None and not due:
                self._hold(runner, self.hold, now_s)

    def _begin_hold(self) -> None:
        """End the instruction, and hold the arm where it is, so that the next finds it enabled."""
        with self.lock:
            runner, now_s, pose = self.runner, time.monotonic(), self.observations.pose()
            targets = None
            if runner is not None and runner.active and runner.decision:
                targets = runner.ahead(now_s, 1)[1][0]
            self._stop_runner()
            self.instruction, self.waiting = "", False
            if not self.enabled:
                return
            if runner is None or pose is None or not self.settings.hold_s:
                self._disable_arm()
                return
            # Not where the policy wanted it: it may be far behind that. What it grips it keeps.
            held = np.array(pose, np.float32)
            gripper = runner.policy.robot.names.index(runner.policy.robot.gripper.channel)
            if targets is not None:
                held[gripper] = targets[gripper]
            self.hold = Hold(np.tile(held, (AHEAD, 1)), now_s + self.settings.hold_s, -np.inf)

    def _hold(self, runner: PolicyRunner, hold: Hold, now_s: float) -> None:
        """Publish the pose that is held, as often as targets of a policy."""
        if now_s > hold.end_s:
            self.hold = None
            self._disable_arm()
        elif now_s - hold.sent_s >= 1 / runner.hz:
            assert self.chunks is not None
            names, stamp = runner.policy.robot.names, self.get_clock().now()
            self.chunks.publish(common.chunk(names, stamp, hold.targets, runner.hz))
            self.hold = hold._replace(sent_s=now_s)

    def _disable_arm(self) -> None:
        """Ask the safety node to bring the arm to rest; without it, silence stops the arm."""
        if self.disable.service_is_ready():
            self.disable.call_async(Trigger.Request())

    def _is_blind(self, runner: PolicyRunner, now_s: float) -> bool:
        """Return whether no decision came for long: then silence has to stop the arm."""
        decisions_s = runner.policy.n_action_steps / runner.hz
        return now_s - self.decided_s > self.settings.decision_timeout_s + decisions_s

    def _begin(self, runner: PolicyRunner, now_s: float) -> None:
        observation = self.observations.look(now_s)
        if isinstance(observation, str):
            self._skip("observation", observation)
            return
        request = runner.request(now_s, observation)
        request = request._replace(made_s=time.monotonic() - now_s)
        self.pool.submit(self._decide, runner, request, now_s)

    def _decide(self, runner: PolicyRunner, request: DecisionRequest, begin_s: float) -> None:
        """Run the policy and publish its chunk at once."""
        try:
            chunk, state = runner.decide(request)
            with self.lock:
                now_s = time.monotonic()
                decision = runner.complete(now_s, request, chunk, state, now_s - begin_s)
                if decision is not None:
                    self.decided_s = now_s
                    stamp = self._send(runner, now_s)
                    self.latencies_s.append(decision.latency_s)
                    self.counts["decisions"] += 1
                    if self.log is not None:
                        self.log.add(replace(decision, stamp=stamp))
        except Exception as error:  # noqa: BLE001  whatever it is, the arm has to stand still
            with self.lock:
                runner.fail(request)
                self._skip("policy", " ".join(str(error).split()) or type(error).__name__)

    def _send(self, runner: PolicyRunner, now_s: float) -> int:
        """Publish the targets from the current control step on; return the stamp."""
        begin_s, targets = runner.ahead(now_s, AHEAD)
        stamp = self.get_clock().now() - Duration(seconds=now_s - begin_s)
        names = runner.policy.robot.names
        assert self.chunks is not None
        self.chunks.publish(common.chunk(names, stamp, targets, runner.hz))
        self.hold = None
        self.sent_step = runner.scheduler.step(now_s)
        return stamp.nanoseconds

    # --- log and status -----------------------------------------------------------------------

    def _stop_runner(self) -> None:
        if self.runner is not None:
            self.runner.stop()
        if self.log is not None:
            self.log.write()

    def _skip(self, what: str, why: str) -> None:
        """Count a decision that could not be made, and keep the reason."""
        self.why = why
        self.counts[f"no decision: {what}"] += 1
        self.get_logger().warning(why, throttle_duration_sec=1.0)

    def _line(self) -> DiagnosticStatus:
        with self.lock:
            runner, latencies = self.runner, list(self.latencies_s)
            values: dict[str, Any] = {
                "target": self.target or "none", "instruction": self.instruction,
                "episode": self.episode, "why": self.why, **self.counts,
            }  # fmt: skip
            if runner is not None:
                values |= {
                    "active": runner.active, "late": runner.scheduler.late,
                    "starved": runner.scheduler.starved,
                }  # fmt: skip
        values |= common.percentiles("latency", latencies)
        active = runner is not None and runner.active
        level, message = "ok", "active" if active else "waits"
        if active and runner is not None and self._is_blind(runner, time.monotonic()):
            level, message = "error", f"no decision: {self.why}"
        name = self.get_fully_qualified_name().lstrip("/")
        return common.status(name, level, message, values, self.target)

    # --- the end ------------------------------------------------------------------------------

    def _end_episode(self) -> None:
        with self.lock:
            self._stop_runner()
            self.waiting, self.hold = False, None
            cleanups, self.cleanups = self.cleanups, []
        for destroy, resource in cleanups:
            destroy(resource)

    def destroy_node(self) -> None:
        """End the episode and the thread, then the node."""
        self._end_episode()
        self.pool.shutdown(wait=False, cancel_futures=True)
        for offered in (self.action, self.chunks):
            if offered is not None:
                offered.close()
        super().destroy_node()


def main(argv: list[str] | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM."""
    return common.run(PolicyNode, argv)


if __name__ == "__main__":
    raise SystemExit(main())
