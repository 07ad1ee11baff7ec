"""Latency of a policy's decisions on this machine."""

import time

import numpy as np

from robot_bridge.policy.policy_runner import PolicyRunner
from robot_bridge.sensing import convert
from robot_bridge.sensing.sync import SyncedObservation
from vla.contracts.protocols import ArmPolicy

WARM, MEASURED = 5, 20
"""Number of decisions that warm up, and of those whose latency is measured."""


def measure_latency(policy: ArmPolicy, runner: PolicyRunner) -> list[float]:
    """Return the latencies in s of decisions on black images; the first ones warm up."""
    robot, state, seconds = policy.robot, policy.initial_state(1), []
    camera = robot.cameras[0]
    large = np.zeros((2 * camera.height_px, 2 * camera.width_px, 3), np.uint8)
    small = convert.center_crop_resize(large, camera.height_px, camera.width_px)  # loads OpenCV
    images, pose = np.stack([small] * len(robot.cameras)), np.array(robot.home, np.float32)
    observation = SyncedObservation(images=images, proprio=pose, time_s=0.0)
    for _ in range(WARM + MEASURED):
        runner.start(0.0, pose, "go", 0)
        request = runner.request(0.0, observation)._replace(state=state)
        begin_s = time.perf_counter()
        _, state = runner.decide(request)
        seconds.append(time.perf_counter() - begin_s)
        runner.fail(request)
    runner.stop()
    return seconds
