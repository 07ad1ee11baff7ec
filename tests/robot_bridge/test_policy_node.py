"""The policy node flies, is told another task, and comes to rest when it is deactivated."""

import io

import pytest
from lifecycle_msgs.msg import Transition

from benchmarks.robot_bridge.ros_latency import running
from benchmarks.robot_bridge.sim_episode_client import SimEpisodeClient
from robot_bridge.launching import graph, up

pytestmark = pytest.mark.ros
SLOW = {
    "policy_node": {"delay": 5},
    "safety_node": {
        "joint_state_timeout_s": 5.0,
        "command_timeout_s": 5.0,
        "max_start_deviation": 10.0,
        "max_tracking_error": 10.0,
    },
}
"""A machine that runs other tests may take more than a control step to decide."""


def use(folder):
    return graph.SimArm(policy=str(folder), task="cue_colour", use_sim_time=False)


def test_it_flies_takes_another_task_and_comes_to_rest(arm_policy, tmp_path):
    with (
        running(graph.sim_arm(use(arm_policy)), SLOW, tmp_path / "nodes.log"),
        SimEpisodeClient() as client,
    ):

        def told(name):
            return client.heard.get("policy_node", {}).get(name)

        client.bring_up()
        began = client.begin(0, 0)
        client.enable(True)
        client.say(began["instruction"])
        client.wait(lambda: int(told("decisions") or 0) >= 2, "decisions")
        assert told("target") == "onnxruntime"
        assert told("instruction") == began["instruction"]
        assert told("episode") == "0"
        client.wait(lambda: client.heard["safety_node"]["source"] == "policy", "the gate")
        client.say("another")
        client.wait(lambda: told("instruction") == "another" and told("episode") == "1", "the task")
        count = int(told("decisions"))
        client.wait(lambda: int(told("decisions")) > count, "a decision on it")
        client.enable(False)
        client.wait(lambda: told("active") == "False", "the policy to land")
        client.enable(True)
        client.wait(lambda: told("episode") == "2", "another episode")
        client.wait(lambda: client.heard["safety_node"]["source"] == "policy", "the gate")
        # Without pictures it says so and falls silent, and silence latches.
        client.set("sim_arm", silent=["front", "wrist"])
        client.wait(
            lambda: client.heard["safety_node"]["state"] == "latched_fault", "the latch", 60.0
        )
        assert client.heard["safety_node"]["stage"] == "command_timeout"
        assert "old, at most" in told("why")
        client.set("sim_arm", silent=[""])
        client.rearm()
        client.enable(True)
        client.wait(
            lambda: client.heard["safety_node"]["source"] == "policy", "pictures again", 60.0
        )
        client.transition(Transition.TRANSITION_DEACTIVATE)
        client.wait(lambda: client.heard["safety_node"]["state"] == "disabled", "rest")
        client.wait(lambda: told("active") == "False", "the end of the episode")
        client.transition(Transition.TRANSITION_CLEANUP)
        client.wait(lambda: told("target") == "none", "a clean-up")


def test_a_policy_that_is_not_there_is_named_and_nothing_flies(tmp_path):
    (tmp_path / "empty").mkdir()
    (node,) = (n for n in graph.sim_arm(use(tmp_path / "empty")) if n.name == "policy_node")
    said = io.StringIO()
    with up.started((node,), out=said), SimEpisodeClient() as client:
        with pytest.raises(ValueError, match="policy_node: transition 1 refused"):
            client.bring_up()
        client.wait(
            lambda: "no checkpoint" in client.heard.get("policy_node", {}).get("why", ""),
            "the reason",
        )
