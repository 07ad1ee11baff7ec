"""Online RL on an arm behind its safety node: real nodes, stored episodes, interventions."""

import threading
import time
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

pytest.importorskip("rclpy")

from robot_bridge.nodes.operator import Operator
from sim.backends import ros
from tests.robot_bridge import ros_graph
from tests.training.rl import runs
from tests.training.rl.conftest import TASK
from tests.training.rl.fake_rollouts import groups
from training.core import loop
from training.core.config import EvalConfig
from training.evaluation.evaluate import evaluate
from training.rl.experience import episode_store
from training.rl.experience.episode import ActionSource
from training.rl.processes import incremental_store
from vla import checkpoint

pytestmark = pytest.mark.ros

NAME = episode_store.iteration_name(0)
EPISODES = 4
# For machines that do other things, too, and for a policy that knows nothing.
PATIENT = ros.Config(
    command_timeout_s=8.0, joint_state_timeout_s=8.0, auto_resume_stages=ros.LATCHES
)


@pytest.fixture(autouse=True)
def domain(monkeypatch):
    monkeypatch.setenv("ROS_DOMAIN_ID", str(ros_graph.domain()))


def configured():
    """Return an iteration of episodes over ROS in which the expert acts from beginning to end."""
    return runs.config(
        backend=PATIENT, n_iterations=1, episodes_per_iteration=EPISODES, steps=2, reward="sparse",
        **groups(jump_start={"fraction": 1.0, "max_guide_steps": 60}),
        eval=EvalConfig(every=0, final_episodes=0),
    )  # fmt: skip


def press_after_one(folder):
    """Press the e-stop once an episode has ended."""
    with Operator() as operator:
        while not incremental_store.progress(folder, NAME)[0]:
            time.sleep(0.02)
        operator.estop()


def test_an_e_stop_ends_the_run_and_finished_episodes_are_stored(begun, tmp_path):
    out, config = tmp_path / "run", configured()
    start = replace(runs.start(begun, out), policy=begun / "start" / "checkpoint")
    somebody = threading.Thread(target=press_after_one, args=(start.experience,), daemon=True)
    somebody.start()
    with pytest.raises(ValueError, match="e-stop.* requested by service"):
        loop.run(config, start, out, Console(quiet=True))
    somebody.join(60)
    kept = incremental_store.read_episode(start.experience, NAME, 0)
    there, _ = incremental_store.progress(start.experience, NAME)
    assert len(there) < EPISODES

    loop.run(config, start, out, Console(quiet=True))
    episodes = episode_store.read_iteration(start.experience, NAME)
    first = episodes[0]
    assert [e.number for e in episodes] == list(range(EPISODES))
    np.testing.assert_array_equal(first.images, kept.images)
    assert incremental_store.progress(start.experience, NAME) == (set(), set())
    for episode in episodes:
        assert episode.task
        assert episode.steps == int(episode.executed.sum()) > 0
        assert np.abs(np.diff(episode.proprio, axis=0)).max() > 0.01  # it moved
        assert (episode.action_source == ActionSource.INTERVENTION).all()
    assert any(e.success for e in episodes)  # the expert led, through the gate


@pytest.mark.slow
def test_a_value_function_learns_on_the_arm_from_an_estimated_state(begun, tmp_path):
    quick = EvalConfig(every=0, final_episodes=0)
    simulated, place = tmp_path / "simulated", runs.start(begun, tmp_path / "simulated")
    loop.run(runs.config("asymmetric_ac", eval=quick), place, simulated, Console(quiet=True))
    algo = runs.ALGOS["asymmetric_ac"]
    config = replace(
        runs.config(
            "asymmetric_ac", eval=quick, reward="sparse", backend=PATIENT, n_iterations=1, steps=2
        ),
        algo=replace(algo, value=replace(algo.value, estimator=str(simulated))),
    )
    place = replace(runs.start(begun, tmp_path / "arm"), policy=simulated)
    loop.run(config, place, tmp_path / "arm", Console(quiet=True))
    for episode in episode_store.read_iteration(place.experience, NAME):
        assert len(episode.features) == len(episode)
        assert episode.simulator_state.size == 0
    moved, before = (checkpoint.load(p)[0].state_dict() for p in (tmp_path / "arm", simulated))
    assert any(not moved[name].equal(before[name]) for name in moved)


def test_a_policy_is_tested_on_the_arm_behind_its_gate(begun):
    policy, _ = checkpoint.load(begun / "start" / "checkpoint")
    found = evaluate(policy.eval(), TASK, episodes=1, seed=3, backend=PATIENT)
    assert (len(found.success), found.task["type"]) == (1, "reach")
    assert 0 < found.steps[0] <= 40
