"""Alarms of practice: each sounds where it should, is silent where it should, and is said once."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from tests.training.rl.made_up import episode
from tests.training.rl.runs import ALGOS, config, start
from training import loop
from training.config import EvalConfig
from training.listener import Listener
from training.rl import health, probe
from training.rl.health import BOUNDS, Vitals

FINE = {
    "health/spread": 0.3, "health/return_std": 0.4, "health/gradient": 2.0,
    "health/dormant": 0.05, "health/staleness": 1.0, "health/kl": 0.05,
}  # fmt: skip
ILL = {
    "health/spread": 0.001, "health/return_std": 0.0, "health/gradient": 40.0,
    "health/dormant": 0.6, "health/staleness": 30.0, "health/kl": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDS)
def test_each_alarm_sounds_alone_and_is_silent_at_its_limit(name) -> None:
    assert health.sounding(FINE, BOUNDS) == []
    assert health.sounding({**FINE, name: ILL[name]}, BOUNDS) == [name]
    assert health.sounding({**FINE, name: BOUNDS[name].limit}, BOUNDS) == []
    assert health.sounding({name: float("nan")}, BOUNDS) == [name]
    said = health.line(name, ILL[name], BOUNDS[name])
    assert f"{name} is {ILL[name]:.3g}, expected at" in said
    assert f" {BOUNDS[name].limit:g}: " in said
    assert "\n" not in said


def test_another_limit_changes_one_alarm() -> None:
    strict = health.with_limits(staleness=0.5)
    assert health.sounding(FINE, strict) == ["health/staleness"]
    assert strict["health/kl"] == BOUNDS["health/kl"]


def test_spread_is_that_of_draws_at_the_same_state() -> None:
    rng = np.random.default_rng(0)
    states = 5 * rng.standard_normal((20, 1, 4, 2))
    assert health.spread(np.repeat(states, 8, 1)) < 1e-9
    noise = rng.choice([-0.3, 0.3], (20, 1, 4, 2)) * np.array([1, -1] * 4)[None, :, None, None]
    assert health.spread(states + noise) == pytest.approx(0.3)


def test_dormant_units_are_those_far_below_the_mean_of_their_layer() -> None:
    # Means 1.0 and 0.1: limits 0.025 and 0.0025. Two of six units lie below.
    layers = [np.array([2.0, 1.98, 0.02, 0.0]) * 1.0, np.array([0.1, 0.1])]
    assert health.dormant(layers) == pytest.approx(2 / 6)
    assert health.dormant([np.zeros(4)]) == 1.0


def test_activities_are_collected_while_the_block_runs_and_only_there() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.SiLU(), nn.Linear(3, 1))
    with torch.no_grad():
        network[0].weight.zero_()
        network[0].bias.copy_(torch.tensor([0.0, 5.0, -9.0]))
    with probe.activity(network) as found:
        network(torch.ones(4, 2))
        network(torch.ones(2, 2))
    network(torch.ones(2, 2))
    # silu(5) = 4.97, silu(-9) = -0.0011.
    (layer,) = found
    np.testing.assert_allclose(layer, [0.0, 4.9665, 0.0011], atol=1e-4)
    assert health.dormant(found) == pytest.approx(2 / 3)


def test_the_divergence_of_equal_gaussians_by_hand() -> None:
    mean, other = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.8]])
    # (0 + 0.04) / 2 / (2 * 0.01) = 1
    assert probe.gaussian_kl(mean, other, 0.1) == pytest.approx(1.0)


def test_a_gradient_is_held_against_the_median_of_those_before() -> None:
    vitals = Vitals(updates=10)
    for norm in [50.0] + [1.0] * (health.FEWEST - 1):
        vitals.step_(norm)
    assert vitals.figures()["health/gradient"] == 1.0  # too few to tell
    vitals.step_(3.0)
    vitals.step_(1.0)
    assert vitals.figures()["health/gradient"] == 3.0
    vitals.begin_()
    assert vitals.figures()["health/gradient"] == 1.0


def test_age_is_told_in_rounds_and_goes_on_where_it_was() -> None:
    vitals, again = Vitals(updates=10), Vitals(updates=10)
    vitals.draw_([0, 5])
    vitals.step_(1.0)
    again.restore_(json.loads(json.dumps(vitals.state())))
    for one in (vitals, again):
        one.draw_([25, 10])
    assert vitals.figures() == again.figures() == {"health/gradient": 1.0, "health/staleness": 1.0}


def test_states_are_spread_over_some_episodes_with_the_paths_taken_there() -> None:
    latest = [episode(t, number=t) for t in (1, 20, 3, 2, 9)]
    episodes, places, paths = probe.states(latest)
    assert [len(e) for e in episodes] == [1, 20, 3, 2]
    assert [len(p) for p in places] == [1, 8, 3, 2]
    assert places[1][[0, -1]].tolist() == [0, 19]
    assert len(paths) == 14
    np.testing.assert_array_equal(paths[8], latest[1].latents[19])


def started(algo, begun, tmp_path, **changes):
    run = config(algo, **changes)
    learner, said = run.algo.start(run, start(begun, tmp_path)), []
    learner.listener = Listener(say=said.append, doing=said.append)
    return learner, said


@pytest.mark.parametrize("algo", ALGOS)
def test_the_first_round_is_the_start_policys_and_a_later_one_has_moved(
    algo, begun, tmp_path
) -> None:
    learner, said = started(algo, begun, tmp_path)
    learner.practise_if_due_()
    assert said == ["practising 2 episodes, round 1 of 2", ""]
    first = learner.figures
    assert first["health/kl"] == pytest.approx(0.0, abs=1e-6)
    assert first["health/spread"] > 0.005
    assert 0 <= first["health/dormant"] < 0.25
    learns = [p for p in learner.policy.parameters() if p.requires_grad]
    with torch.no_grad():
        for weight in learns:
            weight.add_(0.1)
    assert learner._examined()["health/kl"] > 1e-3


def test_a_policy_that_acts_alike_whatever_is_drawn_has_no_spread(begun, tmp_path) -> None:
    learner, said = started("filtered_bc", begun, tmp_path)
    with torch.no_grad():
        learner.policy.head.denoiser.leave[1].weight.zero_()
    learner.practise_if_due_()
    assert learner.figures["health/spread"] < 0.005  # although practice draws at every transition
    learner.told({"grad_norm": 1.0})
    learner.told({"grad_norm": 1.0})
    assert sum("health/spread is" in line for line in said) == 1


def test_samples_are_as_old_as_the_updates_since_and_those_of_other_runs_as_this_one(
    begun, tmp_path
) -> None:
    learner, _ = started("dppo", begun, tmp_path)
    learner.practise_if_due_()
    learner.rounds.earlier, learner.updates = 1, 6
    learner.drawn_(learner.rounds.episodes)
    assert learner.vitals.ages == 10
    object.__setattr__(learner.rounds.episodes[1], "version", 4)
    learner.drawn_(learner.rounds.episodes)
    assert learner.vitals.ages == 10 + 5 + 1
    # Mean age 4 updates, two to a round: too old for ratios of the latest policy.
    assert "health/staleness_alarm" in learner.told({"grad_norm": 1.0})


def test_a_round_in_which_all_earn_alike_is_told_on_the_console_and_in_the_figures(
    begun, tmp_path
) -> None:
    text = io.StringIO()
    run = config(reward="sparse", rounds=1, steps=2, eval=EvalConfig(every=0, final_episodes=0))
    console = Console(file=text, width=60)
    loop.run(replace(run, episodes=1), start(begun, tmp_path), tmp_path / "run", console)
    alarms = [row for row in text.getvalue().splitlines() if row.startswith("alarm:")]
    (told,) = [row for row in alarms if "return_std" in row]
    assert "health/return_std is 0, expected at least 0.01: " in told
    assert told.endswith("what `vla eval --pass-at 8` says")
    rows = [json.loads(row) for row in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["health/return_std_alarm"] for row in rows] == [1.0, 1.0]
    assert all(set(BOUNDS) <= set(row) for row in rows)
    assert "health/kl_alarm" not in rows[-1]
