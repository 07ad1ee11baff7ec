"""Names of ROS topics, parameters, launch arguments and flags of earlier releases."""

import dataclasses
import importlib

import pytest

from robot_bridge.launching import graph, launch_arguments, up
from vla import cli
from vla.contracts import renames

MODULES = {
    "safety_node": "safety", "policy_node": "policy", "monitor": "monitor",
    "recorder": "recorder",
}  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "argument", "answer"),
    [
        (graph.SimArm(), {"speed": "0.1"}, "speed is now max_velocity_scaling_factor; give"),
        (graph.Arm(), {"output": "forward"}, "controller_type:=forward"),
        (graph.DualArm(), {"left_speed": "0.1"}, "left_max_velocity_scaling_factor:=0.1"),
    ],
)
def test_an_old_launch_argument_answers_with_the_new_one(settings, argument, answer):
    with pytest.raises(ValueError, match=answer):
        launch_arguments.read(settings, argument)


def test_an_argument_of_a_launch_file_that_includes_ours_is_not_an_old_one():
    assert launch_arguments.read(graph.Arm(), {"output": "screen"}) == graph.Arm()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["arm", "--speed", "0.1"], "--speed is now --max-velocity-scaling-factor"),
        (["record", "--output=forward"], "--output is now --controller-type"),
        (["dual_arm", "--left.speed", "1"], "now --left.max-velocity-scaling-factor"),
    ],
)
def test_an_old_flag_answers_with_the_new_one(words, answer):
    with pytest.raises(ValueError, match=answer):
        up.main(words)


def test_the_old_verb_answers_with_the_new_one(capsys):
    assert cli.main(["up", "arm"]) == 2
    assert "`vla up` is now `vla ros launch`" in capsys.readouterr().err


@pytest.mark.parametrize("node", MODULES)
def test_every_new_name_is_a_parameter(node):
    pytest.importorskip("rclpy")
    settings = importlib.import_module(f"robot_bridge.nodes.{MODULES[node]}").Settings
    names = {field.name for field in dataclasses.fields(settings)}
    assert set(renames.PARAMETERS[node].values()) <= names
    assert not set(renames.PARAMETERS[node]) & names


@pytest.mark.ros
@pytest.mark.parametrize(
    ("node", "old", "value"),
    [
        ("safety_node", "speed", 0.1),
        ("policy_node", "gated", False),
        ("recorder", "pictures", "raw"),
    ],
)
def test_an_old_parameter_answers_with_the_new_one(node, old, value):
    from tests.robot_bridge.ros_graph import refusal

    code, answer = refusal(f"robot_bridge.nodes.{MODULES[node]}", {old: value})
    assert code == 1
    assert f"parameter {old} is now {renames.PARAMETERS[node][old]}" in answer
