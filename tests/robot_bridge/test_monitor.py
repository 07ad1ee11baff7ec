"""The real monitor in its own process, an exported reward model in it, over real DDS."""

import time
from array import array

import numpy as np
import pytest

pytest.importorskip("rclpy")

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import Float64, Header

from robot_bridge.launching import package_files
from robot_bridge.nodes import common
from tests.deploy.conftest import reward_model_folders  # noqa: F401
from tests.robot_bridge.ros_graph import Ears, domain, node_process, refusal
from vla.robots.so101 import SPEC

pytestmark = pytest.mark.ros
MODULE = "robot_bridge.nodes.monitor"
PX = 32


@pytest.fixture(autouse=True)
def own_domain(monkeypatch):
    """Hear the nodes of this test alone."""
    monkeypatch.setenv("ROS_DOMAIN_ID", str(domain()))


class Stage:
    """What a monitor sees: cameras that show the same, joints that rest, a safety node's word."""

    def __init__(self, ears):
        self.ears, self.now = ears, ears.node.get_clock().now
        rng = np.random.default_rng(0)
        self.pictures = {
            name: rng.integers(0, 255, (PX, PX, 3), np.uint8) for name in ("front", "wrist")
        }
        make = ears.node.create_publisher
        self.views = {
            name: make(Image, f"cameras/{name}/image_raw", common.DRIVERS) for name in self.pictures
        }
        self.joints = make(JointState, "joint_states", common.DRIVERS)
        self.safety = make(DiagnosticArray, "safety_node/status", common.LATCHED)
        self.task = make(Header, "instruction", common.LATCHED)
        self.timer = ears.node.create_timer(0.05, self.show)
        self.dark = False

    def show(self):
        """Show everything once."""
        stamp = self.now().to_msg()
        joints = JointState(name=list(SPEC.names), position=[float(p) for p in SPEC.home])
        joints.header.stamp = stamp
        self.joints.publish(joints)
        for name, picture in self.pictures.items():
            message = Image(height=PX, width=PX, step=3 * PX, encoding="rgb8")
            message.data, message.header.stamp = array("B", picture.tobytes()), stamp
            if not self.dark:
                self.views[name].publish(message)

    def follow(self, state="tracking"):
        """Say what the safety node would."""
        one = DiagnosticStatus(values=[KeyValue(key="state", value=state)])
        self.safety.publish(DiagnosticArray(status=[one]))

    def say(self, task):
        """Say what is to be done."""
        self.task.publish(Header(frame_id=task))


def told(message):
    return {one.key: one.value for one in message.status[0].values}


@pytest.fixture
def stage():
    with Ears() as ears:
        ears.hear(DiagnosticArray, "monitor/status", common.LATCHED)
        ears.hear(Float64, "speed_scaling", common.COMMANDS)
        ears.hear(Header, "intervention_request", common.LATCHED)
        yield Stage(ears)


def test_without_progress_the_arm_slows_then_an_intervention_is_requested_until_a_new_task(
    reward_model_folders, stage  # noqa: F811
):  # fmt: skip
    ears = stage.ears
    params = {
        "reward_model": str(reward_model_folders[1]), "hz": 20.0, "stall_s": 0.5, "help_s": 1.0,
        "confident": 0.0, "gain": 0.5, "done": 1.0, "slow": 0.25, "score_timeout_s": 0.5,
        "drop": 1.0,
    }  # fmt: skip
    with node_process(MODULE, params):
        ears.wait("monitor/status", where=lambda m: told(m)["state"] == "waits")
        stage.say("press the red button")
        time.sleep(0.7)  # an arm that follows nothing is not judged, and that is no stall
        ears.wait("monitor/status", where=lambda m: told(m)["state"] == "nominal")
        assert {m.data for m in ears.messages("speed_scaling")} == {1.0}
        stage.follow()
        ears.wait("speed_scaling", where=lambda m: m.data == 0.25)
        (called,) = ears.wait("intervention_request")
        assert called.frame_id.startswith("no progress beyond 0.")
        # The words are those of a median of what the reward model says, at rest from the first
        # moment on.
        (now,) = ears.wait(
            "monitor/status", where=lambda m: told(m)["state"] == "intervention_requested"
        )
        assert told(now)["why"] == called.frame_id
        assert float(told(now)["step p99 ms"]) > 0
        assert 1.0 >= float(told(now)["value"]) >= 0.0
        ears.forget("speed_scaling")
        ears.forget("intervention_request")
        stage.say("press the blue button")
        (freed,) = ears.wait("intervention_request")
        assert freed.frame_id == ""
        ears.wait("speed_scaling", where=lambda m: m.data == 1.0)
        (anew,) = ears.wait("monitor/status", where=lambda m: told(m)["episode"] == "1")
        assert (told(anew)["state"], told(anew)["instruction"]) == (
            "nominal",
            "press the blue button",
        )
        # Who cannot see says nothing: that alone stops an arm that is monitored.
        stage.dark = True
        ears.wait("monitor/status", where=lambda m: told(m)["state"] == "no_observation")
        ears.forget("speed_scaling")
        time.sleep(0.3)
        assert ears.messages("speed_scaling") == []


def test_the_safety_node_hears_how_fast_and_stands_when_its_monitor_is_silent():
    limits = str(package_files.params() / "so101_limits.yaml")
    with (
        Ears() as ears,
        node_process(
            "robot_bridge.nodes.safety",
            {"limits": limits, "monitored": True, "speed_scaling_timeout_s": 0.5},
        ),
    ):
        ears.hear(DiagnosticArray, "safety_node/status", common.LATCHED)
        pace = ears.publisher(Float64, "speed_scaling", common.COMMANDS)
        ears.wait("safety_node/status", where=lambda m: told(m)["speed_scaling"] == "0")
        pace.publish(Float64(data=0.5))
        ears.wait("safety_node/status", where=lambda m: told(m)["speed_scaling"] == "0.5")
        ears.forget("safety_node/status")
        (silent,) = ears.wait("safety_node/status", where=lambda m: told(m)["speed_scaling"] == "0")
        assert told(silent)["why"] == "the monitor was silent for 0.5 s"


def test_a_monitor_without_its_reward_model_does_not_start(reward_model_folders, tmp_path):  # noqa: F811
    for params, said in (
        ({}, "error: reward model: not given; name a folder of `vla export` of a reward model"),
        ({"reward_model": str(tmp_path)}, f"error: {tmp_path}"),
        (
            {"reward_model": str(reward_model_folders[1]), "cameras": ["wrist"]},
            "error: cameras: got wrist, the reward model also needs front",
        ),
    ):
        code, words = refusal(MODULE, params)
        assert (code, said in words) == (1, True), words
