"""Interventions and jump starts: when they begin, how often they come, how they shrink."""

import numpy as np
import pytest

from sim.backends import ros
from tests.training.rl.fake_rollouts import Says, control, groups
from training.rl.config import OnlineRLConfig, RuntimeConfig
from training.rl.intervention.intervention import EpisodeControlConfig, InterventionController
from training.rl.intervention_sources.expert import Expert
from vla.contracts.types import Observation


def seen(rows: int) -> Observation:
    return Observation(
        images=np.zeros((rows, 2, 4, 4, 3), np.uint8), image_ok=np.ones((rows, 2), np.bool_),
        proprio=np.zeros((rows, 6), np.float32), task=("go",) * rows, time_s=np.zeros(rows),
    )  # fmt: skip


def helper(config: EpisodeControlConfig, scorer=None, left: float = 1.0) -> InterventionController:
    return InterventionController(config, seed=3, remaining=left, scorer=scorer, views=(0, 1))


def helped(one: InterventionController, rows: int, decision: int) -> np.ndarray:
    numbers = np.arange(rows)
    return one.needs_intervention(seen(rows), numbers, numbers, np.full(rows, decision))


def asked(config: EpisodeControlConfig, *values: float) -> list[bool]:
    one = helper(config, Says(*values))
    return [bool(helped(one, 1, t)[0]) for t in range(len(values))]


def test_interventions_begin_when_progress_stalls_and_last() -> None:
    watched = control(intervention={"fraction": 1.0, "patience": 2})
    assert asked(watched, 0.1, 0.2, 0.22, 0.21, 0.5, 0.9) == [False] * 3 + [True] * 3
    assert asked(watched, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6) == [False] * 6


def test_where_the_reward_model_abstains_nothing_has_moved() -> None:
    watched = control(intervention={"fraction": 1.0, "patience": 2})
    assert asked(watched, 0.5, np.nan, np.nan, np.nan) == [False, False, True, True]


def test_without_a_source_there_is_no_intervention() -> None:
    assert asked(control(intervention={"fraction": 0.0}), 0.1, 0.1, 0.1, 0.1, 0.1) == [False] * 5


def test_the_fraction_is_the_share_of_episodes_with_interventions() -> None:
    rows = 400
    one = helper(control(intervention={"fraction": 0.25, "patience": 1}), Says(0.1, 0.1, 0.1))
    for t in range(3):
        found = helped(one, rows, t)
    assert 0.18 < found.mean() < 0.32


def test_another_episode_in_the_same_place_is_another_matter() -> None:
    one = helper(control(intervention={"fraction": 1.0, "patience": 1}), Says(0.1, 0.1))
    assert [helped(one, 1, t)[0] for t in (0, 1, 0)] == [False, True, False]


def given_up(config: EpisodeControlConfig, *values: float) -> list[bool]:
    one, here = helper(config, Says(*values)), np.zeros(1, np.int64)
    found = []
    for t in range(len(values)):
        helped(one, 1, t)
        found.append(bool(one.should_terminate(here)[0]))
    return found


def test_an_episode_is_given_up_once_progress_has_stood_still_for_long() -> None:
    stop = control(early_termination={"patience": 3}, intervention={"patience": 1})
    assert given_up(stop, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2) == [False] * 4 + [True] * 2
    assert given_up(stop, 0.1, 0.2, 0.2, 0.2, 0.5, 0.5) == [False] * 6


def test_an_episode_with_interventions_gets_no_retry() -> None:
    both = control(early_termination={"patience": 3}, intervention={"patience": 1, "fraction": 1.0})
    assert given_up(both, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1) == [False] * 6
    assert asked(both, 0.1, 0.1, 0.1, 0.1) == [False, True, True, True]


class Live(Expert):
    """Somebody who acts at every control step."""

    every_step = True


def test_who_gives_back_is_asked_again_where_progress_stands_still_again() -> None:
    watched = control(intervention={"fraction": 1.0, "patience": 2})
    for stand_in, after in ((Live(), [False, True]), (Expert(), [True, True])):
        one = InterventionController(
            watched, seed=3, remaining=1.0, scorer=Says(*[0.1] * 9), views=(0, 1), source=stand_in
        )
        assert [bool(helped(one, 1, t)[0]) for t in range(3)] == [False, False, True]
        one.on_intervention(0)
        assert [bool(helped(one, 1, t)[0]) for t in (3, 4)] == after


def leads(left: float) -> np.ndarray:
    rows = 200
    one = helper(control(jump_start={"fraction": 0.5, "max_guide_steps": 6}), left=left)
    return np.sum([helped(one, rows, t) for t in range(8)], axis=0)


def test_jump_starts_shrink_and_end() -> None:
    assert leads(1.0).max() == 6
    assert 0.3 < (leads(1.0) > 0).mean() < 0.55
    assert leads(0.5).max() == 3
    assert leads(0.0).max() == 0


def test_mistakes_get_a_sentence() -> None:
    with pytest.raises(ValueError, match="intervention.fraction: got 0.5 with reward 'sparse'"):
        OnlineRLConfig(reward="sparse", **groups(intervention={"fraction": 0.5}))
    with pytest.raises(ValueError, match="retry.fraction: got 0.5 with reward 'sparse'"):
        OnlineRLConfig(reward="sparse", **groups(retry={"fraction": 0.5}))
    with pytest.raises(
        ValueError, match="unknown intervention source 'humam': did you mean human?"
    ):
        control(intervention={"source": "humam"})
    # Waited for at the start and then for an answer, in one go: less than half.
    for answer_s in (150.0, 300.0):
        with pytest.raises(
            ValueError, match="expected less than half of runtime.heartbeat_timeout_s"
        ):
            OnlineRLConfig(
                **groups(intervention={"source": "human", "response_timeout_s": answer_s})
            )
    OnlineRLConfig(**groups(intervention={"source": "human", "response_timeout_s": 149.0}))
    with pytest.raises(ValueError, match="runtime.distributed: got True with backend 'ros'"):
        OnlineRLConfig(backend=ros.Config(), runtime=RuntimeConfig(distributed=True))
    assert OnlineRLConfig(backend=ros.Config(), num_envs=40).parallel_envs == 1
    with pytest.raises(
        ValueError, match="early_termination.patience: got 4 with reward 'dense_oracle'"
    ):
        OnlineRLConfig(reward="dense_oracle", **groups(early_termination={"patience": 4}))
    with pytest.raises(ValueError, match="jump_start.fraction: got 1.5, expected at most 1"):
        control(jump_start={"fraction": 1.5})
