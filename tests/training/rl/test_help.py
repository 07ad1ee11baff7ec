"""Help in practice: leads shrink, and who attends is asked where nothing moves on."""

import numpy as np
import pytest

from sim.backends import ros
from tests.training.rl.made_up import Says
from training.rl.config import PracticeConfig, RuntimeConfig
from training.rl.help import HelpConfig, Helper
from training.rl.stand_ins.expert import Expert
from vla.contracts.types import Observation


def seen(rows: int) -> Observation:
    return Observation(
        images=np.zeros((rows, 2, 4, 4, 3), np.uint8), image_ok=np.ones((rows, 2), np.bool_),
        proprio=np.zeros((rows, 6), np.float32), task=("go",) * rows, time_s=np.zeros(rows),
    )  # fmt: skip


def helper(config: HelpConfig, scorer=None, left: float = 1.0) -> Helper:
    return Helper(config, seed=3, left=left, scorer=scorer, views=(0, 1))


def helped(one: Helper, rows: int, decision: int) -> np.ndarray:
    numbers = np.arange(rows)
    return one.helped(seen(rows), numbers, numbers, np.full(rows, decision))


def asked(config: HelpConfig, *values: float) -> list[bool]:
    one = helper(config, Says(*values))
    return [bool(helped(one, 1, t)[0]) for t in range(len(values))]


def test_help_comes_once_progress_stands_still_and_stays() -> None:
    watched = HelpConfig(attended=1.0, patience=2)
    assert asked(watched, 0.1, 0.2, 0.22, 0.21, 0.5, 0.9) == [False] * 3 + [True] * 3
    assert asked(watched, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6) == [False] * 6


def test_where_the_critic_abstains_nothing_has_moved() -> None:
    watched = HelpConfig(attended=1.0, patience=2)
    assert asked(watched, 0.5, np.nan, np.nan, np.nan) == [False, False, True, True]


def test_nobody_helps_where_nobody_attends() -> None:
    assert asked(HelpConfig(attended=0.0), 0.1, 0.1, 0.1, 0.1, 0.1) == [False] * 5


def test_the_budget_is_the_share_of_attended_episodes() -> None:
    rows = 400
    one = helper(HelpConfig(attended=0.25, patience=1), Says(0.1, 0.1, 0.1))
    for t in range(3):
        found = helped(one, rows, t)
    assert 0.18 < found.mean() < 0.32


def test_another_episode_in_the_same_place_is_another_matter() -> None:
    one = helper(HelpConfig(attended=1.0, patience=1), Says(0.1, 0.1))
    assert [helped(one, 1, t)[0] for t in (0, 1, 0)] == [False, True, False]


def given_up(config: HelpConfig, *values: float) -> list[bool]:
    one, here = helper(config, Says(*values)), np.zeros(1, np.int64)
    found = []
    for t in range(len(values)):
        helped(one, 1, t)
        found.append(bool(one.hopeless(here)[0]))
    return found


def test_an_episode_is_given_up_once_progress_has_stood_still_for_long() -> None:
    stop = HelpConfig(stop=3, patience=1)
    assert given_up(stop, 0.1, 0.2, 0.2, 0.2, 0.2, 0.2) == [False] * 4 + [True] * 2
    assert given_up(stop, 0.1, 0.2, 0.2, 0.2, 0.5, 0.5) == [False] * 6


def test_an_episode_that_is_attended_is_helped_instead() -> None:
    both = HelpConfig(stop=3, patience=1, attended=1.0)
    assert given_up(both, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1) == [False] * 6
    assert asked(both, 0.1, 0.1, 0.1, 0.1) == [False, True, True, True]


class Live(Expert):
    """Somebody who acts at every control step."""

    live = True


def test_who_gives_back_is_asked_again_where_progress_stands_still_again() -> None:
    watched = HelpConfig(attended=1.0, patience=2)
    for stand_in, after in ((Live(), [False, True]), (Expert(), [True, True])):
        one = Helper(watched, seed=3, left=1.0, scorer=Says(*[0.1] * 9), views=(0, 1),
                     stand_in=stand_in)  # fmt: skip
        assert [bool(helped(one, 1, t)[0]) for t in range(3)] == [False, False, True]
        one.meet_(0)
        assert [bool(helped(one, 1, t)[0]) for t in (3, 4)] == after


def leads(left: float) -> np.ndarray:
    rows = 200
    one = helper(HelpConfig(led=0.5, lead=6), left=left)
    return np.sum([helped(one, rows, t) for t in range(8)], axis=0)


def test_leads_shrink_and_end() -> None:
    assert leads(1.0).max() == 6
    assert 0.3 < (leads(1.0) > 0).mean() < 0.55
    assert leads(0.5).max() == 3
    assert leads(0.0).max() == 0


def test_mistakes_get_a_sentence() -> None:
    with pytest.raises(ValueError, match="help.attended: got 0.5 with reward 'sparse'"):
        PracticeConfig(reward="sparse", help=HelpConfig(attended=0.5))
    with pytest.raises(ValueError, match="help.retried: got 0.5 with reward 'sparse'"):
        PracticeConfig(reward="sparse", help=HelpConfig(retried=0.5))
    with pytest.raises(ValueError, match="unknown stand_in 'humam': did you mean human?"):
        HelpConfig(by="humam")
    # Waited for at the start and then for an answer, in one go: less than half.
    for answer_s in (150.0, 300.0):
        with pytest.raises(ValueError, match="expected less than half of runtime.silent_s"):
            PracticeConfig(help=HelpConfig(by="human", answer_s=answer_s))
    PracticeConfig(help=HelpConfig(by="human", answer_s=149.0))
    with pytest.raises(ValueError, match="runtime.processes: got True with backend 'ros'"):
        PracticeConfig(backend=ros.Config(), runtime=RuntimeConfig(processes=True))
    assert PracticeConfig(backend=ros.Config(), environments=40).side_by_side == 1
    with pytest.raises(ValueError, match="help.stop: got 4 with reward 'oracle'"):
        PracticeConfig(reward="oracle", help=HelpConfig(stop=4))
    with pytest.raises(ValueError, match="shares up to 1"):
        HelpConfig(led=1.5)
