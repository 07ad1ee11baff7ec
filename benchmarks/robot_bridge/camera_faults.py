"""Faults of cameras against a policy that flies, over real DDS: a part of `fault_study`.

A policy that sees nothing fresh decides nothing: the arm ends the chunk it has, and stands. A
camera that repeats itself is found out once the arm has moved under it; until then the arm is not
far from where it was.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from benchmarks.robot_bridge import controller_replay, ros_latency
from benchmarks.robot_bridge.fault_report import Tally
from deploy.runtime import artefact as artefacts
from deploy.runtime.artefact import Manifest
from robot_bridge.launching import graph, package_files
from robot_bridge.launching.graph import SimArm
from robot_bridge.motion import limits as joint_limits
from robot_bridge.motion.limits import Limits

STALE_S, FROZEN_S = 0.2, 1.0
"""Settings of the policy node: oldest image, and longest time of the same image."""
MOVED = 0.05
"""Motion after which a camera must show another image: `robot_bridge.sensing.sync.MOVED`."""
STILL = 1e-3
"""Distance from a target within which an arm counts as at rest."""
SETTLE_S = 1.0
"""How long an arm takes from the last target's time to within that of it, from any distance."""
GOOD_S = (0.3, 2.5)
"""Time before the fault."""
WATCHED_S = 0.7
"""Time for which the arm must stay at rest."""
KINDS = ("camera silent", "all cameras silent", "camera frozen", "all cameras frozen")


def play(folder: Path, schedules: int, seed: int, out: Path, tally: Tally, slack_s: float) -> None:
    """Run schedules with a policy and add their results.

    Args:
        folder: Exported policy.
        schedules: How many.
        seed: Of the first.
        out: Folder for what the nodes say.
        tally: Results so far.
        slack_s: What a stop may take beyond what is stated, for messages on their way.

    Raises:
        ValueError: the policy is damaged, or a node refuses.
    """
    from benchmarks.robot_bridge.fault_injector import FaultInjector

    manifest = artefacts.read(folder).manifest
    robot = manifest.robot
    assert isinstance(manifest, Manifest)
    limits = joint_limits.read(package_files.params() / f"{robot.name}_limits.yaml", robot)
    # Whatever it was trained on: a task of memory would hold the arm, and nothing moves then.
    use = SimArm(robot=robot.name, policy=str(folder), task="reach", use_sim_time=False)
    settings: dict[str, dict[str, graph.Value]] = {
        "policy_node": {
            "delay": ros_latency.DELAY,
            "max_observation_age_s": STALE_S,
            "frozen_image_timeout_s": FROZEN_S,
        },
        # Whatever it wants is followed: jumps are the other study's.
        "safety_node": {
            "command_timeout_s": 1.0,
            "joint_state_timeout_s": 1.0,
            "max_start_deviation": 10.0,
            "max_tracking_error": 10.0,
        },
    }
    with (
        ros_latency.running(graph.sim_arm(use), settings, out / "camera_nodes.log"),
        FaultInjector(robot) as injector,
    ):
        injector.bring_up()
        for number in track(range(seed, seed + schedules), "cameras", transient=True):
            _run_schedule(injector, manifest, limits, number, tally, slack_s)
        injector.enable(False)
        injector.say("")


def _run_schedule(
    injector: Any, manifest: Manifest, limits: Limits, number: int, tally: Tally, slack_s: float
) -> None:
    """Run one schedule."""
    rng = np.random.default_rng(number)
    kind = KINDS[number % len(KINDS)]
    cameras = [camera.name for camera in manifest.robot.cameras]
    hit = cameras if kind.startswith("all") else [cameras[int(rng.integers(len(cameras)))]]
    injector.set("sim_arm", frozen=[""], silent=[""])
    injector.enable(False)
    injector.say("")
    injector.rearm()
    settings = injector.begin(0, number)
    injector.taken()
    injector.enable(True)
    injector.say(settings["instruction"])
    injector.wait(lambda: injector.heard["safety_node"]["source"] == "policy", "the policy")
    time.sleep(rng.uniform(*GOOD_S))
    begin_s = injector.now_s()
    injector.set("sim_arm", **{kind.split()[-1]: hit})
    due_s = longest_s(kind, manifest) + SETTLE_S + slack_s
    time.sleep(due_s + WATCHED_S)
    end_s, messages = injector.now_s(), injector.taken()
    worst, path = controller_replay.judge(messages, limits, number, end_s, begin_s)
    tally.keep(kind, number, len(messages), worst)
    times_s = np.arange(len(path)) / controller_replay.RATES_HZ[0]
    still = 2 * MOVED if kind.endswith("frozen") else STILL
    tally.stop(kind, number, times_s, path, begin_s, due_s, still)


def longest_s(kind: str, manifest: Manifest) -> float:
    """Return how long a policy may continue after a fault, to the end of its last chunk."""
    step_s = 1 / manifest.robot.control_hz
    decided_s = STALE_S
    if kind.endswith("frozen"):  # seen to be the same at the next decision, and after a while
        decided_s = 2 * manifest.n_action_steps * step_s + FROZEN_S
    return decided_s + (ros_latency.DELAY + manifest.chunk_size) * step_s
