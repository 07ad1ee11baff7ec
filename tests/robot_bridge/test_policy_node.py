"""The policy node flies, is told another task, and comes to rest when it is deactivated."""

import io

import pytest
from lifecycle_msgs.msg import Transition

from robot_bridge import graph, up
from robot_bridge.bench import running
from robot_bridge.nodes.conductor import Conductor

pytestmark = pytest.mark.ros
SLOW = {
    "policy_node": {"delay": 5},
    "safety_node": {"blind_s": 5.0, "silent_s": 5.0, "jump": 10.0, "stuck": 10.0},
}
"""A machine that runs other tests may take more than a control step to decide."""


def use(folder):
    return graph.SimArm(policy=str(folder), task="cue_colour", use_sim_time=False)


def test_it_flies_takes_another_task_and_comes_to_rest(arm_policy, tmp_path):
    with (
        running(graph.sim_arm(use(arm_policy)), SLOW, tmp_path / "nodes.log"),
        Conductor() as conductor,
    ):

        def told(name):
            return conductor.heard.get("policy_node", {}).get(name)

        conductor.bring_up()
        began = conductor.begin(0, 0)
        conductor.enable(True)
        conductor.say(began["instruction"])
        conductor.wait(lambda: int(told("decisions") or 0) >= 2, "decisions")
        assert told("target") == "onnxruntime"
        assert told("task") == began["instruction"]
        assert told("episode") == "0"
        conductor.wait(lambda: conductor.heard["safety_node"]["source"] == "policy", "the gate")
        conductor.say("another")
        conductor.wait(lambda: told("task") == "another" and told("episode") == "1", "the task")
        count = int(told("decisions"))
        conductor.wait(lambda: int(told("decisions")) > count, "a decision on it")
        conductor.enable(False)
        conductor.wait(lambda: told("flying") == "False", "the policy to land")
        conductor.enable(True)
        conductor.wait(lambda: told("episode") == "2", "another episode")
        conductor.wait(lambda: conductor.heard["safety_node"]["source"] == "policy", "the gate")
        conductor.transition(Transition.TRANSITION_DEACTIVATE)
        conductor.wait(lambda: conductor.heard["safety_node"]["state"] == "disarmed", "rest")
        conductor.wait(lambda: told("flying") == "False", "the end of the episode")
        conductor.transition(Transition.TRANSITION_CLEANUP)
        conductor.wait(lambda: told("target") == "none", "a clean-up")


def test_a_policy_that_is_not_there_is_named_and_nothing_flies(tmp_path):
    (tmp_path / "empty").mkdir()
    (node,) = (n for n in graph.sim_arm(use(tmp_path / "empty")) if n.name == "policy_node")
    said = io.StringIO()
    with up.started((node,), out=said), Conductor() as conductor:
        with pytest.raises(ValueError, match="policy_node: transition 1 refused"):
            conductor.bring_up()
        conductor.wait(
            lambda: "no checkpoint" in conductor.heard.get("policy_node", {}).get("why", ""),
            "the reason",
        )
