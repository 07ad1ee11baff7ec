"""The curriculum of leads: most often where there is most to learn, and the same in any process."""

from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from tests.training.rl.made_up import Says, episode
from tests.training.rl.runs import config, start
from training import loop
from training.rl import curriculum, store
from training.rl.config import PracticeConfig, RuntimeConfig
from training.rl.experience import BACK, OTHER, Episode
from training.rl.help import HelpConfig, Helper
from training.rl.rewards import Worth


def led(lead: int, decisions: int = 6) -> Episode:
    by = np.zeros(decisions, np.int8)
    by[:lead] = OTHER
    return replace(episode(decisions), by=by)


def worth(success: bool) -> Worth:
    return Worth(reward=np.zeros(6), potential=np.zeros(7), success=success)


def test_the_lead_of_an_episode_is_what_somebody_else_did_before_the_policy() -> None:
    assert [curriculum.lead_of(led(n)) for n in (0, 2, 6)] == [0, 2, 6]


def test_before_anything_was_tried_every_lead_is_as_likely() -> None:
    np.testing.assert_allclose(curriculum.leads([], [], 3), [0.25] * 4)


def test_leads_are_drawn_where_success_is_neither_sure_nor_hopeless() -> None:
    """Lead 0 never succeeds, 4 does at times and 8 always, 40 times each; with kernels of width 1
    the others hardly reach them: shares are 0.5/41, 20.5/41 and 40.5/41.
    """
    tried = [(led(n, 10), worth(n == 8 or (n == 4 and k % 2 == 0)))
             for n in (0, 4, 8) for k in range(40)]  # fmt: skip
    found = curriculum.leads([e for e, _ in tried], [w for _, w in tried], 8)
    assert found.sum() == pytest.approx(1.0)
    assert found[4] / found[0] == pytest.approx(0.26 / (0.5 / 41 * 40.5 / 41 + 0.01), rel=0.02)
    assert found[4] / found[8] == pytest.approx(found[4] / found[0], rel=0.02)


@pytest.mark.parametrize("other", [OTHER, BACK])
def test_who_was_helped_after_the_lead_did_not_succeed_by_itself(other: int) -> None:
    helped, alone = led(1), led(1)
    helped.by[4] = other
    failed = curriculum.leads([alone] * 9, [worth(success=False)] * 9, 2)
    np.testing.assert_allclose(curriculum.leads([helped] * 9, [worth(success=True)] * 9, 2), failed)
    done = curriculum.leads([alone] * 9, [worth(success=True)] * 9, 2)
    assert done == pytest.approx(failed)  # s (1 - s) is symmetric
    mixed = curriculum.leads([alone, helped], [worth(success=True)] * 2, 2)
    assert mixed[1] > failed[1]


def test_a_helper_draws_the_leads_it_is_given() -> None:
    told = HelpConfig(led=1.0, lead=2, curriculum=True)
    one = Helper(told, seed=3, left=0.0, scorer=Says(), views=(0, 1),
                 leads=np.array([0.0, 0.25, 0.75]))  # fmt: skip
    drawn = [one._drawn(number).lead for number in range(400)]
    assert set(drawn) == {1, 2}
    assert drawn.count(2) / 400 == pytest.approx(0.75, abs=0.07)


def test_leads_are_kept_beside_the_rounds_and_damage_is_said(tmp_path) -> None:
    store.write_leads(tmp_path, 2, np.array([0.25, 0.75]))
    np.testing.assert_array_equal(store.read_leads(tmp_path, 2), [0.25, 0.75])
    (tmp_path / "leads-000002.json").write_text("[0.25,")
    for number in (1, 2):
        with pytest.raises(ValueError, match=r"leads-00000\d.json: missing or damaged"):
            store.read_leads(tmp_path, number)


def test_mistakes_get_a_sentence() -> None:
    with pytest.raises(ValueError, match="help.curriculum: got no leads to draw"):
        HelpConfig(curriculum=True)
    with pytest.raises(ValueError, match="help.curriculum: got runtime.lag 1"):
        PracticeConfig(
            help=HelpConfig(curriculum=True, led=1.0), runtime=RuntimeConfig(processes=True, lag=1)
        )


def test_a_round_begins_with_the_leads_that_were_kept(begun, tmp_path) -> None:
    run = config(help=HelpConfig(led=1.0, lead=3, curriculum=True), steps=2)
    place = start(begun, tmp_path)
    loop.run(run, place, tmp_path / "run", Console(quiet=True))
    kept = [store.read_leads(place.experience, number) for number in range(2)]
    assert kept[0].tolist() == [0.25] * 4
    assert kept[1].tolist() != kept[0].tolist()
    for number in range(2):
        made = store.read_round(place.experience, store.name_of(number))
        assert all(curriculum.lead_of(one) <= 3 for one in made)
