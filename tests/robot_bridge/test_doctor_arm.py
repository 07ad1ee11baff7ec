"""`vla doctor arm` says what is wrong with an arm before a policy moves it."""

import hashlib
import json
import os
import time

import numpy as np
import pytest
import yaml

pytest.importorskip("rclpy")

from benchmarks.robot_bridge.ros_latency import running
from robot_bridge import doctor_arm
from robot_bridge.launching import graph
from robot_bridge.motion.limits import Limits
from robot_bridge.sensing import arm_checks
from robot_bridge.sensing.arm_checks import Arrival
from tests.robot_bridge.test_driver_nodes import DRIVER
from tests.robot_bridge.test_remote_arm import PATIENT

NAMES, LOW, HIGH = ("hip", "knee"), np.array([-1.0, 0.0]), np.array([1.0, 2.0])
NAMESPACE = f"doctor_{os.getpid()}"


def arrivals(hz=100.0, count=50, age_s=0.001, names=NAMES, positions=(0.5, 1.0), stamped=True):
    times = 1000.0 + np.arange(count) / hz
    return [Arrival(t, t - age_s if stamped else 0.0, (names, positions)) for t in times]


def verdicts(findings):
    return {one.name: (one.verdict, one.detail) for one in findings}


@pytest.mark.parametrize(
    ("changes", "name", "said"),
    [
        ({"count": 0}, "joint_states", "no message"),
        ({"names": ("hip", "ankle")}, "names of joints", "knee is missing; others are ankle"),
        ({"hz": 10.0}, "joint_states: rate", "10.0 Hz, expected at least 20"),
        ({"age_s": 0.5}, "joint_states: stamps", "up to 0.50 s old"),
        ({"age_s": -0.5}, "joint_states: stamps", "500 ms in the future"),
        ({"positions": (30.0, 1.0)}, "positions", "hip is at 30.000, not in -1 to 1"),
        ({"positions": (np.nan, 1.0)}, "positions", "hip is at nan, not in -1 to 1"),
    ],
)
def test_joint_states_that_are_wrong_are_named(changes, name, said):
    found = verdicts(arm_checks.joint_states(arrivals(**changes), NAMES, LOW, HIGH))
    assert found[name] == ("wrong", said)
    assert sum(verdict == "wrong" for verdict, _ in found.values()) == 1


def test_joint_states_that_are_right_have_nothing_wrong():
    found = verdicts(arm_checks.joint_states(arrivals(), NAMES, LOW, HIGH))
    assert {verdict for verdict, _ in found.values()} == {"works"}
    found = verdicts(arm_checks.joint_states(arrivals(stamped=False), NAMES, LOW, HIGH))
    assert found["joint_states: stamps"][0] == "not checked"


LIMITS = Limits(
    names=NAMES, low=LOW, high=HIGH, velocity=np.full(2, 2.0), acceleration=np.full(2, 9.0),
    jerk=np.full(2, 99.0), stop_acceleration=np.full(2, 9.0), stop_jerk=np.full(2, 99.0),
)  # fmt: skip


@pytest.mark.parametrize(
    ("hip", "verdict", "said"),
    [
        ('lower="-1" upper="1" velocity="2"', "works", "names and limits agree"),
        ('lower="-3" upper="3" velocity="9"', "works", "names and limits agree"),
        ('lower="-0.8" upper="1" velocity="2"', "wrong", "low of hip is -1 here, -0.8 there"),
        ('lower="-1" upper="0.5" velocity="2"', "wrong", "high of hip is 1 here, 0.5 there"),
        ('lower="-1" upper="1" velocity="1.5"', "wrong", "velocity of hip is 2 here, 1.5 there"),
    ],
)
def test_limits_beyond_those_of_robot_description_are_named(hip, verdict, said):
    text = f'<robot><joint name="hip" type="revolute"><limit {hip}/></joint>%s</robot>'
    knee = '<joint name="knee" type="continuous"/>'
    found = verdicts(arm_checks.description(text % knee, NAMES, LIMITS))
    assert found == {"robot_description": (verdict, said)}
    found = verdicts(arm_checks.description(text % "", NAMES, LIMITS))
    assert "knee is not in it" in found["robot_description"][1]


def test_a_robot_description_that_is_none_is_said():
    assert arm_checks.description("", NAMES, LIMITS)[0].verdict == "not checked"
    found = arm_checks.description("<robot", NAMES, LIMITS)[0]
    assert (found.verdict, "no URDF" in found.detail) == ("wrong", True)


def test_a_controller_with_other_parameters_or_publishers_is_named():
    found = verdicts(arm_checks.controller("jtc", 0, ["safety_node", "move_group"]))
    assert found["jtc: listens"] == ("wrong", "nobody listens")
    assert found["jtc: one publisher"] == ("wrong", "move_group")
    values = {"allow_trajectory_replacement": True, "interpolation_method": None}
    (one,) = arm_checks.controller_parameters("jtc", values)
    assert one.detail == "allow_trajectory_replacement is True, expected False"


@pytest.mark.parametrize(
    ("after", "said"),
    [
        ([0.05, 1.0], ""),
        ([-0.05, 1.0], "moved by -0.050 instead of +0.050"),
        ([0.001, 1.0], "moved by +0.001 instead of +0.050"),
        ([0.05, 1.04], "joint 1 moved as well"),
    ],
)
def test_a_joint_that_moves_otherwise_is_named(after, said):
    one = arm_checks.motion("hip", 0.05, np.array([0.0, 1.0]), np.array(after), 0, np.ones(2))
    assert (one.verdict, one.detail if said else "") == ("wrong" if said else "works", said)


@pytest.mark.ros
def test_an_arm_is_checked_and_moved_and_the_report_has_its_digest(tmp_path, capsys, monkeypatch):
    file = tmp_path / "driver.yaml"
    file.write_text(yaml.safe_dump(DRIVER))
    use = graph.SimArm(
        task="reach", use_sim_time=False, namespace=NAMESPACE, driver=str(file),
        max_velocity_scaling_factor=0.1,
    )  # fmt: skip
    words = [
        "--namespace", NAMESPACE, "--driver", str(file), "--operator", "me", "--listen-s", "3",
        "--out", str(tmp_path / "report.json"),
    ]  # fmt: skip
    told = {"safety_node": PATIENT, "sim_arm": {"camera_hz": 10}}
    with running(graph.sim_arm(use), told, tmp_path / "nodes.log"):
        for _ in range(10):  # until the nodes are up
            if doctor_arm.main(words) == 0:
                break
        said = capsys.readouterr().out
        with pytest.raises(ValueError, match="Nobody can answer here; run it in a terminal"):
            assert doctor_arm.main([*words, "--motion"]) == 0, capsys.readouterr().out
        capsys.readouterr()
        monkeypatch.setattr(doctor_arm, "_ask", lambda _: time.sleep(0.5) or True)  # who looks
        code = doctor_arm.main([*words, "--motion"])
        moved = capsys.readouterr().out
        assert code == 0, moved
    assert "ok  names of joints: all 6" in said
    assert "ok  driver states: all 2" in said
    assert "-  robot_description: nobody publishes one" in said
    assert "-  scaled_controller/joint_trajectory: parameters" in said
    assert moved.count("ok  motion of ") == 6
    assert "ok  e-stop in motion: latched" in moved
    report = json.loads((tmp_path / "report.json").read_text())
    digest = report.pop("sha256")
    assert digest == hashlib.sha256(json.dumps(report, sort_keys=True).encode()).hexdigest()
    assert report["operator"] == "me"
    assert len(report["findings"]) > 15
