"""`vla ros launch`: processes start together, print with their names in front, end together."""

import ast
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from robot_bridge.launching import package_files, up

ROOT = Path(__file__).parents[2]
START = """
import json, signal, sys
from robot_bridge.launching import up
from robot_bridge.launching.graph import NodeSpec
signal.signal(signal.SIGINT, signal.default_int_handler)
up.PATIENCE_S = {number: 0.5 for number in up.PATIENCE_S}
sys.exit(up.run(tuple(NodeSpec(**node) for node in json.loads(sys.argv[1]))))
"""


def node(name, does, **settings):
    return {
        "executable": name, "module": "tests.robot_bridge.stand_in",
        "parameters": {"does": does}, **settings,
    }  # fmt: skip


class Started:
    """`up.run` in a process of its own, and what it has said."""

    def __init__(self, nodes):
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, json.dumps(nodes)], cwd=ROOT, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        self.lines = []

    def until(self, *words):
        """Read lines until each of the words was in one."""
        left = set(words)
        while left:
            line = self.process.stdout.readline()
            assert line, f"no {left} in {self.lines}"
            self.lines.append(line.rstrip())
            left = {word for word in left if word not in line}

    def end(self, number=None):
        """Send a signal if one is given, and return exit code and all that was said."""
        if number is not None:
            self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=30)
        return self.process.returncode, "\n".join([*self.lines, *rest.splitlines()])


@pytest.fixture
def start():
    running = []

    def begin(*nodes):
        running.append(Started(nodes))
        return running[-1]

    yield begin
    for one in running:
        if one.process.poll() is None:
            one.process.kill()
        one.process.stdout.close()
        one.process.wait()


def children(process):
    found = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return [int(pid) for pid in found]


def gone(pids, patience_s=5.0):
    until = time.monotonic() + patience_s
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_person_ends_everything_and_that_is_no_failure(start, number):
    one = start(node("safety_node", "runs", vital=True), node("policy_node", "runs"))
    one.until("/safety_node | ready", "/policy_node | ready")
    pids = children(one.process)
    assert len(pids) == 2
    code, said = one.end(number)
    assert code == 0, said
    assert "/safety_node | ended by Ctrl-C" in said
    assert "/policy_node | ended by Ctrl-C" in said
    assert gone(pids)


def test_a_node_is_told_its_name_and_namespace_as_ros_arguments(start):
    one = start(node("policy_node", "runs", namespace="left"))
    one.until("ready")
    assert any(
        "/left/policy_node | runs" not in line
        and "as tests.robot_bridge.stand_in with --ros-args -r __node:=policy_node" in line
        for line in one.lines
    )


def test_without_its_safety_node_everything_ends_with_an_error(start):
    one = start(node("safety_node", "dies", vital=True), node("policy_node", "runs"))
    code, said = one.end()
    assert code == 1
    assert "vla ros launch | ended because /safety_node ended with exit code 3" in said


def test_without_its_policy_the_others_go_on(start):
    one = start(node("safety_node", "runs", vital=True), node("policy_node", "dies"))
    one.until("/policy_node ended with exit code 3; the others continue", "/safety_node | ready")
    assert one.process.poll() is None
    code, _ = one.end(signal.SIGINT)
    assert code == 0


def test_a_node_that_does_not_listen_is_killed_and_named(start):
    one = start(node("safety_node", "runs", vital=True), node("policy_node", "deaf"))
    one.until("/safety_node | ready", "/policy_node | ready")
    pids = children(one.process)
    code, said = one.end(signal.SIGINT)
    assert code == 1
    assert "vla ros launch | had to be killed: /policy_node" in said
    assert gone(pids)


def test_the_safety_node_ends_last(start):
    one = start(node("safety_node", "runs", vital=True), node("policy_node", "slow"))
    one.until("/safety_node | ready", "/policy_node | ready")
    _, said = one.end(signal.SIGINT)
    ends = [line.split()[0] for line in said.splitlines() if "ended by Ctrl-C" in line]
    assert ends == ["/policy_node", "/safety_node"]


def test_nodes_end_even_when_they_are_left_without_a_word(start):
    one = start(node("safety_node", "runs", vital=True), node("policy_node", "runs"))
    one.until("/safety_node | ready", "/policy_node | ready")
    pids = children(one.process)
    one.process.kill()
    assert gone(pids)


PROFILE = package_files.params() / "fastdds_loopback.xml"
LOOPBACK = {
    "ROS_AUTOMATIC_DISCOVERY_RANGE": "SYSTEM_DEFAULT",
    "FASTDDS_DEFAULT_PROFILES_FILE": str(PROFILE),
}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, LOOPBACK),
        ({"RMW_IMPLEMENTATION": "rmw_fastrtps_cpp"}, LOOPBACK),
        ({"ROS_DISTRO": "kilted"}, LOOPBACK),
        # Its Fast DDS 2 does not read the variable, and would be heard everywhere.
        ({"ROS_DISTRO": "jazzy"}, {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"}),
        (
            {"RMW_IMPLEMENTATION": "rmw_cyclonedds_cpp"},
            {"ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST"},
        ),
        (
            {"FASTDDS_DEFAULT_PROFILES_FILE": "mine.xml"},
            {
                "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
                "FASTDDS_DEFAULT_PROFILES_FILE": "mine.xml",
            },
        ),
        (
            {"ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET"},
            {"ROS_AUTOMATIC_DISCOVERY_RANGE": "SUBNET"},
        ),
        ({"ROS_DISTRO": "humble"}, {"ROS_LOCALHOST_ONLY": "1"}),
        ({"ROS_DISTRO": "humble", "ROS_LOCALHOST_ONLY": "0"}, {"ROS_LOCALHOST_ONLY": "0"}),
    ],
)
def test_nodes_are_heard_on_this_machine_alone_unless_a_user_says_otherwise(environment, expected):
    assert up.discovery(environment) == expected


@pytest.mark.ros
def test_the_profile_keeps_nodes_to_this_machine_and_out_of_shared_memory():
    """Shared memory hangs every later node once a process was killed while it made its port."""
    code = (
        "import os, rclpy; rclpy.init(); node = rclpy.create_node('alone');"
        "print([line.split()[-1] for line in open('/proc/self/maps') if '/shm/fastdds' in line]);"
        "from pathlib import Path; lines = Path('/proc/self/net/udp').read_text().splitlines()[1:];"
        "own = {os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd')"
        " if os.path.exists(f'/proc/self/fd/{n}')};"
        "rows = [one.split() for one in lines];"
        "print({row[1].split(':')[0] for row in rows if f'socket:[{row[9]}]' in own});"
        "os._exit(0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, **LOOPBACK},
    )  # fmt: skip
    segments, addresses = map(ast.literal_eval, done.stdout.splitlines())
    assert segments == []
    # 127.0.0.1, and the group of discovery (239.255.0.1), which it joins there alone.
    assert addresses == {"0100007F", "0100FFEF"}


def test_a_machine_without_ros_is_told_so(monkeypatch, tmp_path):
    find = importlib.util.find_spec
    without = lambda name, *rest: None if name == "rclpy" else find(name, *rest)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", without)
    with pytest.raises(ModuleNotFoundError) as error:
        up.main(["arm", "--policy", str(tmp_path)])
    assert error.value.name == "rclpy"


# --- with ROS ------------------------------------------------------------------------------------

LIFECYCLE = "tests.robot_bridge.stand_in_lifecycle"


@pytest.mark.ros
def test_a_node_with_a_lifecycle_is_configured_and_activated_with_its_parameters(start, tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text(
        "/**/policy_node:\n  ros__parameters:\n"
        "    robot: panda\n    max_velocity_scaling_factor: 0.25\n"
        "/**/other:\n  ros__parameters:\n    robot: other\n"
    )
    words = {"robot": "so101", "instruction": 'say "no"', "cameras": ["front", "1.0"]}
    one = start(
        node("safety_node", "runs", vital=True),
        {
            "executable": "policy_node", "module": LIFECYCLE, "lifecycle": True,
            "namespace": "left", "parameters": words, "files": [str(file)],
        },
    )  # fmt: skip
    one.until("activating", "policy_node: activate done")
    said = " ".join(one.lines)
    # The file is read first, so what a use says stands; in any namespace it is found.
    expected = "{'robot': 'so101', 'instruction': 'say \"no\"'} 0.25 ['front', '1.0']"
    assert f"/left/policy_node {expected}" in said
    # What a node says comes by its own pipe, so only lines of one speaker have an order.
    assert said.index("configuring") < said.index("activating")
    assert said.index("configure done") < said.index("activate done")
    pids = children(one.process)
    code, said = one.end(signal.SIGINT)
    assert code == 0, said
    assert gone(pids)


@pytest.mark.ros
def test_a_node_that_refuses_to_be_configured_ends_everything_at_the_start(start):
    one = start(
        node("safety_node", "runs", vital=True),
        {
            "executable": "policy_node", "module": LIFECYCLE, "lifecycle": True,
            "parameters": {"refuses": True},
        },
    )  # fmt: skip
    code, said = one.end()
    assert code == 1
    assert "error: policy_node did not configure; see its own lines" in said
    assert "ended because /policy_node could not be brought up" in said
