"""Nodes that have to work together: policy, reward model and arm; two arms; the other
controller.
"""

import time

import numpy as np
import pytest

pytest.importorskip("rclpy")

from benchmarks.robot_bridge.ros_latency import running
from benchmarks.robot_bridge.sim_episode_client import SimEpisodeClient
from robot_bridge.launching import graph
from robot_bridge.nodes.remote_arm import RemoteArm
from tests.deploy.conftest import reward_model_folders  # noqa: F401  a fixture
from tests.robot_bridge.test_remote_arm import PATIENT, PERIOD_S, ROBOT, SEEN_S, SYNC, drive

pytestmark = pytest.mark.ros
SAFETY = {
    "joint_state_timeout_s": 5.0,
    "command_timeout_s": 5.0,
    "max_start_deviation": 10.0,
    "max_tracking_error": 10.0,
}


def test_a_reward_model_that_sees_no_progress_holds_a_policy_that_flies(
    arm_policy, reward_model_folders, tmp_path  # noqa: F811
):  # fmt: skip
    """With thresholds that no reward model reaches the policy is slowed, until a task is said
    anew.
    """
    use = graph.SimArm(
        policy=str(arm_policy), reward_model=str(reward_model_folders[1]), task="cue_colour",
        use_sim_time=False,
    )  # fmt: skip
    told = {
        "policy_node": {"delay": 5},
        "safety_node": {**SAFETY, "speed_scaling_timeout_s": 5.0},
        "monitor": {
            "stall_s": 1.0, "help_s": 2.0, "confident": 0.0, "gain": 1.0, "done": 1.0, "slow": 0.25,
            "drop": 1.0, "max_observation_age_s": 5.0, "max_sync_interval_s": 2.0,
            "score_timeout_s": 10.0,
        },
    }  # fmt: skip
    with running(graph.sim_arm(use), told, tmp_path / "nodes.log"), SimEpisodeClient() as client:
        client.bring_up()
        began = client.begin(0, 0)
        client.enable(True)
        client.say(began["instruction"])

        def safety(name):
            return client.heard["safety_node"].get(name)

        client.wait(lambda: safety("source") == "policy", "the policy")
        client.wait(lambda: float(safety("speed_scaling")) == 0.25, "the reward model")
        decisions = int(client.heard["policy_node"]["decisions"])
        client.wait(
            lambda: int(client.heard["policy_node"]["decisions"]) > decisions, "more decisions"
        )
        assert safety("state") == "tracking"
        client.say(began["instruction"])
        client.wait(lambda: float(safety("speed_scaling")) == 1.0, "a new start")
        client.enable(False)
        client.say("")


@pytest.mark.parametrize("controller_type", ["trajectory", "forward"])
def test_two_arms_move_and_the_stop_of_one_is_not_the_others(controller_type, tmp_path):
    arms = tuple(
        node
        for side in ("left", "right")
        for node in graph.sim_arm(
            graph.SimArm(
                task="reach", use_sim_time=False, namespace=side, controller_type=controller_type
            )
        )
    )
    told = {"safety_node": PATIENT, "sim_arm": {"camera_hz": 10}}
    with (
        running(arms, told, tmp_path / "nodes.log"),
        RemoteArm(ROBOT, namespace="left", sync=SYNC) as left,
        RemoteArm(ROBOT, namespace="right", sync=SYNC) as right,
    ):
        both = (left, right)
        home = np.array(ROBOT.home)
        for arm, sign in zip(both, (1, -1), strict=True):
            arm.look(SEEN_S)
            arm.enable(True)
            drive(arm, home + [0.5 * sign, 0, 0, 0, 0, 0])
            arm.hold_s = 60.0
        left.estop()
        left.wait(lambda: left.state == "latched_fault", "the e-stop")
        stood = left.look().proprio
        for _ in range(5):
            left.send(home[None])
            time.sleep(PERIOD_S)
        drive(right, home)
        assert right.state == "tracking"
        np.testing.assert_allclose(left.look().proprio, stood, atol=0.02)
