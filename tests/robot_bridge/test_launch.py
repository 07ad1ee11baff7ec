"""The launch files start what the description says, and nothing else.

`launch` and `launch_ros` come with ROS 2 and are not on PyPI: here they are stand-ins that take
what the recorded versions take. Where the real ones are installed, the last test asks them.
"""

import importlib
import py_compile
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from robot_bridge import launching
from robot_bridge.launching import graph, launch_arguments, up
from tests.robot_bridge import fake_launch

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "launch").glob("*.launch.py"))
USES = [file.name.removesuffix(".launch.py") for file in FILES]


def forget():
    """Let the next import of the module find the `launch` that is there then."""
    sys.modules.pop("robot_bridge.launching.descriptions", None)
    vars(launching).pop("descriptions", None)


@pytest.fixture
def launched(monkeypatch):
    """Return the description that a launch file makes, by the stand-ins."""
    pytest.importorskip("lifecycle_msgs", reason="comes with ROS 2's messages")
    for name, module in fake_launch.modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    forget()
    for name in (up.RANGE, *up.PROFILES, "ROS_DISTRO"):
        monkeypatch.delenv(name, raising=False)

    def run(use):
        found = runpy.run_path(str(ROOT / "launch" / f"{use}.launch.py"))
        return found["generate_launch_description"]().given["initial_entities"]

    yield run
    forget()


def entities(launched, use, **configurations):
    """Return what a launch file starts with some arguments."""
    opaque = launched(use)[-1].given
    context = SimpleNamespace(launch_configurations=configurations, is_shutdown=False)
    return opaque["function"](context, *opaque["args"])


def kind(entity):
    return type(entity).__name__


def settings(use, tmp_path):
    """Return the least that each use has to be told."""
    policy = {"policy": str(tmp_path)}
    return {
        "arm": policy, "sim_arm": {**policy, "task": "push"}, "record": {"out": str(tmp_path)},
        "dual_arm": {"left_policy": str(tmp_path), "right_policy": str(tmp_path)},
    }[use]  # fmt: skip


def test_there_is_a_launch_file_for_every_use():
    assert sorted(graph.CONFIGS) == USES


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_launch_file_compiles(file, tmp_path):
    py_compile.compile(str(file), cfile=str(tmp_path / "compiled"), doraise=True)


@pytest.mark.parametrize("use", USES)
def test_a_launch_file_declares_every_setting_with_its_description(launched, use):
    *variables, _ = [e for e in launched(use) if kind(e) != "DeclareLaunchArgument"]
    assert {one.given["name"]: one.given["value"] for one in variables} == up.discovery({})
    declared = [e for e in launched(use) if kind(e) == "DeclareLaunchArgument"]
    expected = list(launch_arguments.of(graph.CONFIGS[use][0]()))
    assert [one.given["name"] for one in declared] == [word.name for word in expected]
    assert [one.given["description"] for one in declared] == [w.description for w in expected]
    assert [one.given["default_value"] for one in declared] == [word.default for word in expected]


@pytest.mark.parametrize("use", USES)
def test_a_launch_file_starts_the_nodes_of_the_description(launched, use, tmp_path):
    told = settings(use, tmp_path)
    start, build = graph.CONFIGS[use]
    expected = build(launch_arguments.read(start(), told))
    found = [e for e in entities(launched, use, **told) if kind(e) in ("Node", "LifecycleNode")]
    assert len(found) == len(expected)
    for action, node in zip(found, expected, strict=True):
        given = action.given
        assert given["package"] == "mneme_vla"
        assert (given["executable"], given["name"]) == (node.executable, node.name)
        assert given["namespace"] == node.namespace
        assert given["ros_arguments"] == graph.ros_arguments(node)
        assert given["respawn"] is False
        assert kind(action) == ("LifecycleNode" if node.lifecycle else "Node")
        assert ("on_exit" in given) == node.vital


def test_a_policy_is_configured_and_once_it_is_activated(launched, tmp_path):
    _, policy, handler, configure = entities(launched, "arm", policy=str(tmp_path))
    assert kind(policy) == "LifecycleNode"
    change = configure.given["event"].given
    assert change["transition_id"] == 1  # lifecycle_msgs/Transition: TRANSITION_CONFIGURE
    assert change["lifecycle_node_matcher"].given["target_action"] is policy
    waits = handler.given["event_handler"].given
    assert waits["target_lifecycle_node"] is policy
    assert waits["handle_once"]  # a person who configures it again does not activate it
    # Not after every "inactive": one that is deactivated on purpose stays so.
    assert (waits["start_state"], waits["goal_state"]) == ("configuring", "inactive")
    (activate,) = waits["entities"]
    assert activate.given["event"].given["transition_id"] == 3  # TRANSITION_ACTIVATE


def test_the_end_of_the_safety_node_ends_everything_once(launched, tmp_path):
    safety, *_ = entities(launched, "arm", policy=str(tmp_path))
    ends = safety.given["on_exit"]
    (shutdown,) = ends(None, SimpleNamespace(is_shutdown=False))
    assert kind(shutdown) == "Shutdown"
    assert ends(None, SimpleNamespace(is_shutdown=True)) == []


def test_a_wrong_argument_is_a_sentence(launched):
    with pytest.raises(ValueError, match="policy: got nothing, expected a folder"):
        entities(launched, "arm")


def test_a_user_who_chose_how_far_nodes_are_heard_keeps_it(launched, monkeypatch):
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "SUBNET")
    first, second, *_ = launched("arm")
    assert first.given["value"] == "SUBNET"
    assert kind(second) == "DeclareLaunchArgument"


@pytest.mark.parametrize("use", USES)
def test_the_real_launch_takes_it(use, tmp_path):
    launch_ros = pytest.importorskip("launch_ros", reason="comes with ROS 2, not with PyPI")
    assert launch_ros
    launch = importlib.import_module("launch")
    found = runpy.run_path(str(ROOT / "launch" / f"{use}.launch.py"))
    described = found["generate_launch_description"]()
    context = launch.LaunchContext()
    context.launch_configurations.update(settings(use, tmp_path))
    started = described.entities[-1].execute(context)
    assert {type(e).__name__ for e in started} >= {"Node"}
