"""`safety_node`: the only publisher on the controller's topic, in a separate process.

`robot_bridge.safety.gate` has its logic. A thread makes its ticks at multiples of a period; ticks
that were missed are left out. Every trajectory ends at rest, so an arm whose safety node is late,
killed or stuck brakes by itself. If the thread fails or hangs, the process ends at once.
"""

import contextlib
import gc
import math
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Bool, Float64
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory

from robot_bridge.launching import driver, realtime
from robot_bridge.motion import limits
from robot_bridge.nodes import common
from robot_bridge.nodes.controllers import Command, Outputs
from robot_bridge.nodes.driver_states import DriverStates
from robot_bridge.policy.decision_log import SafetyLog
from robot_bridge.safety import obstacles
from robot_bridge.safety.gate import Gate
from robot_bridge.safety.gate_config import LEASE_S, Source
from robot_bridge.safety.settings import Settings
from robot_bridge.safety.stages import Obstacles
from robot_bridge.sensing import convert
from robot_bridge.sensing.joint_states import JointStates
from vla.contracts import robot_file
from vla.contracts.specs import RobotSpec

STATUS_S = 0.1
MOST_POINTS = 1000
"""Most targets of a chunk: more would take longer to read than a tick."""
WHY_LENGTH = 200
"""Longest reason in a status, in characters."""
JITTER = 1000
"""Number of ticks in the reported jitter."""
HUNG_S, LOOKS = 0.25, 5
"""Time in s without a tick after which the process ends, and how often it is looked for."""
CLOCK_APART_S, SLEW, GAIN = 0.005, 0.2, 0.1
"""Stamps keep the rate of ticks until a simulation's clock is so far apart; then they follow it, at
most by this share of time and by this share of what is left per tick."""


class SafetyNode(Node):
    """Runs the gate on ROS 2 topics."""

    def __init__(self) -> None:
        super().__init__("safety_node")
        self.settings: Settings = common.parameters(self, Settings)
        s = self.settings
        robot = robot_file.load(s.robot)
        allowed = limits.read(Path(s.limits), robot).scaled(s.max_velocity_scaling_factor)
        self.driver = driver.read(s.driver, robot, s.controller_type, s.joints)
        # Without a trajectory, commands count at once.
        gate = s if self.driver.has_trajectory else replace(s, lead_ticks=0)
        tool_speed = obstacles.tool_speed(robot, s.max_tool_speed, 1 / s.rate_hz)
        self.gate = Gate(gate, allowed, self._obstacles(robot, allowed), tool_speed)
        self.lock = threading.Lock()
        self.joint_states = JointStates(self.driver.names, s.joint_state_timeout_s)
        self.policies = 0
        """Number of living publishers on topic `action_chunk`."""
        self.over = threading.Event()
        self.pressed = False
        """Whether the button on topic `estop` is pressed."""
        self.ticked_s = time.monotonic()
        self.use_sim_time = bool(self.get_parameter("use_sim_time").value)
        self.ahead_ns = 0
        """Time of stamps less that of ticks; whole ns, as rounding would shake the reference."""
        self.in_time_s = max(s.lead_ticks - 2.5, 0.5) * self.gate.dt_s
        """Time in s after which a trajectory is too late; the rest is for its transport."""
        self.jitter_s: deque[float] = deque(maxlen=JITTER)
        self.log = SafetyLog() if s.log else None
        self._connect()
        realtime.apply_to_process(s)
        with ThreadPoolExecutor(1) as trial:  # refused here, not when the arm moves
            trial.submit(realtime.apply_to_thread, s).result()
        self.thread = threading.Thread(target=self._tick, daemon=True)
        self.thread.start()
        threading.Thread(target=self._watch, daemon=True).start()
        self.get_logger().info(
            f"{s.robot}: from any motion to a standstill in {self.gate.stop_s:.2f} s at most; "
            f"disabled until safety_node/enable"
        )

    def _obstacles(self, robot: RobotSpec, allowed: limits.Limits) -> Obstacles | None:
        s = self.settings
        if s.collision:
            found, left_out = obstacles.of_model(robot, allowed.workspace, s.margin)
            for pair in left_out:
                self.get_logger().warning(f"not checked, since it is so in the home pose: {pair}")
            return found
        if allowed.workspace is not None:
            raise ValueError(
                f"{s.limits}: it has a workspace, which nothing keeps without collision:=true; "
                "set that, or take the section out"
            )
        return None

    def _connect(self) -> None:
        self._listen(JointState, "joint_states", self._on_joints, common.SENSORS)
        self._listen(
            JointTrajectory, "action_chunk", partial(self._on_chunk, "policy"),
            common.liveliness_qos(LEASE_S),
            event_callbacks=SubscriptionEventCallbacks(liveliness=self._liveliness),
        )  # fmt: skip
        on_teleop = partial(self._on_chunk, "teleop")
        self._listen(JointTrajectory, "teleop", on_teleop, common.COMMANDS)
        self._listen(Bool, "deadman", self._on_deadman, common.COMMANDS)
        self._listen(Float64, "speed_scaling", self._on_scaling, common.COMMANDS)
        gate = self.gate
        enable = lambda r: gate.enable(time.monotonic(), bool(r.data))  # noqa: E731
        self._serve(self, SetBool, "enable", enable, lambda r: self._unfit() if r.data else "")
        disable = lambda _: gate.enable(time.monotonic(), False)  # noqa: E731
        self._serve(self, Trigger, "disable", disable)
        self._serve(self, Trigger, "reset_estop", lambda _: self._reset())
        # In a thread of its own, which no flood of messages on other topics can keep busy.
        self.emergency = Node(
            "safety_node_estop", namespace=self.get_namespace(), use_global_arguments=False,
            start_parameter_services=False, enable_rosout=False, context=self.context,
        )  # fmt: skip
        self._serve(self.emergency, Trigger, "estop", lambda _: gate.estop("requested by service"))
        for qos in (common.LATCHED, common.SENSORS):  # between them, publishers of all kinds
            self._listen(Bool, "estop", self._on_estop, qos, node=self.emergency)
        self.emergency_executor = SingleThreadedExecutor(context=self.context)
        self.emergency_executor.add_node(self.emergency)
        limits = gate.limits
        self.outputs = Outputs(self, self.driver, limits.high - limits.low)
        self.commanded = self.create_publisher(JointTrajectory, "~/command", common.COMMANDS)
        self.driver_states = DriverStates(self._listen, self.driver.states, self._on_driver_state)
        self.publish_status = common.status_publisher(self, self._line)
        common.create_timer(self, STATUS_S, self._publish_status)
        # Last: it answers at once, with all that was made above.
        self.emergency_thread = threading.Thread(target=self._spin_emergency, daemon=True)
        self.emergency_thread.start()

    # --- subscriptions and services -----------------------------------------------------------

    def _on_joints(self, message: JointState) -> None:
        now_s, stamp_s = time.monotonic(), common.seconds(message.header.stamp)
        clock_s = self.get_clock().now().nanoseconds * 1e-9
        age_s = clock_s - stamp_s if stamp_s else 0.0  # a driver without stamps: by arrival
        try:
            self.joint_states.take(now_s, age_s, message.name, message.position)
        except ValueError as error:
            self._log_error(str(error))
            return
        states = self.joint_states
        with self.lock:
            self.gate.measure(states.times_s.copy(), states.pose.copy())

    def _on_chunk(self, source: Source, message: JointTrajectory) -> None:
        now_s, clock = time.monotonic(), self.get_clock().now().nanoseconds * 1e-9
        age_s = clock - common.seconds(message.header.stamp)
        try:
            if len(message.points) > MOST_POINTS:
                raise ValueError(
                    f"{source}: got {len(message.points)} points, expected at most {MOST_POINTS}"
                )
            times_s, positions = convert.trajectory(
                message.joint_names, [p.positions for p in message.points],
                [common.seconds(p.time_from_start) for p in message.points],
                self.gate.limits.names, source,
            )  # fmt: skip
        except ValueError as error:
            with self.lock:
                self.gate.reject(str(error))
            self._log_error(str(error))
            return
        with self.lock:
            taken = self.gate.offer(now_s, source, now_s - age_s + times_s, positions, age_s)
            if self.log is not None:
                self.log.chunk(now_s, message.header.stamp, taken)

    def _on_deadman(self, message: Bool) -> None:
        with self.lock:
            self.gate.press(time.monotonic(), bool(message.data))

    def _on_scaling(self, message: Float64) -> None:
        with self.lock:
            self.gate.scale_speed(time.monotonic(), float(message.data))

    def _liveliness(self, event: Any) -> None:
        self.policies = event.alive_count
        if event.alive_count == 0 and event.alive_count_change < 0:
            with self.lock:
                self.gate.policy_died("the policy's process is gone")

    def _on_estop(self, message: Bool) -> None:
        with self.lock:
            self.pressed = bool(message.data)
            if self.pressed:
                self.gate.estop("the button on topic estop is pressed")

    def _on_driver_state(self) -> None:
        if fault := self.driver_states.fault():
            with self.lock:
                self.gate.stop("driver_state", fault)

    def _rival(self) -> str:
        """Return what is wrong with the publishers of commands and chunks, "" if nothing."""
        topic = self.outputs.rival()
        if not topic and self.policies > 1:
            topic = self.resolve_topic_name("action_chunk")
        return topic and (
            f"another node publishes on {topic} as well; end it: see ros2 topic info -v {topic}"
        )

    def _unfit(self) -> str:
        """Return what is wrong with the driver or with publishers, "" if nothing."""
        return self.driver_states.fault() or self._rival()

    def _publish_status(self) -> None:
        """Publish the status, after a look at what sends no message when it fails."""
        rival, fault = self._rival(), self.driver_states.fault()
        with self.lock:
            if rival:
                self.gate.stop("second_publisher", rival)
            if fault:
                self.gate.stop("driver_state", fault)
        self.publish_status()

    def _reset(self) -> str:
        return "the button on topic estop is still pressed" if self.pressed else self.gate.reset()

    def _spin_emergency(self) -> None:
        try:
            while not self.over.is_set():
                self.emergency_executor.spin_once(timeout_sec=common.STOP_POLL_S)
        except ExternalShutdownException:
            pass
        except BaseException:  # noqa: BLE001  nobody may move an arm without its e-stop
            self._abort(traceback.format_exc())

    def _listen(
        self, kind: Any, name: str, take: Callable[[Any], None], qos: Any, *,
        node: Node | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """Create a subscription; a callback that fails stops the arm, not the node."""

        def guarded(message: Any) -> None:
            try:
                take(message)
            except Exception as error:  # noqa: BLE001  whatever it is
                self._fail(name, error)

        topic = self.resolve_topic_name(name)
        (node or self).create_subscription(kind, topic, guarded, qos, **options)

    def _fail(self, what: str, error: Exception) -> None:
        with self.lock:
            self.gate.fail(f"{what}: {type(error).__name__}: {error}")
        self._log_error(f"{what}: {''.join(traceback.format_exception(error))}")

    def _serve(
        self, node: Node, kind: Any, name: str, act: Callable[[Any], str | None],
        refuse: Callable[[Any], str] = lambda _: "",
    ) -> None:  # fmt: skip
        """Create a service; `act` changes the gate, and both return why not, if they refuse."""

        def answer(request: Any, response: Any) -> Any:
            try:
                response.message = refuse(request)  # it may be slow, and the tick needs the lock
                if not response.message:
                    with self.lock:
                        response.message = act(request) or ""
            except Exception as error:  # noqa: BLE001  whatever it is
                self._fail(name, error)
                response.message = f"it failed: {error}"
            response.success = not response.message
            self.publish_status()
            return response

        node.create_service(kind, self.resolve_service_name(f"~/{name}"), answer)

    # --- publishers ---------------------------------------------------------------------------

    def _tick(self) -> None:
        """Command at a fixed rate until the node ends."""
        try:
            realtime.apply_to_thread(self.settings)
            with _without_garbage_collection():
                self._tick_until_over()
        except BaseException:  # noqa: BLE001  whatever it is
            self._abort(traceback.format_exc())

    def _tick_until_over(self) -> None:
        last_s, series = 0.0, 0
        for due_ns, missed in _deadlines(round(1e9 * self.gate.dt_s), self.over):
            with self.lock:
                now_s = time.monotonic()
                stamps_s = self.get_clock().now().nanoseconds * 1e-9
                self.gate.clocks(now_s, stamps_s, read_s=time.monotonic() - now_s)
                self._follow_clock(stamps_s - now_s)
                command = self.gate.tick(now_s, missed)
                messages = [] if command is None else self._messages(due_ns)
                if command is not None and time.monotonic() > 1e-9 * due_ns + self.in_time_s:
                    self.gate.brake_instead()
                    messages = self._messages(due_ns)
            if command is not None:
                if self.gate.series != series:
                    series = self.gate.series
                    self.outputs.forget()
                rests = self.gate.state in ("disabled", "latched_fault")
                self.outputs.send(messages, final=rests)
                self._publish_pose()
                if self.log is not None:
                    for pose, stops in self.gate.decided:
                        self.log.command(now_s, self.gate.series, pose, stops)
            self.jitter_s.append(abs(now_s - last_s - self.gate.dt_s) if last_s else 0.0)
            self.ticked_s = last_s = now_s

    def _follow_clock(self, ahead_s: float) -> None:
        """Follow the clock of stamps: at once while no command leaves, else a simulation's alone.

        A clock that jumps is the gate's to find; a way to a standstill keeps its times.
        """
        apart_s = ahead_s - 1e-9 * self.ahead_ns
        if self.gate.state not in ("disabled", "latched_fault"):
            if not self.use_sim_time or self.gate.state == "stopping":
                return
            beyond_s = math.copysign(max(abs(apart_s) - CLOCK_APART_S, 0.0), apart_s)
            most_s = SLEW * self.gate.dt_s
            apart_s = min(max(GAIN * beyond_s, -most_s), most_s)
        self.ahead_ns += round(1e9 * apart_s)

    def _messages(self, due_ns: int) -> list[tuple[Any, Any]]:
        """Return what the controllers get now."""
        gate = self.gate
        if not self.driver.has_trajectory:
            return self.outputs.messages(gate.path[-1])
        period_ns = round(1e9 * gate.dt_s)
        stamp_ns = due_ns + self.ahead_ns - period_ns
        return self.outputs.messages(Command(gate.trajectory(), stamp_ns, period_ns))

    def _publish_pose(self) -> None:
        """Publish the next pose of the arm under the robot's names, for a recording."""
        if self.commanded.get_subscription_count():
            path = self.gate.path
            pose = path[min(2, len(path) - 1)]
            stamp = self.get_clock().now()
            names = self.gate.limits.names
            self.commanded.publish(common.chunk(names, stamp, pose[None], self.gate.config.rate_hz))

    def _watch(self) -> None:
        """End the process if no tick comes: what was published last brings the arm to rest.

        Only time in which this thread could run counts: a machine that stood still is not stuck.
        """
        seen_s, looks = self.ticked_s, 0
        while not self.over.wait(HUNG_S / LOOKS):
            looks = looks + 1 if self.ticked_s == seen_s else 0
            seen_s = self.ticked_s
            if looks >= LOOKS:
                self._abort(f"no tick for {HUNG_S} s")

    def _abort(self, why: str) -> None:
        """End the process at once: nothing in it can be relied on."""
        if not self.over.is_set():
            print(f"error: the arm brakes by itself: {why}", file=sys.stderr, flush=True)
            os._exit(1)

    def _line(self) -> DiagnosticStatus:
        gate = self.gate
        with self.lock:
            values = {
                "state": gate.state, "stage": gate.stage, "why": gate.why[:WHY_LENGTH],
                "source": gate.source or "none", "stop_s": gate.stop_s,
                "speed_scaling": gate.share,
                **{f"count {name}": count for name, count in sorted(gate.counts.items())},
            }  # fmt: skip
            jitter_s = list(self.jitter_s)
        if jitter_s:
            values["tick jitter p99 ms"] = 1e3 * float(np.percentile(jitter_s, 99))
        level = {"latched_fault": "error", "stopping": "warn"}.get(gate.state, "ok")
        message = f"{gate.state}: {values['why']}" if level != "ok" else gate.state
        name = self.get_fully_qualified_name().lstrip("/")
        return common.status(name, level, message, values, self.settings.robot)

    def _log_error(self, text: str) -> None:
        self.get_logger().error(text, throttle_duration_sec=1.0)

    def destroy_node(self) -> None:
        """Bring the arm to rest, stop the ticks, then destroy the node."""
        with self.lock:
            self.gate.enable(time.monotonic(), False)
        end_s = time.monotonic() + self.gate.stop_s + HUNG_S
        while self.gate.state == "stopping" and time.monotonic() < end_s:
            time.sleep(self.gate.dt_s)
        self.over.set()
        self.thread.join(timeout=1.0)
        # The thread first: a shutdown destroys what a spinning executor still uses.
        self.emergency_thread.join(timeout=1.0)
        self.emergency_executor.shutdown()
        self.emergency.destroy_node()
        if self.log is not None:
            self.log.write(Path(self.settings.log))
        super().destroy_node()


def _deadlines(period_ns: int, over: threading.Event) -> Iterator[tuple[int, int]]:
    """Yield multiples of a period when they are due, and how many before each were missed."""
    due_ns = time.monotonic_ns()
    while not over.is_set():
        due_ns += period_ns
        wait_ns = due_ns - time.monotonic_ns()
        if wait_ns > 0:
            time.sleep(1e-9 * wait_ns)
        missed = max((time.monotonic_ns() - due_ns) // period_ns, 0)
        due_ns += missed * period_ns
        yield due_ns, missed


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Exclude present objects from garbage collection, which takes milliseconds."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def main(argv: list[str] | None = None) -> int:
    """Run the node until Ctrl-C or SIGTERM."""
    return common.run(SafetyNode, argv)


if __name__ == "__main__":
    raise SystemExit(main())
