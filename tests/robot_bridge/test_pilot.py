"""A pilot decides at the cadence of training, on a memory that only an episode's start empties."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest

from robot_bridge.pilot import Pilot
from robot_bridge.sync import Seen
from tests.training.small_policy import SLOTS, small_policy
from vla.contracts.types import Observation
from vla.noise import episode_noise
from vla.realtime import RealtimeConfig

HZ = 10.0
SKIP = RealtimeConfig(mode="skip", execute=8, delay=1)


@pytest.fixture(scope="module")
def policy():
    return small_policy()


def seen_by(policy, shade: int = 0) -> Seen:
    camera = policy.robot.cameras[0]
    shape = (len(policy.robot.cameras), camera.height_px, camera.width_px, 3)
    images = np.random.default_rng(shade).integers(0, 255, shape, np.uint8)
    return Seen(images=images, proprio=np.array(policy.robot.home, np.float32), time_s=0.0)


def flown(pilot: Pilot, begin_s: float, seconds: float, takes_s: float = 0.02, blind=()):
    """Beat every 5 ms; return decisions, and (control step, targets) whenever those were asked."""
    found, waiting, due_s = [], None, 0.0
    for k in range(round(seconds / 0.005)):
        now_s = begin_s + 0.005 * k
        if waiting is not None and now_s >= due_s:
            job, (chunk, state) = waiting
            found.append(pilot.arrive(now_s, job, chunk, state, takes_s))
            waiting = None
        blinded = any(a <= now_s - begin_s < b for a, b in blind)
        if waiting is None and pilot.due(now_s) and not blinded:
            job = pilot.ask(now_s, seen_by(pilot.policy, k))
            waiting, due_s = (job, pilot.decide(job)), now_s + takes_s
    return found


def test_decisions_and_memory_are_those_of_the_same_observations_in_simulation(policy):
    pilot = Pilot(policy, SKIP, seed=7)
    pilot.start(100.0, np.array(policy.robot.home), "push the button", 3)
    found = flown(pilot, 100.3, 8.5)  # the first picture comes 0.3 s late
    assert [one.job.step for one in found] == [8 * k for k in range(11)]
    state = policy.initial_state(1)
    for k, one in enumerate(found):
        obs = one.job.obs
        assert obs.time_s.tolist() == [8 * k / HZ]
        noise = episode_noise(7, np.array([3]), np.array([k]), policy.noise_shape)
        np.testing.assert_array_equal(one.job.noise, noise)
        plain = Observation(
            images=obs.images, image_ok=obs.image_ok, proprio=obs.proprio, task=obs.task,
            time_s=np.array([k * policy.execute / HZ]),
        )  # fmt: skip
        _, state = policy.act(plain, state, noise)
        np.testing.assert_array_equal(one.counts, np.asarray(state.slot_count)[0])
    assert found[-1].counts.sum() == 11  # slots merge, nothing is lost
    assert len(found[-1].counts) == SLOTS


def test_a_new_episode_begins_with_an_empty_memory_and_drops_what_was_under_way(policy):
    pilot = Pilot(policy, SKIP, seed=0)
    home = np.array(policy.robot.home)
    pilot.start(0.0, home, "push the button", 0)
    flown(pilot, 0.0, 2.0)
    late = pilot.ask(2.4, seen_by(policy))
    chunk, state = pilot.decide(late)
    pilot.start(5.0, home, "another", 1)
    assert pilot.arrive(5.01, late, chunk, state, 0.1) is None
    (first, *_) = flown(pilot, 5.0, 1.0)
    assert first.counts.sum() == 1
    assert first.job.obs.task == ("another",)
    assert first.job.obs.time_s.tolist() == [0.0]
    pilot.stop()
    assert not pilot.due(6.0)


def test_while_nothing_is_seen_nothing_is_decided_and_time_goes_on(policy):
    pilot = Pilot(policy, SKIP, seed=0)
    pilot.start(0.0, np.array(policy.robot.home), "push the button", 0)
    found = flown(pilot, 0.0, 4.0, blind=[(1.5, 2.55)])
    steps = [one.job.step for one in found]
    assert steps == [0, 8, 25, 33]  # the one of 16 was missed, and is not made up for
    assert [round(float(one.job.obs.time_s[0]), 6) for one in found] == [0.0, 0.8, 2.5, 3.3]


def test_a_decision_that_fails_leaves_the_memory_as_it_was(policy):
    pilot = Pilot(policy, SKIP, seed=0)
    pilot.start(0.0, np.array(policy.robot.home), "push the button", 0)
    flown(pilot, 0.0, 1.0)
    before = pilot.state
    job = pilot.ask(1.6, seen_by(policy))
    pilot.fail(job)
    assert pilot.state is before
    assert pilot.due(1.6)
    job = pilot.ask(1.6, seen_by(policy))
    chunk, state = pilot.decide(job)
    broken = type(chunk)(
        values=np.full_like(np.asarray(chunk.values), np.nan), start_s=job.obs.time_s
    )
    with pytest.raises(ValueError, match="hold the arm"):
        pilot.arrive(1.61, job, broken, state, 0.01)
    assert pilot.state is before


def test_what_lies_ahead_begins_with_the_current_control_step(policy):
    pilot = Pilot(policy, SKIP, seed=0)
    pilot.start(0.0, np.array(policy.robot.home), "push the button", 0)
    begin_s, targets = pilot.ahead(0.05, 4)
    assert begin_s == 0.0
    np.testing.assert_allclose(targets, np.tile(policy.robot.home, (4, 1)), atol=1e-6)
    (one, *_) = flown(pilot, 0.0, 0.5)
    begin_s, targets = pilot.ahead(0.35, 16)
    assert begin_s == pytest.approx(0.3)
    chunk, _ = policy.act(one.job.obs, policy.initial_state(1), one.job.noise)
    values = np.asarray(chunk.values)[0]
    np.testing.assert_allclose(targets, np.concatenate([values[3:], values[-1:].repeat(3, 0)]))


def test_a_policy_that_remembers_another_pace_is_refused(policy):
    with pytest.raises(ValueError, match="this policy remembers what it saw every 8"):
        Pilot(policy, RealtimeConfig(mode="skip", execute=4, delay=1), seed=0)


def test_a_policy_whose_commands_only_a_simulator_understands_drives_no_arm(policy):
    robot = policy.robot
    shares = tuple(dataclasses.replace(c, unit="1") for c in robot.channels)
    foreign = SimpleNamespace(
        robot=dataclasses.replace(robot, name="sawyer", channels=shares), act=policy.act,
        initial_state=policy.initial_state, execute=8, noise_shape=policy.noise_shape, prefix=0,
    )  # fmt: skip
    with pytest.raises(ValueError, match="drives sawyer, whose commands mean something to its sim"):
        Pilot(foreign, SKIP, seed=0)
