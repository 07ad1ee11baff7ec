"""The real recorder in its own process, heard over real DDS: recorded, stopped, killed."""

import os
import time

import numpy as np
import pytest

pytest.importorskip("rclpy")

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import JointState
from std_msgs.msg import Header
from std_srvs.srv import Trigger

from benchmarks.robot_bridge import feed
from benchmarks.robot_bridge.recorder_study import read_through, started, study
from robot_bridge.nodes.common import LATCHED
from robot_bridge.recording.convert_bag import ConvertConfig, convert_bags
from robot_bridge.recording.mcap_reader import open_bag
from robot_bridge.recording.recorder import read_index
from vla.data.reader import read_columns

pytestmark = [pytest.mark.ros, pytest.mark.filterwarnings("ignore::UserWarning")]
WAIT_S = 30.0


@pytest.fixture(autouse=True)
def domain(monkeypatch):
    """Give each worker a domain of its own, so that tests side by side do not hear each other."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    monkeypatch.setenv("ROS_DOMAIN_ID", str(150 + int(worker) % 80))


@pytest.fixture
def node(domain):
    """A node of the test, with what spins it."""
    context = Context()
    rclpy.init(context=context, domain_id=int(os.environ["ROS_DOMAIN_ID"]))
    made = rclpy.create_node("test", context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(made)
    made.executor_ = executor
    yield made
    executor.shutdown()
    made.destroy_node()
    context.try_shutdown()


def until(what, spin=lambda: time.sleep(0.05)):
    end_s = time.monotonic() + WAIT_S
    while not (found := what()):
        assert time.monotonic() < end_s, "waited in vain"
        spin()
    return found


def call(node, name):
    client = node.create_client(Trigger, name)
    assert client.wait_for_service(WAIT_S)
    future = client.call_async(Trigger.Request())
    node.executor_.spin_until_future_complete(future, timeout_sec=WAIT_S)
    return future.result()


def test_every_task_is_an_episode_that_becomes_a_data_set(tmp_path):
    folder = tmp_path / "bags"
    with (
        started("benchmarks.robot_bridge.recorder_feed_node", "-p", "task_every_s:=1.0"),
        started("robot_bridge.nodes.recorder", "-p", f"folder:={folder}") as recorder,
    ):
        until(lambda: folder.is_dir() and len(read_index(folder)) >= 2)
        recorder.terminate()
        assert recorder.wait(WAIT_S) == 0
    entries = read_index(folder)
    assert not list(folder.glob("*.part"))
    assert not any(entry.cut for entry in entries)  # SIGTERM closed the running one
    for entry in entries:
        number = int(entry.task.removeprefix("do "))
        if entry is not entries[-1]:  # stopped, perhaps, before the status that follows its task
            assert entry.sources[-1][1] == feed.source(number)
        missing, _ = read_through(folder / entry.file)
        assert missing == 0
    info, told = convert_bags(ConvertConfig(bags=(folder,), out=tmp_path / "set"))
    columns = read_columns(info)
    # The last may have been stopped before anything came.
    assert info.tasks in (tuple(e.task for e in entries), tuple(e.task for e in entries[:-1]))
    seen = [feed.count(value) for value in columns.state[:, 0].tolist()]
    acted = [feed.count(value) for value in columns.action[:, 0].tolist()]
    ahead = np.array(acted) - np.array(seen)
    # 50 messages a second and 10 frames: the newest command before the next frame is 4 or 5 later,
    # but for the last frame of an episode, which its end may come before.
    # The last episode was stopped on a machine that may have been behind with its messages.
    whole = info.offsets[-2] if len(info.offsets) > 2 else info.offsets[-1]
    inner_rows = np.setdiff1d(np.arange(whole), info.offsets[1:] - 1)
    assert ((ahead[inner_rows] >= 3) & (ahead[inner_rows] <= 6)).all(), ahead
    assert ((ahead >= 0) & (ahead <= 6)).all(), told
    led = columns.scalars["intervention"]
    # The status of a task comes just after it, so an episode's first frame may be before it.
    for i, name in enumerate(info.tasks):
        expected = feed.source(int(name.removeprefix("do "))) == "teleop"
        inner = led[info.offsets[i] + 1 : info.offsets[i + 1]]
        assert (inner == expected).all()


def test_an_empty_instruction_ends_the_episode_and_begins_none(tmp_path, node):
    said = []
    node.create_subscription(
        DiagnosticArray, "/diagnostics", lambda message: said.extend(message.status), 10
    )
    teller = node.create_publisher(Header, "instruction", LATCHED)
    spin = lambda: node.executor_.spin_once(timeout_sec=0.05)  # noqa: E731
    with started("robot_bridge.nodes.recorder", "-p", f"folder:={tmp_path}") as recorder:
        until(lambda: teller.get_subscription_count(), spin)
        teller.publish(Header(frame_id="press"))
        until(lambda: list(tmp_path.glob("*.part")), spin)
        time.sleep(0.5)
        teller.publish(Header(frame_id=""))
        until(lambda: not list(tmp_path.glob("*.part")), spin)
        said.clear()
        until(lambda: said, spin)
        assert {status.level for status in said} == {DiagnosticStatus.OK}, said
        recorder.terminate()
        assert recorder.wait(WAIT_S) == 0
    assert [entry.task for entry in read_index(tmp_path)] == ["press"]


def test_a_damaged_message_is_left_out_and_ends_nothing(tmp_path, node):
    teller = node.create_publisher(Header, "instruction", LATCHED)
    states = node.create_publisher(JointState, "joint_states", 10)
    spin = lambda: node.executor_.spin_once(timeout_sec=0.05)  # noqa: E731
    with started("robot_bridge.nodes.recorder", "-p", f"folder:={tmp_path}") as recorder:
        until(lambda: teller.get_subscription_count() and states.get_subscription_count(), spin)
        teller.publish(Header(frame_id="press"))
        until(lambda: list(tmp_path.glob("*.part")), spin)
        for damaged in (bytes(4), b"\0\1\0\0", bytes(11), b"\0\1\0\0" + b"\xff" * 40):
            states.publish(damaged)
            teller.publish(damaged)
        states.publish(JointState(name=["a"], position=[1.0]))
        time.sleep(1.0)
        assert recorder.poll() is None
        recorder.terminate()
        assert recorder.wait(WAIT_S) == 0
    assert read_index(tmp_path)


def test_services_begin_and_end_an_episode_and_diagnostics_say_so(tmp_path, node):
    said = []
    node.create_subscription(DiagnosticArray, "/diagnostics", said.append, 10)

    def spin():
        node.executor_.spin_once(timeout_sec=0.05)

    with started("robot_bridge.nodes.recorder", "-p", f"folder:={tmp_path}", "-p", "auto:=false"):
        answer = call(node, "recorder/start")
        assert not answer.success
        assert "no instruction yet" in answer.message
        with started("benchmarks.robot_bridge.recorder_feed_node", "-p", "task_every_s:=1000.0"):
            until(lambda: call(node, "recorder/start").success)
            until(lambda: any("recording" in one.status[0].message for one in said), spin)
            answer = call(node, "recorder/stop")
        assert (answer.success, answer.message) == (True, "closed episode-000001.mcap")
        answer = call(node, "recorder/stop")
        assert (answer.success, answer.message) == (False, "nothing runs")
    values = {pair.key: pair.value for pair in said[-1].status[0].values}
    assert {"bytes", "lost", "messages /joint_states", "free_gb"} <= set(values)
    (entry,) = read_index(tmp_path)
    assert entry.task == "do 0"
    bag = open_bag(tmp_path / entry.file)
    assert sum(1 for _ in bag.messages()) == entry.messages > 0


def test_kills_at_random_moments_lose_no_more_than_the_open_chunk(tmp_path):
    with started("benchmarks.robot_bridge.recorder_feed_node"):
        report = study(tmp_path, kills=3, seed=1)
    assert report.repaired + report.empty + report.closed >= 3


def test_a_setting_out_of_range_is_told(tmp_path, capfd):
    with started(
        "robot_bridge.nodes.recorder", "-p", f"folder:={tmp_path}", "-p", "images:=film"
    ) as recorder:
        assert recorder.wait(WAIT_S) == 1
    assert "error: images: got 'film', expected raw or compressed" in capfd.readouterr().err
