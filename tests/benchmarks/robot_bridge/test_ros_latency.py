"""A policy that drives a simulated arm through ROS 2 decides and remembers as in one process."""

import json

import numpy as np
import pytest

from benchmarks.robot_bridge import ros_latency
from robot_bridge.policy.decision_log import MEMORY
from vla.contracts.types import Observation, PolicyState
from vla.runtime import policy_loader


@pytest.mark.slow
@pytest.mark.ros
def test_an_episode_over_ros_keeps_cadence_memory_and_limits(arm_policy, tmp_path):
    words = [str(arm_policy), "--episodes", "1", "--latency-s", "2", "--out", str(tmp_path / "out"),
             "--command-timeout-s", "5", "--joint-state-timeout-s", "5"]  # fmt: skip
    code = ros_latency.main(words)
    found = json.loads((tmp_path / "out" / "bridge.json").read_text())
    (episode,) = found["episodes"]
    assert episode["steps"] > 16  # the colour is shown, and some of the wait is over
    assert found["decisions"] >= episode["steps"] // 8
    if found["on_the_grid"] == found["decisions"]:  # no other test held it up for a control step
        assert (code, found["merges_alike"]) == (0, found["decisions"])
    assert found["on_the_grid"] >= found["decisions"] // 2
    assert found["audit"]["commands"] > 10 * episode["steps"] / 2
    assert sum(found["audit"]["violations"].values()) == 0
    assert found["overhead"]["decisions"] >= 1
    assert 0 < found["overhead"]["overhead_ms"][0] < 1000


def test_a_memory_that_differs_is_found(arm_policy):
    policy = policy_loader.open_policy(arm_policy, threads=1).policy
    rng, count = np.random.default_rng(0), 12
    camera = policy.robot.cameras[0]
    shape = (count, len(policy.robot.cameras), camera.height_px, camera.width_px, 3)
    log = {
        "step": 8 * np.arange(count), "images": rng.integers(0, 255, shape, np.uint8),
        "proprio": np.tile(np.array(policy.robot.home, np.float32), (count, 1)),
        "noise": np.zeros((count, *policy.noise_shape), np.float32),
        "task": np.array(["push the button"] * count),
    }  # fmt: skip
    state, states = policy.initial_state(1), []
    for k in range(count):
        obs = Observation(
            images=log["images"][k : k + 1], image_ok=np.ones((1, shape[1]), np.bool_),
            proprio=log["proprio"][k : k + 1], task=(str(log["task"][k]),),
            time_s=np.array([8 * k / policy.robot.control_hz]),
        )  # fmt: skip
        states.append(policy.act(obs, state, log["noise"][k : k + 1])[1].map(np.asarray))
        state = states[-1]
    whole = PolicyState.concatenate(states)
    log |= {f"{MEMORY}{name}": value for name, value in whole.tensors.items()}
    assert ros_latency.replay(policy, log) == count
    log[f"{MEMORY}slot_count"][3] = np.roll(whole["slot_count"][3], 1)  # as if it merged another
    assert ros_latency.replay(policy, log) == count - 1


def found_with(**more):
    return {
        "difference": {"value": 0.0, "low": -0.04, "high": 0.04}, "decisions": 10,
        "merges_alike": 10, "audit": {"violations": {"jerk": 0}}, **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"difference": {"value": -0.3, "low": -0.4, "high": -0.2}}, "at least 20.0 points"),
        ({"merges_alike": 9}, "memories differ after 1 decisions"),
        ({"audit": {"violations": {"jerk": 2, "velocity": 1}}}, "3 commands violate a limit"),
    ],
)
def test_what_is_lost_or_differs_is_a_fault(more, said):
    assert ros_latency.faults(found_with()) == []
    (fault,) = ros_latency.faults(found_with(**more))
    assert said in fault
