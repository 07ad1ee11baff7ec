"""Permissions: every topic and service of docs/topics.md and nothing else, and no start without."""

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from robot_bridge.launching import graph
from vla.contracts import registry

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "launch" / "sros2"
INCLUDE = "{http://www.w3.org/2001/XInclude}include"
BEYOND = {"/clock", "policy_node/transition_event", "sim_arm/episode"}
"""Topics of the simulation and of ROS 2 itself."""
OWN = {"recorder/start", "recorder/stop"}
"""Services of one node that no other depends on."""
LIFECYCLE = {
    "policy_node/get_state", "policy_node/get_available_states",
    "policy_node/get_available_transitions", "policy_node/get_transition_graph",
}  # fmt: skip
"""What ROS 2 adds to a node with a lifecycle, beside what the tables name."""


def profiles():
    """Return (path of the enclave, profile) of each, without what all share."""
    root = ElementTree.parse(FOLDER / "policy.xml").getroot()
    assert root.attrib == {"version": "0.2.0"}
    for enclave in root.findall("enclaves/enclave"):
        (profile,) = enclave.findall("profiles/profile")
        yield enclave.attrib["path"], profile


def named(kind, right):
    """Return (node, name) of all topics or services with a right, without a slash in front."""
    found = set()
    for _, profile in profiles():
        node = profile.attrib["node"]
        for group in profile.findall(f"{kind}s"):
            if right in group.attrib:
                assert group.attrib[right] == "ALLOW"
                names = (one.text.replace("~", node) for one in group.findall(kind))
                found |= {(node, name) for name in names}
    return found


def tables():
    """Return the topics and the services that docs/topics.md names, cameras by their names."""
    kinds = {"topic": set(), "service": set()}
    kind = None
    for line in (ROOT / "docs" / "topics.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        kind = cells[0] if cells[0] in kinds else kind if line.startswith("|") else None
        if kind:
            kinds[kind] |= set(re.findall(r"`([^`]+)`", cells[0]))
    cameras = {
        camera.name
        for robot in registry.names("vla.robots")
        for camera in registry.load("vla.robots", robot).SPEC.cameras
    }
    topics = {
        name.replace("NAME", camera) for name in kinds["topic"]
        for camera in (cameras if "NAME" in name else {""})
    }  # fmt: skip
    return topics, kinds["service"]


def test_the_policy_names_every_topic_of_the_contract_and_no_other():
    topics, _ = tables()
    assert len(topics) > 12
    said = {name for _, name in named("topic", "publish")}
    heard = {name for _, name in named("topic", "subscribe")}
    assert said - BEYOND == topics - BEYOND
    assert heard - BEYOND == topics - BEYOND


def test_the_policy_names_every_service_of_the_contract_and_no_other():
    _, services = tables()
    assert len(services) >= 5
    assert {name for _, name in named("service", "reply")} - LIFECYCLE - OWN == services - OWN
    assert {name for _, name in named("service", "request")} - OWN == services - OWN


def test_the_policy_node_has_the_action_and_a_person_may_call_it():
    text = (ROOT / "docs" / "topics.md").read_text()
    action = "policy_node/execute_instruction"
    assert f"`{action}`" in text
    assert named("action", "execute") == {("policy_node", action)}
    assert named("action", "call") == {("operator", action)}


@pytest.mark.parametrize(
    ("topic", "publishers"),
    [
        ("joint_trajectory_controller/joint_trajectory", {"safety_node"}),
        ("forward_command_controller/commands", {"safety_node"}),
        ("action_chunk", {"policy_node"}),
        ("teleop", {"operator", "sim_arm", "twist_teleop"}),
        ("deadman", {"operator"}),
        ("speed_scaling", {"monitor"}),
        ("intervention_request", {"monitor"}),
        ("instruction", {"operator", "policy_node"}),
        ("joint_states", {"arm", "sim_arm"}),
        ("safety_node/status", {"safety_node"}),
        ("/clock", {"sim_arm"}),
    ],
)
def test_only_those_who_have_to_may_say_it(topic, publishers):
    assert {node for node, name in named("topic", "publish") if name == topic} == publishers


def test_only_a_person_arms_and_stops_and_others_may_disarm_at_most():
    asks = {pair for pair in named("service", "request") if pair[1].startswith("safety_node/")}
    assert {pair for pair in asks if pair[0] != "operator"} == {
        ("policy_node", "safety_node/disable"), ("twist_teleop", "safety_node/disable"),
    }  # fmt: skip
    assert len(asks) == 6


def test_every_node_has_its_enclave_and_what_all_share(tmp_path):
    paths = dict(profiles())
    uses = (
        graph.arm(graph.Arm(policy=str(tmp_path), reward_model=str(tmp_path), twist=True)),
        graph.sim_arm(graph.SimArm()),
        graph.record(graph.Record(out=str(tmp_path))),
    )
    assert {node.path for nodes in uses for node in nodes} < set(paths)
    for path, profile in paths.items():
        assert path == f"/{profile.attrib['node']}"
        assert profile.attrib["ns"] == "/"
        (shared,) = profile.findall(INCLUDE)
        assert shared.attrib["href"] == "common.xml"
    common = ElementTree.parse(FOLDER / "common.xml").getroot()
    names = {one.text for group in common for one in group}
    # Nobody sets another's parameters.
    assert not any("request" in group.attrib for group in common)
    assert names >= {"/rosout", "/clock", "/parameter_events", "~/set_parameters"}


@pytest.mark.ros
def test_enforced_security_without_keys_is_no_start(tmp_path):
    environment = {
        **os.environ, "ROS_SECURITY_ENABLE": "true", "ROS_SECURITY_STRATEGY": "Enforce",
        "ROS_SECURITY_KEYSTORE": str(tmp_path),
    }  # fmt: skip
    node = [
        "robot_bridge.launching.child",
        str(os.getpid()),
        "tests.robot_bridge.stand_in_lifecycle",
    ]
    done = subprocess.run(
        [sys.executable, "-m", *node, "--ros-args", "--enclave", "/policy_node"],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    assert done.returncode != 0
    assert "SECURITY ERROR" in done.stderr
    assert done.stdout == ""
