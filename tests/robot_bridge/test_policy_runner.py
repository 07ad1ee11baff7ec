"""A pilot decides at the cadence of training, on a memory that only an episode's start empties."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from robot_bridge.policy.decision_log import MEMORY, DecisionLog
from robot_bridge.policy.policy_runner import PolicyRunner
from robot_bridge.sensing.sync import SyncedObservation
from tests.training.small_policy import SLOTS, small_policy
from vla.contracts.types import Observation
from vla.memory import bank, gru
from vla.runtime.noise import episode_noise
from vla.runtime.rtc_scheduler import RealtimeConfig

HZ = 10.0
SKIP = RealtimeConfig(mode="skip", n_action_steps=8, delay=1)


@pytest.fixture(scope="module")
def policy():
    return small_policy()


@pytest.fixture(scope="module", params=[bank.Config(slots=SLOTS), gru.Config(hidden_size=16)])
def remembering(request):
    """Return policies whose memories have states of other shapes."""
    return small_policy(request.param)


def seen_by(policy, shade: int = 0) -> SyncedObservation:
    camera = policy.robot.cameras[0]
    shape = (len(policy.robot.cameras), camera.height_px, camera.width_px, 3)
    images = np.random.default_rng(shade).integers(0, 255, shape, np.uint8)
    return SyncedObservation(
        images=images, proprio=np.array(policy.robot.home, np.float32), time_s=0.0
    )


def flown(runner: PolicyRunner, begin_s: float, seconds: float, takes_s: float = 0.02, blind=()):
    """Beat every 5 ms; return decisions, and (control step, targets) whenever those were asked."""
    found, waiting, due_s = [], None, 0.0
    for k in range(round(seconds / 0.005)):
        now_s = begin_s + 0.005 * k
        if waiting is not None and now_s >= due_s:
            job, (chunk, state) = waiting
            found.append(runner.complete(now_s, job, chunk, state, takes_s))
            waiting = None
        blinded = any(a <= now_s - begin_s < b for a, b in blind)
        if waiting is None and runner.is_due(now_s) and not blinded:
            job = runner.request(now_s, seen_by(runner.policy, k))
            waiting, due_s = (job, runner.decide(job)), now_s + takes_s
    return found


def test_decisions_and_memory_are_those_of_the_same_observations_in_simulation(
    remembering, tmp_path
):
    policy = remembering
    runner = PolicyRunner(policy, SKIP, seed=7)
    runner.start(100.0, np.array(policy.robot.home), "push the button", 3)
    found = flown(runner, 100.3, 8.5)  # the first picture comes 0.3 s late
    assert [one.request.step for one in found] == [8 * k for k in range(11)]
    state = policy.initial_state(1)
    for k, one in enumerate(found):
        obs = one.request.obs
        assert obs.time_s.tolist() == [8 * k / HZ]
        noise = episode_noise(7, np.array([3]), np.array([k]), policy.noise_shape)
        np.testing.assert_array_equal(one.request.noise, noise)
        plain = Observation(
            images=obs.images, image_ok=obs.image_ok, proprio=obs.proprio, task=obs.task,
            time_s=np.array([k * policy.n_action_steps / HZ]),
        )  # fmt: skip
        _, state = policy.act(plain, state, noise)
        for name, value in state.tensors.items():
            np.testing.assert_array_equal(one.state[name], value)
    log = DecisionLog(tmp_path)
    for one in found:
        log.add(one)
    log.write()
    with np.load(tmp_path / "episode-000003.npz", allow_pickle=False) as logged:
        for name, value in state.tensors.items():
            assert logged[f"{MEMORY}{name}"].shape == (11, *value.shape[1:])
        np.testing.assert_array_equal(logged[f"{MEMORY}{name}"][-1:], value)


def test_of_eleven_decisions_in_seven_slots_none_is_lost(policy):
    runner = PolicyRunner(policy, SKIP, seed=7)
    runner.start(100.0, np.array(policy.robot.home), "push the button", 3)
    last = flown(runner, 100.0, 8.5)[-1]
    assert last.state["slot_count"].sum() == 11
    assert last.state["slot_count"].shape == (1, SLOTS)


def test_a_new_episode_begins_with_an_empty_memory_and_drops_what_was_under_way(policy):
    runner = PolicyRunner(policy, SKIP, seed=0)
    home = np.array(policy.robot.home)
    runner.start(0.0, home, "push the button", 0)
    flown(runner, 0.0, 2.0)
    late = runner.request(2.4, seen_by(policy))
    chunk, state = runner.decide(late)
    runner.start(5.0, home, "another", 1)
    assert runner.complete(5.01, late, chunk, state, 0.1) is None
    (first, *_) = flown(runner, 5.0, 1.0)
    assert first.state["slot_count"].sum() == 1
    assert first.request.obs.task == ("another",)
    assert first.request.obs.time_s.tolist() == [0.0]
    runner.stop()
    assert not runner.is_due(6.0)


def test_while_nothing_is_seen_nothing_is_decided_and_time_goes_on(policy):
    runner = PolicyRunner(policy, SKIP, seed=0)
    runner.start(0.0, np.array(policy.robot.home), "push the button", 0)
    found = flown(runner, 0.0, 4.0, blind=[(1.5, 2.55)])
    steps = [one.request.step for one in found]
    assert steps == [0, 8, 25, 33]  # the one of 16 was missed, and is not made up for
    assert [round(float(one.request.obs.time_s[0]), 6) for one in found] == [0.0, 0.8, 2.5, 3.3]


def test_a_decision_that_fails_leaves_the_memory_as_it_was(policy):
    runner = PolicyRunner(policy, SKIP, seed=0)
    runner.start(0.0, np.array(policy.robot.home), "push the button", 0)
    flown(runner, 0.0, 1.0)
    before = runner.state
    job = runner.request(1.6, seen_by(policy))
    runner.fail(job)
    assert runner.state is before
    assert runner.is_due(1.6)
    job = runner.request(1.6, seen_by(policy))
    chunk, state = runner.decide(job)
    broken = type(chunk)(
        values=np.full_like(np.asarray(chunk.values), np.nan), start_s=job.obs.time_s
    )
    with pytest.raises(ValueError, match="hold the arm"):
        runner.complete(1.61, job, broken, state, 0.01)
    assert runner.state is before


def test_what_lies_ahead_begins_with_the_current_control_step(policy):
    runner = PolicyRunner(policy, SKIP, seed=0)
    runner.start(0.0, np.array(policy.robot.home), "push the button", 0)
    begin_s, targets = runner.ahead(0.05, 4)
    assert begin_s == 0.0
    np.testing.assert_allclose(targets, np.tile(policy.robot.home, (4, 1)), atol=1e-6)
    (one, *_) = flown(runner, 0.0, 0.5)
    begin_s, targets = runner.ahead(0.35, 16)
    assert begin_s == pytest.approx(0.3)
    chunk, _ = policy.act(one.request.obs, policy.initial_state(1), one.request.noise)
    values = np.asarray(chunk.values)[0]
    np.testing.assert_allclose(targets, np.concatenate([values[3:], values[-1:].repeat(3, 0)]))


def test_a_policy_that_remembers_another_pace_is_refused(policy):
    with pytest.raises(ValueError, match="this policy was trained with one every 8"):
        PolicyRunner(policy, RealtimeConfig(mode="skip", n_action_steps=4, delay=1), seed=0)


def test_a_policy_whose_commands_only_a_simulator_understands_drives_no_arm(policy):
    robot = policy.robot
    shares = tuple(dataclasses.replace(c, unit="1") for c in robot.channels)
    foreign = SimpleNamespace(
        robot=dataclasses.replace(robot, name="sawyer", channels=shares), act=policy.act,
        initial_state=policy.initial_state, n_action_steps=8, noise_shape=policy.noise_shape,
        max_prefix_len=0, remembers=True,
    )  # fmt: skip
    with pytest.raises(ValueError, match="drives sawyer, whose commands mean something to its sim"):
        PolicyRunner(foreign, SKIP, seed=0)
