"""An arm behind its safety node as an environment: real nodes, real time."""

import time

import numpy as np
import pytest

pytest.importorskip("rclpy")

from sensor_msgs.msg import JointState

from robot_bridge import arm_env
from robot_bridge.nodes import common
from robot_bridge.nodes.operator import Operator
from sim import vec_env
from sim.backends import ros
from sim.tasks import reach
from tests.robot_bridge import ros_graph
from vla.contracts.protocols import VecEnv

pytestmark = pytest.mark.ros

HOME = np.array(vec_env.load_robot("so101").home, np.float32)
NOBODY = np.zeros(1, np.bool_)
PATIENT = {"command_timeout_s": 8.0, "joint_state_timeout_s": 8.0}
"""For machines that do other things, too."""


@pytest.fixture(autouse=True)
def domain(monkeypatch):
    """The nodes have no namespace: nobody else's tests on this machine may hear them."""
    monkeypatch.setenv("ROS_DOMAIN_ID", str(ros_graph.domain()))


@pytest.fixture
def arm(domain):
    made = []

    def make(**changes):
        config = ros.Config(**{**PATIENT, **changes})
        made.append(vec_env.make("reach", 1, task_config=reach.Config(), backend=config))
        return made[-1]

    yield make
    for env in made:
        env.close()


def begin(env, seed, index):
    return env.begin(np.zeros(1, np.int64), np.array([seed]), np.array([index]))


def uncut(env, actions):
    """Return a step of the first episode in which a busy machine did not stop the arm."""
    for _ in range(3):
        step = env.step_chunk(actions)
        if not step.truncated[0]:
            return step
    raise AssertionError("stopped three times")


def held(pose, steps):
    return np.tile(np.asarray(pose, np.float32), (1, steps, 1))


def test_an_arm_behind_ros_is_an_environment(arm, monkeypatch):
    env = arm()
    assert isinstance(env, VecEnv)
    with pytest.raises(ValueError, match="call reset"):
        env.step_chunk(held(HOME, 1))
    first = env.reset(3)
    inside = vec_env.make("reach", 1).reset(3)
    assert first.task == inside.task
    assert first.images.shape == inside.images.shape
    # The first picture is that of the same world, a moment later at most.
    assert np.abs(first.images.astype(int) - inside.images).mean() < 2
    np.testing.assert_allclose(first.proprio, inside.proprio, atol=0.02)
    assert first.time_s.tolist() == [0.0]

    with Operator() as operator:
        operator.wait(lambda: operator.state == "disabled", "an arm that waits for what to do")
        there = HOME + np.array([0.4, 0, 0, 0, 0, 0], np.float32)
        way = np.linspace(HOME, there, 9, dtype=np.float32)[None, 1:]
        step = uncut(env, way)
        operator.wait(lambda: operator.heard["safety_node"]["source"] == "policy", "who leads")
        episode = int(step.info["episode"][0])
        assert step.obs.time_s[0] == 0.8
        assert (step.info["steps"].tolist(), step.terminated[0]) == ([8], False)
        np.testing.assert_array_equal(step.info["actions"], way)
        assert 0 <= step.info["progress"][0] <= 1
        assert not step.info["success"][0]
        assert step.obs.proprio[0, 0] > 0.2

        still = env.step_chunk(held(HOME, 2), NOBODY, ~NOBODY)
        assert still.info["steps"].tolist() == [0]
        np.testing.assert_array_equal(still.obs.proprio, step.obs.proprio)

        # Somebody else acts: what was sent is not done, and what was done is told.
        while not (step.terminated[0] or step.truncated[0]):
            step = env.step_chunk(held(HOME, 4), ~NOBODY)
            done = int(step.info["steps"][0])
            assert (np.abs(step.info["actions"][0, :done] - HOME).max(1) > 0.02).all()
        assert step.info["episode"].tolist() == [episode]
        assert bool(step.info["success"][0]) == bool(step.reward[0]) == bool(step.terminated[0])
        operator.wait(lambda: operator.state == "disabled", "the end of the episode")
        assert step.obs.time_s.tolist() == [0.0]
        np.testing.assert_allclose(step.obs.proprio[0], HOME, atol=0.02)

        obs = begin(env, 4, 7)
        assert obs.task == vec_env.make("reach", 1).begin(*np.array([[0], [4], [7]])).task
        env.step(held(HOME, 1)[:, 0])
        monkeypatch.setattr(arm_env, "ALONE_S", 60.0)
        with pytest.raises(ValueError, match="runs already, expected none on this ROS domain"):
            arm()
        env.close()
        with pytest.raises(ValueError, match="call reset"):
            env.step_chunk(held(HOME, 1))


def test_the_first_observation_is_never_of_the_time_before_the_reset(arm, monkeypatch):
    env = arm()
    env.reset(3)
    begin_episode, look, stale, returned = env._arm.begin, env._arm.look, [], []

    def begin_late(*args):
        time.sleep(0.3)  # as where the simulated arm answers late
        stale.append(look())
        return begin_episode(*args)

    def look_late():
        returned.append(look() if returned else stale[0])  # as where pictures come late
        return returned[-1]

    monkeypatch.setattr(env._arm, "begin", begin_late)
    monkeypatch.setattr(env._arm, "look", look_late)
    env.reset(4)
    assert len(returned) > 1
    assert returned[-1].time_s > stale[0].time_s


def test_an_episode_may_end_while_the_experts_next_target_is_awaited(arm, monkeypatch):
    env = arm()
    begin(env, 3, 0)
    wait_step = env._wait_step
    # As where the message that the episode has ended comes late.
    monkeypatch.setattr(env, "_wait_step", lambda: wait_step() or True)
    for _ in range(3):  # a busy machine may stop the arm
        step = env.step_chunk(held(HOME, 60), ~NOBODY)
        if step.terminated[0]:
            break
    assert step.terminated[0]
    assert 0 < step.info["steps"][0] < 60


def test_the_arm_goes_back_home_by_itself_and_the_world_goes_on(arm):
    env = arm(reset="arm")
    env.reset(0)
    poses = []
    with Operator() as ears:
        ears.node.create_subscription(
            JointState, "joint_states", lambda m: poses.append(m.position), common.SENSORS
        )
        until_s = time.monotonic() + 30
        while not poses and time.monotonic() < until_s:
            ears.executor.wake()
            time.sleep(0.05)
        away = HOME + np.array([1.2, 0.5, 0, 0, 0, 0], np.float32)
        step = uncut(env, np.linspace(HOME, away, 15, dtype=np.float32)[None])
        for _ in range(20):  # a busy machine may be late
            if np.abs(step.obs.proprio[0] - HOME).max() > 0.9:
                break
            step = env.step_chunk(held(away, 1))
        assert np.abs(step.obs.proprio[0] - HOME).max() > 0.9
        obs = begin(env, 0, 1)
        np.testing.assert_allclose(obs.proprio[0], HOME, atol=0.06)
        ears.wait(lambda: ears.state == "disabled", "the arm's rest")
    moved = np.abs(np.diff(np.array(poses), axis=0)).max()
    assert moved < 0.6  # it drove: nobody put it there


def test_a_learner_that_was_too_slow_costs_its_episode_and_no_more(arm, capsys):
    env = arm(command_timeout_s=0.5)
    env.reset(0)
    env.step_chunk(held(HOME, 2))
    env._arm.hold_s = 0.0
    env._arm.wait(lambda: env._arm.state == "latched_fault", "the silence")
    step = env.step_chunk(held(HOME, 2))
    assert (step.truncated.tolist(), step.terminated.tolist()) == ([True], [False])
    assert "stopped the arm: command_timeout" in capsys.readouterr().err
    assert step.obs.time_s.tolist() == [0.0]
    env._arm.hold_s = 30.0
    step = env.step_chunk(held(HOME, 2))
    assert step.info["episode"].tolist() == [1]
    assert step.info["steps"][0] == 2


def test_a_node_that_is_gone_ends_it_with_its_last_words(arm):
    env = arm()
    env.reset(0)
    (safety,) = [c for c in env._children if c.name.startswith("/safety_node")]
    safety.process.kill()
    safety.process.wait(10)
    with pytest.raises(ValueError, match="/safety_node ended with exit code -9: .*standstill"):
        env.step_chunk(held(HOME, 1))
