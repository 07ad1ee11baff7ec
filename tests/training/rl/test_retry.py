"""Return and explore: back the straight way, aside by an offset that is held, then as before."""

import numpy as np
import pytest

from sim.core.kinematics import kinematics, moved, solve
from sim.tasks import pick_place
from tests.training.rl.fake_rollouts import Says, control
from tests.training.rl.rollouts import collect_rollouts
from tests.training.rl.test_interventions import asked, seen
from tests.training.small_policy import small_policy
from training.rl.experience.episode import ActionSource
from training.rl.intervention import retry
from training.rl.intervention.intervention import EpisodeControlConfig, InterventionController
from training.rl.intervention.retry import Retry
from vla.memory import none
from vla.robots import panda, so101

ROBOT = so101.SPEC
RETRIED = control(retry={"fraction": 1.0}, intervention={"patience": 2})


def helper(config: EpisodeControlConfig, *values: float, seed: int = 3) -> InterventionController:
    return InterventionController(
        config, seed=seed, remaining=1.0, scorer=Says(*values), views=(0, 1)
    )


def acting(config: EpisodeControlConfig, *values: float) -> list[int]:
    """Return who acts at every decision of an episode, by what the reward model says."""
    one, rows, found = helper(config, *values), np.zeros(1, np.int64), []
    for t in range(len(values)):
        due = one.needs_intervention(seen(1), rows, rows, np.full(1, t))
        by = one.apply_retries(
            ROBOT, rows, np.zeros((1, 6), np.float32), np.zeros((1, 4, 6), np.float32)
        )
        found.append(ActionSource.INTERVENTION if due[0] else int(by[0]))
    return found


def test_an_arm_that_gets_no_further_goes_back_and_tries_aside_until_progress_is_made() -> None:
    still = [0.1, 0.1, 0.1]  # two decisions without progress
    assert acting(RETRIED, *still, 0.1, 0.05, 0.0, 0.2, 0.39, 0.41, 0.6) == (
        [ActionSource.POLICY] * 2
        + [ActionSource.RETRACE] * 3
        + [ActionSource.OFFSET_RETRY] * 3
        + [ActionSource.POLICY] * 2
    )


def test_without_an_offset_the_policy_tries_again_as_it_is() -> None:
    exact = control(retry={"fraction": 1.0, "offset_std_m": 0.0}, intervention={"patience": 2})
    assert acting(exact, *[0.1] * 3, *[0.0] * 4) == (
        [ActionSource.POLICY] * 2 + [ActionSource.RETRACE] * 3 + [ActionSource.POLICY] * 2
    )


def test_where_it_stands_still_again_it_goes_back_once_more() -> None:
    values = [0.1] * 3 + [0.0] * 5
    assert acting(RETRIED, *values) == [ActionSource.POLICY] * 2 + [ActionSource.RETRACE] * 3 + [
        ActionSource.OFFSET_RETRY
    ] * 2 + [ActionSource.RETRACE]


def test_what_was_reached_before_does_not_count_against_the_new_attempt() -> None:
    values = [0.3, 0.3, 0.3, 0.3, 0.2, 0.0, 0.1, 0.2, 0.3]
    assert acting(RETRIED, *values)[5:] == [ActionSource.OFFSET_RETRY] * 4


def test_interventions_come_where_a_retry_failed() -> None:
    both = control(retry={"fraction": 1.0}, intervention={"fraction": 1.0, "patience": 2})
    assert (
        acting(both, *[0.1] * 9)
        == [ActionSource.POLICY] * 2
        + [ActionSource.RETRACE] * 3
        + [ActionSource.OFFSET_RETRY] * 2
        + [ActionSource.INTERVENTION] * 2
    )
    assert (
        asked(control(retry={"fraction": 1.0}, intervention={"patience": 1}), 0.1, 0.1, 0.1)
        == [False] * 3
    )


def test_retries_come_in_their_fraction_and_jump_starts_do_not_change() -> None:
    one = helper(
        control(
            retry={"fraction": 0.25}, jump_start={"fraction": 0.5}, intervention={"fraction": 0.5}
        )
    )
    drawn = [one._plan(n) for n in range(400)]
    assert 0.2 < np.mean([d.retries for d in drawn]) < 0.3
    before = helper(control(jump_start={"fraction": 0.5}, intervention={"fraction": 0.5}))
    assert [d[:2] for d in drawn] == [before._plan(n)[:2] for n in range(400)]


def test_where_somebody_has_acted_waiting_begins_anew() -> None:
    one, rows = helper(RETRIED, *[0.1] * 9), np.zeros(1, np.int64)

    def by(t: int) -> int:
        one.needs_intervention(seen(1), rows, rows, np.full(1, t))
        planned = np.zeros((1, 4, 6), np.float32)
        return int(one.apply_retries(ROBOT, rows, np.zeros((1, 6), np.float32), planned)[0])

    assert [by(t) for t in range(3)] == [
        ActionSource.POLICY,
        ActionSource.POLICY,
        ActionSource.RETRACE,
    ]
    one.on_intervention(0)
    assert [by(t) for t in (3, 4)] == [ActionSource.POLICY, ActionSource.RETRACE]


def test_the_way_back_ends_where_the_episode_began() -> None:
    home = np.array(ROBOT.home, np.float32)
    one = Retry(home, np.random.default_rng(0), 0.02, retrace_left=retry.RETRACE_DECISIONS)
    measured, plan = np.zeros(6, np.float32), np.ones((4, 6), np.float32)
    for left in (3, 2, 1):
        done = one.actions(ROBOT, measured, plan)
        np.testing.assert_allclose(done[-1], measured + (home - measured) / left, atol=1e-6)
        np.testing.assert_allclose(np.diff(done, axis=0).std(axis=0), 0, atol=1e-6)
        measured = done[-1]
        assert one.step(stalled=False, progress=0.9)
    np.testing.assert_allclose(measured, home, atol=1e-6)


def tool_m(robot, position) -> np.ndarray:
    arm = kinematics(robot)
    q = arm.configuration.model.qpos0.copy()
    q[arm.joint_qpos] = position
    arm.configuration.update(q)
    return arm.configuration.data.site_xpos[arm.site].copy()


def test_aside_the_tool_is_where_the_policy_wanted_it_but_for_the_offset() -> None:
    one = Retry(np.zeros(6, np.float32), np.random.default_rng(1), 0.02)
    one.step(stalled=True, progress=0.0)
    one.retrace_left = 0
    plan = np.array([[0.2, 0.3, 0.2, 1.2, 0.1, 0.4], [0.2, 0.4, 0.2, 1.1, 0.1, 0.0]], np.float32)
    for wanted, done in zip(plan, one.actions(ROBOT, np.zeros(6), plan), strict=True):
        way = tool_m(ROBOT, done) - tool_m(ROBOT, wanted)
        np.testing.assert_allclose(way, one.offset_m, atol=1e-3)
        assert done[-1] == wanted[-1]
    assert 0.001 < np.abs(one.offset_m[:2]).max() < 0.08
    assert one.offset_m[2] == 0


@pytest.mark.parametrize("robot", [so101.SPEC, panda.SPEC], ids=["so101", "panda"])
def test_a_tool_goes_where_it_is_moved_and_turns_about_the_vertical(robot) -> None:
    rng, over = np.random.default_rng(0), np.array([np.mean(robot.reach_m), 0.05, 0.1])
    start = solve(robot, np.array(robot.home), over)
    for _ in range(5):
        way = rng.normal(0, 0.02, 3)
        found = moved(robot, start, way)
        np.testing.assert_allclose(tool_m(robot, found), tool_m(robot, start) + way, atol=1e-3)
        assert (found >= robot.low).all()
        assert (found <= robot.high).all()
        assert found[-1] == start[-1]
    turned = moved(robot, start, np.zeros(3), 0.2)
    np.testing.assert_allclose(tool_m(robot, turned), tool_m(robot, start), atol=1e-3)
    assert np.abs(turned - start).max() > 0.1


class Once(InterventionController):
    """The arm of episode 0 goes back at decision 2; progress is made from then on."""

    def __init__(self) -> None:
        reward_model = Says(0.1, 0.1, *(0.1 + 0.06 * np.arange(30)))
        super().__init__(RETRIED, seed=0, remaining=1.0, scorer=reward_model, views=(0,))

    def _plan(self, number):
        return super()._plan(number)._replace(retries=number == 0)


def test_what_the_arm_did_by_itself_is_kept_as_such() -> None:
    policy = small_policy(none.Config())
    tried, plain = collect_rollouts(
        policy, pick_place.Config(), episodes=2, seed=5, version=0, num_envs=2, controller=Once()
    )
    assert tried.action_source.tolist()[:6] == [
        ActionSource.POLICY,
        ActionSource.POLICY,
        ActionSource.RETRACE,
        ActionSource.RETRACE,
        ActionSource.RETRACE,
        ActionSource.OFFSET_RETRY,
    ]
    assert tried.is_policy_action[-1]
    assert not plain.is_retry.any()
    home = tried.proprio[0]
    ends = [np.abs(tried.actions[t][-1] - home).max() for t in (2, 3, 4)]
    assert ends[2] < 1e-5 < ends[0]
    # The moments of the way back are a lesson of a success, and what led to it is not.
    assert tried.bc_indices(success=True)[0] == tried.decision_index[2]
    assert tried.bc_indices(success=False).tolist() == []
