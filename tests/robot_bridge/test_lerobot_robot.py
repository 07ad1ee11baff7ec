"""The stock `lerobot-record` drives an arm through the bridge: our plug-in, its own data set."""

import os
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("rclpy")
pytest.importorskip("lerobot")

from sensor_msgs.msg import JointState

from benchmarks.robot_bridge.ros_latency import running
from robot_bridge.launching import graph
from robot_bridge.nodes import common
from robot_bridge.nodes.leader import Leader
from robot_bridge.nodes.operator import Operator
from robot_bridge.nodes.threaded import Threaded
from tests.lerobot_versions import NEW
from vla.contracts import registry

pytestmark = [pytest.mark.ros, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
ROBOT = registry.load("vla.robots", "so101").SPEC
HOME = np.array(ROBOT.home)
SWING = np.array([0.5, 0.2, 0.0, 0.0, 0.3, 0.2])
PERIOD_S = 4.0
RATE_HZ = 50
NAMESPACE = f"arm_{os.getpid()}"
"""Whoever runs the same test beside us is not heard."""
LEADER = {"shoulder_pan": "pan_of_leader"}
LED = (
    "--teleop.type=mneme_ros2_joints", f"--teleop.namespace={NAMESPACE}",
    "--teleop.max_observation_age_s=5",
    "--teleop.joints={shoulder_pan: pan_of_leader}",
)  # fmt: skip


class Swinging(Threaded):
    """A leader that a person swings around the arm's home pose."""

    def __init__(self):
        self.ticks = 0
        super().__init__(NAMESPACE, "leader")

    def _connect(self):
        self.states = self.node.create_publisher(
            JointState, "leader/joint_states", common.DRIVERS
        )  # fmt: skip
        self.node.create_timer(1 / RATE_HZ, self._tick)

    def _tick(self):
        self.ticks += 1
        phase = 2 * np.pi * self.ticks / (RATE_HZ * PERIOD_S)
        names = [LEADER.get(name, name) for name in ROBOT.names]
        pose = HOME + np.sin(phase) * SWING
        # Another order than the arm's.
        self.states.publish(JointState(name=names[::-1], position=pose[::-1].tolist()))


@contextmanager
def simulated(tmp_path):
    use = graph.SimArm(task="reach", use_sim_time=False, namespace=NAMESPACE)
    log = str(tmp_path / "safety.npz")
    # For machines that do other things, too.
    told = {"safety_node": {"command_timeout_s": 5.0, "joint_state_timeout_s": 5.0, "log": log}}
    with running(graph.sim_arm(use), told, tmp_path / "nodes.log"), Operator(NAMESPACE) as operator:
        yield operator


def installed(tmp_path):
    """Return where pip's markers of the plug-ins lie, whatever was installed here."""
    place = tmp_path / "site"
    for name in ("lerobot_policy_mneme", "lerobot_robot_mneme_ros2"):
        marker = place / f"{name}-1.dist-info"
        marker.mkdir(parents=True)
        shutil.copy(ROOT / "launch" / "resource" / name / "METADATA", marker)
    return place


def until_it_raises(act, limit_s=60.0):
    end_s = time.monotonic() + limit_s
    while time.monotonic() < end_s:
        act()
        time.sleep(0.01)


def record(tmp_path, *more, by=LED, name="swings", command="lerobot_record"):
    """Run a stock command that records; return it once it has ended."""
    words = [
        "--robot.type=mneme_ros2", f"--robot.namespace={NAMESPACE}", "--robot.fps=10",
        "--robot.max_observation_age_s=5", "--robot.max_sync_interval_s=2",
        "--robot.frozen_image_timeout_s=60", *by,
        f"--dataset.repo_id=somebody/{name}", f"--dataset.root={tmp_path / 'dataset'}",
        "--dataset.single_task=swing", "--dataset.fps=10", "--dataset.num_episodes=2",
        "--dataset.episode_time_s=3", "--dataset.reset_time_s=1",
        "--dataset.push_to_hub=false", "--display_data=false", "--play_sounds=false", *more,
    ]  # fmt: skip
    paths = os.pathsep.join(map(str, (ROOT, installed(tmp_path))))
    return subprocess.run(
        [sys.executable, "-m", f"lerobot.scripts.{command}", *words],
        env={**os.environ, "PYTHONPATH": paths, "HF_HOME": str(tmp_path / "hf")},
        cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False,
    )  # fmt: skip


def test_stock_lerobot_record_records_two_episodes_of_an_arm_behind_the_bridge(tmp_path):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    with simulated(tmp_path) as operator, Swinging():
        done = record(tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        operator.wait(lambda: operator.state == "disabled", "the end")
        told = operator.heard["safety_node"]
    assert told["source"] == "none"
    counts = {name: int(n) for name, n in told.items() if name.startswith("count ")}
    latching = (
        "command_timeout",
        "policy_died",
        "joint_state_timeout",
        "tracking_error",
        "clock",
        "e-stop",
        "names",
        "finite",
    )
    assert not {f"count {stage}" for stage in latching} & set(counts)
    with np.load(tmp_path / "safety.npz", allow_pickle=False) as log:
        commands, chunks = log["command"], len(log["chunk_s"])

    data = LeRobotDataset("somebody/swings", root=tmp_path / "dataset", video_backend="pyav")
    assert data.meta.robot_type == "mneme_ros2"
    assert (data.num_episodes, data.fps) == (2, 10)
    assert 4 < data.num_frames <= chunks, "a target was sent at every frame"
    names = [f"{name}.pos" for name in ROBOT.names]
    for key in ("observation.state", "action"):
        assert data.features[key]["names"] == names
        assert tuple(data.features[key]["shape"]) == (6,)
    for camera in ("front", "wrist"):
        assert tuple(data.features[f"observation.images.{camera}"]["shape"]) == (96, 96, 3)
    state, action = (
        np.array(data.hf_dataset[:][key]) for key in ("observation.state", "action")
    )  # fmt: skip
    swung = SWING > 0
    assert (np.ptp(state, axis=0)[swung] > 0.3 * SWING[swung]).all(), np.ptp(state, axis=0)
    assert (np.abs(action - HOME) <= SWING + 1e-6).all()
    assert (np.ptp(action, axis=0)[swung] > 0.3 * SWING[swung]).all()
    assert (np.ptp(commands, axis=0)[swung] > 0.3 * SWING[swung]).all()
    first = data[0]
    assert first["task"] == "swing"
    assert first["observation.images.front"].shape == (3, 96, 96)
    assert first["observation.images.front"].std() > 0.05


def test_stock_lerobot_lets_our_policy_drive_the_arm_behind_the_bridge(tmp_path):
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    from tests.lerobot_policy.stock import packed

    _, policy = packed(tmp_path, around_home=0.2)
    by = [f"--policy.path={policy}", "--policy.device=cpu", "--robot.topic=action_chunk"]
    command, name = "lerobot_record", "eval_swings"
    if NEW:  # it records what policies do by a command of its own, and wants this beginning
        command, name = "lerobot_rollout", "rollout_swings"
        by += ["--strategy.type=episodic", "--fps=10"]
    with simulated(tmp_path) as operator:
        # Where nobody leads the arm back, LeRobot 0.4 would wait for its reset without an end.
        reset = f"--dataset.reset_time_s={1 if NEW else 0}"
        done = record(tmp_path, reset, by=by, name=name, command=command)
        assert done.returncode == 0, done.stderr[-3000:]
        operator.wait(lambda: operator.state == "disabled", "the end")
    with np.load(tmp_path / "safety.npz", allow_pickle=False) as log:
        commands = log["command"]

    data = LeRobotDataset(f"somebody/{name}", root=tmp_path / "dataset", video_backend="pyav")
    assert (data.num_episodes, data.fps, data[0]["task"]) == (2, 10, "swing")
    action, episode, at = (
        np.array(data.hf_dataset[:][key]) for key in ("action", "episode_index", "frame_index")
    )  # fmt: skip
    assert (np.abs(action - HOME) < 0.4).all(), "the policy's range, and not the arm's"
    assert (np.ptp(commands, axis=0) > 0.02).sum() >= 4, "the arm moved"
    # The first decision of an episode depends on what is seen and on the episode's number alone.
    first = [action[(episode == e) & (at < 8)] for e in range(2)]
    assert all(len(one) == 8 and (np.ptp(one, axis=0) > 0).any() for one in first)
    assert not np.array_equal(*first)


def test_a_latched_safety_node_and_a_silent_leader_are_one_clear_sentence(tmp_path):
    from lerobot_robot_mneme_ros2 import MnemeRos2, MnemeRos2Config, MnemeRos2Joints
    from lerobot_robot_mneme_ros2 import MnemeRos2JointsConfig as JointsConfig

    robot = MnemeRos2(
        MnemeRos2Config(
            calibration_dir=tmp_path, namespace=NAMESPACE, max_observation_age_s=5.0,
            max_sync_interval_s=2.0,
            frozen_image_timeout_s=60.0, views=["wrist"], width_px=64, height_px=48,
        )
    )  # fmt: skip
    teleop = MnemeRos2Joints(
        JointsConfig(
            calibration_dir=tmp_path, namespace=NAMESPACE, joints=LEADER, max_observation_age_s=1.0
        )
    )  # fmt: skip
    with simulated(tmp_path) as operator:
        operator.estop()
        with pytest.raises(ValueError, match="latched by e-stop: requested by service; clear it"):
            robot.connect()
        assert not robot.is_connected

        operator.rearm()
        with Swinging():
            teleop.connect()
            robot.connect()
            seen = robot.get_observation()
            assert set(seen) == set(robot.observation_features)
            assert seen["wrist"].shape == robot.observation_features["wrist"] == (48, 64, 3)
            wanted = {**teleop.get_action(), "wrist_roll.pos": 2.0}
            sent = robot.send_action(wanted)
            assert set(sent) == set(robot.action_features)
            assert sent["wrist_roll.pos"] == pytest.approx(0.5, abs=0.05), "no farther than 0.5"
        with pytest.raises(ValueError, match="leader: silent for 1 s; see .*/leader/joint_states"):
            until_it_raises(teleop.get_action)

        operator.estop()
        robot.device.wait(lambda: robot.device.state == "latched_fault", "the e-stop")
        said = (
            "safety_node: latched_fault by e-stop: requested by service; remove the cause, then "
            f"`vla safety reset --namespace {NAMESPACE}` and start again"
        )
        with pytest.raises(ValueError, match=f"^{said}$"):
            robot.send_action(wanted)
        robot.disconnect()
        teleop.disconnect()
    with pytest.raises(ValueError, match="mneme_ros2 is not connected; call connect"):
        robot.get_observation()


def test_a_robot_that_does_not_exist_is_said_before_anything_moves(tmp_path):
    done = record(tmp_path, "--robot.robot=so1001")
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert "unknown robot 'so1001': did you mean so101? known names are" in last
    assert not (tmp_path / "dataset").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"topic": "twist"}, "topic: got 'twist', expected teleop or action_chunk"),
        ({"width_px": 64}, r"image size: got 64 x 0, expected both sides or neither \(0\)"),
        ({"fps": 0}, "fps: got 0, expected at least 1"),
    ],
)
def test_settings_out_of_range_are_named(settings, said):
    from lerobot_robot_mneme_ros2.robot import MnemeRos2Config, described

    with pytest.raises(ValueError, match=said):
        described(MnemeRos2Config(**settings))


def test_other_joints_are_named():
    from lerobot_robot_mneme_ros2 import joints

    with pytest.raises(ValueError, match=r"action: b\.pos is missing; got a\.pos"):
        joints.pose(("a", "b"), {"a.pos": 1.0})
    with pytest.raises(ValueError, match="joints: got 'hip', expected names among a, b"):
        Leader(("a", "b"), "joint_states", leader_names={"hip": "x"})


def test_who_was_installed_otherwise_names_the_package(tmp_path):
    """`--robot.discover_packages_path` finds both; who only trains needs no ROS 2 for that."""
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "sys.modules['rclpy'] = None\n"
        "from lerobot.configs.parser import load_plugin\n"
        "load_plugin('lerobot_robot_mneme_ros2')\n"
        "from lerobot.robots import RobotConfig\n"
        "from lerobot.teleoperators import TeleoperatorConfig\n"
        "from lerobot.robots import make_robot_from_config\n"
        "print(TeleoperatorConfig.get_choice_class('mneme_ros2_joints').__name__)\n"
        "config = RobotConfig.get_choice_class('mneme_ros2')(calibration_dir=Path('.'))\n"
        "robot = make_robot_from_config(config)\n"
        "try:\n"
        "    robot.connect()\n"
        "except ValueError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.splitlines() == [
        "MnemeRos2JointsConfig",
        "no rclpy: source ROS 2's setup.bash, or pip install 'mneme-vla[ros]'",
    ], done.stderr
