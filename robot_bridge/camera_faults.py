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

from deploy import artefact as artefacts
from deploy.artefact import Manifest
from robot_bridge import bench, graph, share
from robot_bridge import limits as joint_limits
from robot_bridge.graph import SimArm
from robot_bridge.limits import Limits
from robot_bridge.tally import Tally

STALE_S, FROZEN_S = 0.2, 1.0
"""What the policy node is told: oldest picture, and longest time of the same one."""
MOVED = 0.05
"""Distance after which a camera has to show something else: `SyncConfig.moved`."""
STILL = 1e-3
"""Distance from a target within which an arm stands: the rest is approached without end."""
SETTLE_S = 1.0
"""How long an arm takes from the last target's time to within that of it, from any distance."""
GOOD_S = (0.3, 2.5)
"""How long all is well."""
WATCHED_S = 0.7
"""How long it is watched that the arm stands."""
KINDS = ("camera silent", "all cameras silent", "camera frozen", "all cameras frozen")


def play(folder: Path, schedules: int, seed: int, out: Path, tally: Tally, slack_s: float) -> None:
    """Play schedules with a policy and add what was found.

    Args:
        folder: Exported policy.
        schedules: How many.
        seed: Of the first.
        out: Folder for what the nodes say.
        tally: What was found so far.
        slack_s: What a stop may take beyond what is stated, for messages on their way.

    Raises:
        ValueError: the policy is damaged, or a node refuses.
    """
    from robot_bridge.nodes.saboteur import Saboteur

    manifest = artefacts.read(folder).manifest
    robot = manifest.robot
    assert isinstance(manifest, Manifest)
    limits = joint_limits.read(share.params() / f"{robot.name}_limits.yaml", robot)
    # Whatever it was trained on: a task of memory would hold the arm, and nothing moves then.
    use = SimArm(robot=robot.name, policy=str(folder), task="reach", use_sim_time=False)
    told: dict[str, dict[str, graph.Value]] = {
        "policy_node": {"delay": bench.DELAY, "stale_s": STALE_S, "frozen_s": FROZEN_S},
        # Whatever it wants is followed: jumps are the other study's.
        "safety_node": {"silent_s": 1.0, "blind_s": 1.0, "jump": 10.0, "stuck": 10.0},
    }
    with (
        bench.running(graph.sim_arm(use), told, out / "camera_nodes.log"),
        Saboteur(robot) as saboteur,
    ):
        saboteur.bring_up()
        for number in track(range(seed, seed + schedules), "cameras", transient=True):
            _one(saboteur, manifest, limits, number, tally, slack_s)
        saboteur.enable(False)
        saboteur.say("")


def _one(
    saboteur: Any, manifest: Manifest, limits: Limits, number: int, tally: Tally, slack_s: float
) -> None:
    """Play one schedule."""
    rng = np.random.default_rng(number)
    kind = KINDS[number % len(KINDS)]
    cameras = [camera.name for camera in manifest.robot.cameras]
    hit = cameras if kind.startswith("all") else [cameras[int(rng.integers(len(cameras)))]]
    saboteur.set("sim_arm", frozen=[""], silent=[""])
    saboteur.enable(False)
    saboteur.say("")
    saboteur.rearm()
    told = saboteur.begin(0, number)
    saboteur.taken()
    saboteur.enable(True)
    saboteur.say(told["instruction"])
    saboteur.wait(lambda: saboteur.heard["safety_node"]["source"] == "policy", "the policy")
    time.sleep(rng.uniform(*GOOD_S))
    begin_s = time.monotonic()
    saboteur.set("sim_arm", **{kind.split()[-1]: hit})
    due_s = longest_s(kind, manifest) + SETTLE_S + slack_s
    time.sleep(due_s + WATCHED_S)
    times_s, commands = saboteur.taken()
    tally.keep(kind, commands, limits)
    still = 2 * MOVED if kind.endswith("frozen") else STILL
    tally.stop(kind, number, times_s, commands, begin_s, due_s, still)


def longest_s(kind: str, manifest: Manifest) -> float:
    """Return how long a policy may go on after a fault, to the end of its last chunk."""
    step_s = 1 / manifest.robot.control_hz
    decided_s = STALE_S
    if kind.endswith("frozen"):  # seen to be the same at the next decision, and after a while
        decided_s = 2 * manifest.execute * step_s + FROZEN_S
    return decided_s + (bench.DELAY + manifest.chunk) * step_s
