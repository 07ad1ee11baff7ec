"""Nodes that have to work together: policy, critic and arm; two arms; the other controller."""

import time

import numpy as np
import pytest

pytest.importorskip("rclpy")

from robot_bridge import graph
from robot_bridge.bench import running
from robot_bridge.nodes.conductor import Conductor
from robot_bridge.nodes.remote_arm import RemoteArm
from tests.deploy.conftest import critic_folders  # noqa: F401  a fixture
from tests.robot_bridge.test_remote_arm import LOOK, PATIENT, PERIOD_S, ROBOT, SEEN_S, drive

pytestmark = pytest.mark.ros
SAFETY = {"blind_s": 5.0, "silent_s": 5.0, "jump": 10.0, "stuck": 10.0}


def test_a_critic_that_sees_no_progress_holds_a_policy_that_flies(
    arm_policy, critic_folders, tmp_path  # noqa: F811
):  # fmt: skip
    """With thresholds that no critic reaches the policy is slowed, until a task is said anew."""
    use = graph.SimArm(
        policy=str(arm_policy), critic=str(critic_folders[1]), task="cue_colour",
        use_sim_time=False,
    )  # fmt: skip
    told = {
        "policy_node": {"delay": 5},
        "safety_node": {**SAFETY, "pace_s": 5.0},
        "monitor": {
            "stall_s": 1.0, "help_s": 2.0, "confident": 0.0, "gain": 1.0, "done": 1.0, "slow": 0.25,
            "drop": 1.0, "stale_s": 5.0, "apart_s": 2.0, "blind_s": 10.0,
        },
    }  # fmt: skip
    with running(graph.sim_arm(use), told, tmp_path / "nodes.log"), Conductor() as conductor:
        conductor.bring_up()
        began = conductor.begin(0, 0)
        conductor.enable(True)
        conductor.say(began["instruction"])

        def safety(name):
            return conductor.heard["safety_node"].get(name)

        conductor.wait(lambda: safety("source") == "policy", "the policy")
        conductor.wait(lambda: float(safety("pace")) == 0.25, "the critic")
        decisions = int(conductor.heard["policy_node"]["decisions"])
        conductor.wait(
            lambda: int(conductor.heard["policy_node"]["decisions"]) > decisions, "more decisions"
        )
        assert safety("state") == "following"
        conductor.say(began["instruction"])
        conductor.wait(lambda: float(safety("pace")) == 1.0, "a new start")
        conductor.enable(False)
        conductor.say("")


@pytest.mark.parametrize("output", ["trajectory", "forward"])
def test_two_arms_move_and_the_stop_of_one_is_not_the_others(output, tmp_path):
    arms = tuple(
        node
        for side in ("left", "right")
        for node in graph.sim_arm(
            graph.SimArm(task="reach", use_sim_time=False, namespace=side, output=output)
        )
    )
    told = {"safety_node": PATIENT, "sim_arm": {"camera_hz": 10}}
    with (
        running(arms, told, tmp_path / "nodes.log"),
        RemoteArm(ROBOT, namespace="left", **LOOK) as left,
        RemoteArm(ROBOT, namespace="right", **LOOK) as right,
    ):
        both = (left, right)
        home = np.array(ROBOT.home)
        for arm, sign in zip(both, (1, -1), strict=True):
            arm.look(SEEN_S)
            arm.enable(True)
            drive(arm, home + [0.5 * sign, 0, 0, 0, 0, 0])
            arm.hold_s = 60.0
        left.estop()
        left.wait(lambda: left.state == "latched", "the e-stop")
        stood = left.look().proprio
        for _ in range(5):
            left.send(home[None])
            time.sleep(PERIOD_S)
        drive(right, home)
        assert right.state == "following"
        np.testing.assert_allclose(left.look().proprio, stood, atol=0.02)
