"""Node `sim_arm`: MuJoCo in real time behind the topics of a real arm; it checks no command.

It has three threads next to ROS's own: physics by deadlines, rendering, and an outbox of messages.
"""

import contextlib
import dataclasses
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from rcl_interfaces.msg import IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.impl.implementation_singleton import rclpy_implementation
from rclpy.node import Node
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger

from robot_bridge.nodes import common, sim_sensors
from robot_bridge.nodes.expert_teleop import ExpertTeleop
from robot_bridge.nodes.sim_driver import SimulatedDriver
from robot_bridge.nodes.sim_sensors import SensorStream
from robot_bridge.sim_arm.realtime_clock import Outbox, PeriodicTimer, TickDeadlines
from robot_bridge.sim_arm.settings import Settings
from sim.core.scene import compile_scene
from sim.vec_env import load_robot, load_task
from sim.vector.realtime_world import RealtimeWorld, RenderThread
from vla.contracts import registry
from vla.contracts.config import PluginConfig, from_json
from vla.contracts.specs import CameraSpec, RobotSpec

CLOCK_BEGIN_S = 1.0
"""First time of /clock: 0 means "no time yet" to a node, and "now" in a stamp."""
EPISODE_S = 0.09
"""Shortest time between two messages of an unchanged episode: 10 Hz less a tick, as a step may be
late."""
MOST = 2**31 - 1
"""Largest seed and episode."""


class SimArm(Node):
    """The arm; see docs/topics.md for its topics."""

    def __init__(self) -> None:
        """Compile the scene, begin the first episode, start the threads."""
        self._ends = contextlib.ExitStack()  # ROS may destroy a node that is not complete
        super().__init__("sim_arm")
        self._set: Settings = common.parameters(self, Settings)
        robot = robot_of(self._set)
        self._robot = robot
        self._live = RealtimeWorld(compile_scene(task_of(self._set), robot), self._set.physics_hz)
        self.failed = False
        """Whether the physics ended by an error."""
        self._ending = False
        self._lock = threading.Lock()  # of the world and the actuator
        self._tick_s = 1 / self._set.physics_hz
        half_s = self._tick_s / 2
        self._states_due = PeriodicTimer(1 / self._set.joint_state_hz, half_s)
        self._images_due = PeriodicTimer(1 / max(self._set.camera_hz, 1), half_s)
        self._next_episode()
        links = self._set.images(len(robot.cameras))
        seeds = np.random.SeedSequence(self.get_parameter("seed").value).spawn(2 + len(links))
        self._driver = SimulatedDriver(self, robot, self._set, np.random.default_rng(seeds[0]))
        self._published_s = 0.0
        self._worst = (0, 0)
        self._counts = {"images": 0, "skipped_images": 0}
        self._spans: dict[str, list[float]] = {"tick": [], "late": [], "render": []}
        if self._set.log_commands:
            self._ends.callback(self._driver.write_log)
        self._outbox = Outbox()
        self._ends.callback(self._outbox.close)
        sensors = ("joint_states", *(camera.name for camera in robot.cameras))
        self._streams = {
            name: SensorStream(self._outbox, link, np.random.default_rng(seed))
            for name, link, seed in zip(
                sensors, (self._set.states(), *links), seeds[1:], strict=True
            )
        }
        self._expert = ExpertTeleop(self, self._live, robot.names)
        self._faults()
        self._create_publishers()
        self._renderer = None
        if self._set.camera_hz:
            self._renderer = RenderThread(self._live.world, self._on_images)
            self._ends.callback(self._renderer.close)
        self._deadlines = TickDeadlines(self._tick_s / self._set.rate, time.monotonic())
        self._begin()
        self._thread = threading.Thread(target=self._run, name="physics", daemon=True)
        self._thread.start()
        self._ends.callback(self._end)
        self._create_subscriptions()

    def _next_episode(self) -> None:
        """Declare the parameters of the next reset."""
        for name, text in (
            ("seed", "Seed of the next episode; at the start also that of losses and jitter"),
            ("episode", "Index of the next episode"),
        ):
            span = [IntegerRange(from_value=0, to_value=MOST)]
            common.declare(self, name, 0, ParameterDescriptor(description=text, integer_range=span))

    def _faults(self) -> None:
        """Declare the parameters of faulty sensors."""
        self.add_on_set_parameters_callback(self._set_faults)
        sensors = ", ".join(self._streams)
        for name, text in (("frozen", "repeat their last value"), ("silent", "send nothing")):
            descriptor = ParameterDescriptor(description=f"Sensors that {text}, among {sensors}")
            common.declare(self, name, [""], descriptor)

    def _set_faults(self, changes: list[Any]) -> SetParametersResult:
        """Freeze or silence the sensors of a parameter, if it names existing ones."""
        for change in changes:
            if change.name not in ("frozen", "silent"):
                continue
            names = {name for name in change.value or () if name}
            if unknown := sorted(names - set(self._streams)):
                sensors = ", ".join(self._streams)
                reason = f"{change.name}: no sensor {unknown[0]!r}; known: {sensors}"
                return SetParametersResult(successful=False, reason=reason)
            for name, stream in self._streams.items():
                setattr(stream, change.name, name in names)
        return SetParametersResult(successful=True)

    def _create_publishers(self) -> None:
        self._states = self.create_publisher(JointState, "joint_states", common.DRIVERS)
        self._episodes = self.create_publisher(String, "~/episode", common.LATCHED)
        self._clocks = (
            self.create_publisher(Clock, "/clock", 10) if self._set.publish_clock else None
        )
        self._cameras: list[list[tuple[Any, Any]]] = []
        for camera in self._robot.cameras if self._set.camera_hz else ():
            root = f"cameras/{camera.name}"
            kinds: list[tuple[Any, str, Any]] = [(Image, "image_raw", sim_sensors.image)]
            if self._set.compressed:
                kinds.append((CompressedImage, "image_raw/compressed", sim_sensors.compressed))
            info = lambda c, stamp, _: sim_sensors.camera_info(c, stamp)  # noqa: E731
            outputs = [
                (self.create_publisher(kind, f"{root}/{name}", common.DRIVERS), make)
                for kind, name, make in (*kinds, (CameraInfo, "camera_info", info))
            ]
            self._cameras.append(outputs)
        common.publish_diagnostics(self, self._status)

    def _create_subscriptions(self) -> None:
        """Create subscriptions and services."""
        self._driver.connect()
        for name, begin in (("reset", self._begin), ("next", self._continue)):
            self.create_service(
                Trigger, f"~/{name}", lambda _, answer, begin=begin: self._answer(begin, answer)
            )

    def _run(self) -> None:
        """Run the physics by the deadlines until the node ends."""
        try:
            while not self._ending:
                wait_s = self._deadlines.deadline_s - time.monotonic()
                if wait_s > 0:
                    time.sleep(wait_s)
                begin_s = time.monotonic()
                with self._lock:
                    self._note("late", self._deadlines.tick(begin_s))
                    self._tick()
                self._note("tick", time.monotonic() - begin_s)
        finally:
            if not self._ending:  # an error, which the thread has printed
                self.failed = True
                os.kill(os.getpid(), signal.SIGTERM)  # the main thread takes the node down

    def _tick(self) -> None:
        """Measure what is due, apply commands, and advance the physics by a tick."""
        begin_s = (self._deadlines.ticks - 1) * self._tick_s
        self._measure(begin_s)
        if (publish := self._expert.next_message(self._deadlines.ticks, begin_s)) is not None:
            self._outbox.put(time.monotonic(), publish)
        target = self._driver.advance(begin_s, begin_s + self._tick_s)
        self._live.paused &= self._driver.tally()["commands"] == self._before
        was_running = self._live.running
        if self._live.tick(target):
            self._publish_episode(at_once=was_running != self._live.running)

    def _measure(self, now_s: float) -> None:
        """Measure joint states and request images of the present world, if due."""
        moment_s, stamp = time.monotonic(), self.stamp(now_s)
        if self._clocks is not None:
            clock = Clock(clock=stamp)
            self._outbox.put(moment_s, lambda: self.publish(self._clocks, clock))
        world = self._live.world
        if self._states_due.poll(now_s):
            data, qpos, qvel = world.data, world.joint_qpos, world.joint_qvel
            measured = data.qpos[qpos], data.qvel[qvel]

            def publish(values: tuple[np.ndarray, np.ndarray]) -> None:
                for message in self._driver.joint_states(stamp, *values):
                    self.publish(self._states, message)

            self._streams["joint_states"].send(moment_s, measured, publish)
        if self._renderer is not None and self._images_due.poll(now_s):
            taken = self._renderer.request((moment_s, stamp))
            self._counts["images" if taken else "skipped_images"] += 1

    def _on_images(self, images: np.ndarray, tag: Any, took_s: float) -> None:
        """Send images u8 [v, h, w, 3]; called in the rendering thread."""
        self._note("render", took_s)
        moment_s, stamp = tag
        for camera, image, outputs in zip(
            self._robot.cameras, images.copy(), self._cameras, strict=True
        ):

            def publish(
                value: np.ndarray, camera: CameraSpec = camera, outputs: list[Any] = outputs
            ) -> None:
                for publisher, make in outputs:
                    if publisher.get_subscription_count():  # a large image takes milliseconds
                        self.publish(publisher, make(camera, stamp, value))

            self._streams[camera.name].send(moment_s, image, publish)

    def publish(self, publisher: Any, message: Any) -> None:
        """Publish from a thread that may run after the shutdown of ROS."""
        try:
            publisher.publish(message)
        except rclpy_implementation.RCLError:
            if self.context.ok():
                raise

    def stamp(self, now_s: float) -> Time:
        """Return the stamp of a measurement at a simulated time."""
        if self._set.publish_clock:
            return sim_sensors.stamp_of(CLOCK_BEGIN_S + now_s)
        return self.get_clock().now().to_msg()

    def now_s(self, moment_s: float) -> float:
        """Return the simulated time of a monotonic one."""
        return self._deadlines.ticks_at(moment_s) * self._tick_s

    def _begin(self) -> dict[str, Any]:
        """Start the episode of the parameters, and return its state."""
        now_s = self._deadlines.ticks * self._tick_s
        self._live.begin(self.get_parameter("seed").value, self.get_parameter("episode").value)
        self._driver.reset(now_s)
        self._states_due.restart(now_s)
        self._images_due.restart(now_s)
        if self._renderer is not None:
            self._renderer.wait()  # so that the next tick's image is the episode's first
        return self._start_episode(now_s)

    def _continue(self) -> dict[str, Any]:
        """Start that episode in the world as it is, and return its state.

        Raises:
            ValueError: the task has to place objects.
        """
        self._live.begin_in_place(
            self.get_parameter("seed").value, self.get_parameter("episode").value
        )
        return self._start_episode(self._deadlines.ticks * self._tick_s)

    def _start_episode(self, now_s: float) -> dict[str, Any]:
        self._expert.request(0)
        self._live.paused, self._before = self._set.waits, self._driver.tally()["commands"]
        self._began_s = common.seconds(self.stamp(now_s))
        self._publish_episode(at_once=True)
        return self._episode()

    def _episode(self) -> dict[str, Any]:
        return {**self._live.state(), "began_s": self._began_s}

    def _publish_episode(self, at_once: bool) -> None:
        """Publish the state of the episode, at most at 10 Hz unless `at_once`."""
        moment_s = time.monotonic()
        if at_once or moment_s - self._published_s > EPISODE_S:
            self._published_s = moment_s
            message = String(data=json.dumps(self._episode()))
            self._outbox.put(moment_s, lambda: self.publish(self._episodes, message))

    def _answer(
        self, begin: Callable[[], dict[str, Any]], response: Trigger.Response
    ) -> Trigger.Response:
        """Start the episode of the parameters."""
        try:
            with self._lock:
                episode = begin()
        except ValueError as error:
            response.success, response.message = False, f"task {self._set.task}: {error}"
            return response
        episode["episode"] = episode["number"]
        names = ("instruction", "seed", "episode", "began_s")
        response.success = True
        response.message = json.dumps({name: episode[name] for name in names})
        return response

    def _note(self, name: str, span_s: float) -> None:
        self._spans[name].append(1e3 * span_s)

    def _status(self) -> Any:
        """Return the diagnostics of the last second."""
        spans, self._spans = self._spans, {name: [] for name in self._spans}
        overruns, skipped = self._deadlines.overruns, self._counts["skipped_images"]
        worse = (overruns, skipped) != self._worst
        self._worst = (overruns, skipped)
        values: dict[str, Any] = {
            "sim_s": self._deadlines.ticks * self._tick_s,
            "overruns": overruns,
        }
        for name, times_ms in spans.items():
            values[f"{name}_ms"] = float(np.mean(times_ms)) if times_ms else 0.0
            values[f"{name}_worst_ms"] = float(np.max(times_ms)) if times_ms else 0.0
        values |= self._driver.tally() | self._counts
        for name, stream in self._streams.items():
            values |= {f"{name}_sent": stream.sent, f"{name}_lost": stream.lost}
        text = "not in time: fewer images, or a lower rate" if worse else "in time"
        return common.status("sim_arm", "warn" if worse else "ok", text, values, self._robot.name)

    def _end(self) -> None:
        """End the physics."""
        self._ending = True
        self._thread.join(5.0)

    def destroy_node(self) -> None:
        """End the threads, then write the log of commands; a second call does nothing."""
        self._ends.close()
        super().destroy_node()


def robot_of(chosen: Settings) -> RobotSpec:
    """Return the robot with the image size of the settings.

    Raises:
        ValueError: there is no such robot.
    """
    robot = load_robot(chosen.robot)
    width_px, height_px = chosen.camera_width_px, chosen.camera_height_px
    if not width_px:
        return robot
    cameras = tuple(
        dataclasses.replace(camera, width_px=width_px, height_px=height_px)
        for camera in robot.cameras
    )
    return dataclasses.replace(robot, cameras=cameras)


def task_of(chosen: Settings) -> PluginConfig:
    """Return the task's configuration.

    Raises:
        ValueError: there is no such task, or its settings are wrong.
    """
    if not chosen.task_config:
        return load_task(chosen.task)
    try:
        values = json.loads(chosen.task_config)
    except json.JSONDecodeError as error:
        raise ValueError(f"task_config: no JSON ({error}): {chosen.task_config!r:.80}") from error
    kind = registry.load("sim.tasks", chosen.task).Config
    config: PluginConfig = from_json(kind, values, "task_config")
    return config


def main(argv: list[str] | None = None) -> int:
    """Run the arm until Ctrl-C or SIGTERM; return the exit code."""
    arms: list[SimArm] = []

    def make() -> SimArm:
        arms.append(SimArm())
        return arms[0]

    return common.run(make, argv) or int(any(arm.failed for arm in arms))


if __name__ == "__main__":
    sys.exit(main())
