"""The simulated arm as a process, heard over DDS as a real one would be."""

import json
import signal
import time

import cv2
import numpy as np
import pytest

pytest.importorskip("rclpy")

from builtin_interfaces.msg import Duration
from diagnostic_msgs.msg import DiagnosticArray
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CameraInfo, CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from robot_bridge.nodes.common import COMMANDS, LATCHED, seconds
from robot_bridge.sim_arm.actuator import FORWARD, TRAJECTORY
from sim import vec_env
from sim.core.scene import compile_scene
from sim.core.world import MujocoWorld
from sim.experts import behaviours
from sim.vec_env import load_robot, load_task
from tests.robot_bridge import ros_graph
from tests.robot_bridge.ros_graph import Ears, node_process, refusal

pytestmark = pytest.mark.ros

MODULE = "robot_bridge.nodes.sim_arm"
ROBOT = load_robot("so101")
NAMES = list(ROBOT.names)
HOME = np.array(ROBOT.home)
TRAJECTORIES = "joint_trajectory_controller/joint_trajectory"
FORWARDS = "forward_command_controller/commands"
FRONT, WRIST = (f"cameras/{name}/image_raw" for name in ("front", "wrist"))


@pytest.fixture(scope="module")
def arm():
    with Ears() as ears:
        for topic in (FRONT, WRIST):
            ears.hear(Image, topic)
        ears.hear(CompressedImage, f"{FRONT}/compressed")
        ears.hear(CameraInfo, "cameras/front/camera_info")
        ears.hear(JointState, "joint_states")
        ears.hear(String, "sim_arm/episode", LATCHED)
        ears.hear(DiagnosticArray, "/diagnostics", 10)
        with node_process(MODULE, {"task": "reach", "compressed": True}):
            ears.wait("joint_states")
            yield ears


def trajectory(positions, after_s=0.2, names=NAMES):
    nanosec = round(1e9 * after_s)
    point = JointTrajectoryPoint(
        positions=[float(x) for x in positions], time_from_start=Duration(nanosec=nanosec)
    )
    return JointTrajectory(joint_names=list(names), points=[point])


def began(ears, seed, episode):
    """Begin an episode, and return the service's answer."""
    assert ears.set("sim_arm", seed=seed, episode=episode) == ["", ""]
    answer = ears.call(Trigger, "sim_arm/reset")
    assert answer.success
    return json.loads(answer.message)


def first_since(ears, topic, since_s):
    """Return the first message with a stamp of a time or later."""
    return ears.wait(topic, where=lambda m: seconds(m.header.stamp) >= since_s)[0]


def pixels(message):
    return np.asarray(message.data, np.uint8).reshape(message.height, message.width, 3)


def told(message):
    """Return the key-values of sim_arm's line of diagnostics; none if it is another's."""
    return {
        pair.key: pair.value
        for one in message.status
        if one.name == "sim_arm"
        for pair in one.values
    }


def test_joint_states_have_names_values_and_their_rate(arm):
    arm.forget("joint_states")
    messages = arm.wait("joint_states", 100)
    assert all(message.name == NAMES for message in messages)
    assert all(len(message.position) == len(message.velocity) == 6 for message in messages)
    stamps_s = [seconds(message.header.stamp) for message in messages]
    assert np.median(np.diff(stamps_s)) == pytest.approx(0.01, rel=0.5)
    assert min(np.diff(stamps_s)) > 0


def test_a_commanded_joint_moves_to_its_target_and_the_others_stay(arm):
    began(arm, 0, 0)
    commands = arm.publisher(JointTrajectory, TRAJECTORIES, COMMANDS)
    target = HOME.copy()
    target[0] += 0.3
    # Joints by name: another order than the arm's.
    commands.publish(trajectory(target[::-1], names=NAMES[::-1]))
    (last,) = arm.wait(
        "joint_states",
        where=lambda m: abs(m.position[0] - target[0]) < 0.02 and np.abs(m.velocity).max() < 0.02,
    )
    np.testing.assert_allclose(last.position, target, atol=0.02)


def test_a_command_that_is_not_finite_or_has_other_joints_moves_nothing(arm):
    began(arm, 0, 0)
    commands = arm.publisher(JointTrajectory, TRAJECTORIES, COMMANDS)
    for message, name in (
        (trajectory([np.nan] * 6), "not_finite"),
        (trajectory(HOME + 0.3, names=["elbow", *NAMES[1:]]), "refused"),
    ):
        commands.publish(message)
        arm.wait("/diagnostics", where=lambda m, name=name: told(m).get(name) == "1")
    np.testing.assert_allclose(arm.messages("joint_states")[-1].position, HOME, atol=1e-3)


def test_a_reset_begins_the_asked_episode_with_the_same_words_and_the_same_first_picture(arm):
    env = vec_env.make("reach", 1)
    for seed, episode in ((3, 7), (4, 0)):
        expected = env.begin(np.array([0]), np.array([seed]), np.array([episode]))
        answer = began(arm, seed, episode)
        assert (answer["seed"], answer["episode"]) == (seed, episode)
        assert answer["instruction"] == expected.task[0]
        for view, topic in enumerate((FRONT, WRIST)):
            first = first_since(arm, topic, answer["began_s"])
            assert (first.encoding, first.header.frame_id) == ("rgb8", topic.split("/")[1])
            np.testing.assert_array_equal(pixels(first), expected.images[0, view])
        latest = json.loads(arm.messages("sim_arm/episode")[-1].data)
        assert (latest["seed"], latest["number"], latest["running"]) == (seed, episode, True)


def test_pictures_come_as_jpeg_and_with_the_camera_s_matrix_as_well(arm):
    jpeg = f"{FRONT}/compressed"
    arm.forget(FRONT)
    arm.wait(FRONT, 10)
    stamps = {seconds(m.header.stamp): m for m in arm.messages(FRONT)}
    same = arm.wait(jpeg, where=lambda m: seconds(m.header.stamp) in stamps)[0]
    decode = cv2.imdecode(np.asarray(same.data, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
    difference = decode.astype(int) - pixels(stamps[seconds(same.header.stamp)])
    assert np.abs(difference).mean() < 4
    info = arm.wait("cameras/front/camera_info")[0]
    # Half of the height over the tangent of half of the angle.
    camera = ROBOT.cameras[0]
    focal_px = 48 / np.tan(np.radians(camera.fovy_deg) / 2)
    np.testing.assert_allclose(
        np.reshape(info.k, (3, 3)), [[focal_px, 0, 47.5], [0, focal_px, 47.5], [0, 0, 1]]
    )


def test_what_an_expert_did_in_control_steps_succeeds_in_real_time(arm):
    world = MujocoWorld(compile_scene(load_task("reach"), ROBOT))
    world.reset(1, 2)
    actions = []
    for action in behaviours.act_stream(world, world.task, "expert", np.random.default_rng(0)):
        actions.append(action)
        if any(world.step(action)[1:]):
            break
    assert world.succeeded
    commands = arm.publisher(Float64MultiArray, FORWARDS, COMMANDS)
    began(arm, 1, 2)
    begin_s = time.monotonic()
    for i, action in enumerate(actions):
        time.sleep(max(0.0, begin_s + 0.1 * i - time.monotonic()))
        commands.publish(Float64MultiArray(data=np.asarray(action, np.float64).tolist()))

    def over(message):
        state = json.loads(message.data)
        return (state["seed"], state["number"], state["running"]) == (1, 2, False)

    last = json.loads(arm.wait("sim_arm/episode", where=over)[0].data)
    assert (last["success"], last["terminated"], last["truncated"]) == (True, True, False)
    assert last["progress"] == 1.0


def test_a_sensor_freezes_or_falls_silent_when_told_to(arm):
    began(arm, 0, 0)
    assert arm.set("sim_arm", frozen=["front"], silent=["joint_states"]) == ["", ""]
    assert "no sensor 'rear'" in arm.set("sim_arm", frozen=["rear"])[0]
    commands = arm.publisher(JointTrajectory, TRAJECTORIES, COMMANDS)
    time.sleep(0.1)
    for topic in ("joint_states", FRONT, WRIST):
        arm.forget(topic)
    commands.publish(trajectory(HOME + 0.3))
    time.sleep(0.6)
    assert arm.messages("joint_states") == []
    front, wrist = (arm.wait(topic, 15) for topic in (FRONT, WRIST))
    assert (pixels(front[0]) == pixels(front[-1])).all()
    assert seconds(front[-1].header.stamp) > seconds(front[0].header.stamp)
    assert (pixels(wrist[0]) != pixels(wrist[-1])).any()
    assert arm.set("sim_arm", frozen=[""], silent=[""]) == ["", ""]
    arm.wait("joint_states")


def test_sensors_are_late_and_lossy_as_asked_and_the_log_holds_what_was_sent(tmp_path):
    log = tmp_path / "inputs.npz"
    params = {
        "task": "reach", "joint_latency_s": 0.2, "camera_latency_s": [0.1, 0.0],
        "camera_drop": [0.0, 1.0], "command_drop": 1.0, "joints": NAMES[::-1],
        "log_commands": str(log),
    }  # fmt: skip
    to_ros_s = time.time() - time.monotonic()
    with Ears(ns="late") as ears:
        ears.hear(JointState, "joint_states")
        for topic in (FRONT, WRIST):
            ears.hear(Image, topic)
        with node_process(MODULE, params, ns="/late"):
            ears.wait("joint_states", 50)
            ears.wait(FRONT, 10)
            assert ears.messages(WRIST) == []
            for topic, least_s in (("joint_states", 0.2), (FRONT, 0.1)):
                ages_s = [t + to_ros_s - seconds(m.header.stamp) for t, m in ears.timed(topic)]
                # The two clocks may be adjusted by milliseconds between the readings.
                assert min(ages_s) > least_s - 5e-3
                assert np.median(ages_s) < least_s + 0.5
            forward = ears.publisher(Float64MultiArray, FORWARDS, COMMANDS)
            trajectories = ears.publisher(JointTrajectory, TRAJECTORIES, COMMANDS)
            begin_s = time.monotonic()
            forward.publish(Float64MultiArray(data=[*range(6)]))
            time.sleep(0.1)
            trajectories.publish(trajectory([np.nan] * 6, 0.25))
            time.sleep(0.3)
            last = ears.messages("joint_states")[-1]
            assert last.name == NAMES[::-1]
            np.testing.assert_allclose(last.position, HOME[::-1], atol=1e-3)  # all were lost
    with np.load(log, allow_pickle=False) as found:
        assert found["joints"].tolist() == NAMES
        assert found["source"].tolist() == [FORWARD, TRAJECTORY]
        np.testing.assert_array_equal(found["positions"][0], [5, 4, 3, 2, 1, 0])
        assert np.isnan(found["positions"][1]).all()
        np.testing.assert_allclose(found["from_start_s"], [0.0, 0.25])
        assert begin_s < found["received_s"][0] < found["received_s"][1] < begin_s + 20


def test_simulated_time_runs_at_its_rate_and_an_episode_ends_at_its_limit():
    params = {"task": "reach", "camera_hz": 0, "rate": 4.0, "publish_clock": True, "seed": 2}
    with Ears(ns="left") as ears:
        ears.hear(Clock, "/clock")
        ears.hear(JointState, "joint_states")
        ears.hear(String, "sim_arm/episode", LATCHED)
        with node_process(MODULE, params, ns="/left"):
            first = json.loads(ears.wait("sim_arm/episode")[0].data)
            assert (first["seed"], first["number"]) == (2, 0)
            began(ears, 2, 1)

            def over(message):
                state = json.loads(message.data)
                return state["number"] == 1 and not state["running"]

            ended = ears.wait("sim_arm/episode", where=over)
            last = json.loads(ended[0].data)
            assert (last["truncated"], last["terminated"], last["success"]) == (True, False, False)
            assert last["steps"] > 20
            # An arm obeys after the end as before it.
            commands = ears.publisher(Float64MultiArray, FORWARDS, COMMANDS)
            commands.publish(Float64MultiArray(data=(HOME + 0.2).tolist()))
            ears.wait("joint_states", where=lambda m: abs(m.position[0] - HOME[0] - 0.2) < 0.02)
            clock = [(t, seconds(m.clock)) for t, m in ears.timed("/clock")]
            (t0, s0), (t1, s1) = clock[10], clock[-1]
            assert 1.5 < (s1 - s0) / (t1 - t0) < 4.6  # a busy machine falls behind
            assert 1.0 <= clock[0][1] < 60
            assert seconds(ears.messages("joint_states")[-1].header.stamp) <= s1 + 0.1


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"task": "fly"}, "fly"),
        (
            {"physics_hz": 30, "joint_state_hz": 30},
            "physics_hz: got 30; a tick has to be a whole number",
        ),
        ({"task_config": '{"tolerance": 1}', "task": "reach"}, "unknown field 'tolerance'"),
        ({"joints": NAMES[:5]}, "joints: got"),
        ({"frozen": ["rear"]}, "frozen: no sensor 'rear'; known: joint_states, front, wrist"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(params, message):
    code, said = refusal(MODULE, params)
    assert code == 1
    assert message in said
    assert said.startswith("error: ")
    assert said.count("\n") == 1


def test_the_process_goes_on_ctrl_c_as_well():
    params = {"task": "reach", "camera_hz": 0}
    with Ears(ns="short") as ears, node_process(MODULE, params, ns="/short") as process:
        ears.hear(JointState, "joint_states")
        ears.wait("joint_states")
        assert ros_graph.stop(process, signal.SIGINT) == 0
