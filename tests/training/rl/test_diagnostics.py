"""Training diagnostics: each warns beyond its bound, not within it, and once."""

import io
import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn

from tests.training.rl.fake_rollouts import episode
from tests.training.rl.runs import ALGOS, EXPLORING, config, start
from training.core import loop
from training.core.callbacks import Callbacks
from training.core.config import EvalConfig
from training.rl.diagnostics import policy_diagnostics, training_diagnostics
from training.rl.diagnostics.training_diagnostics import BOUNDS, TrainingDiagnostics

FINE = {
    "diagnostics/action_std": 0.3, "diagnostics/return_std": 0.4,
    "diagnostics/grad_norm_ratio": 2.0,
    "diagnostics/dormant_frac": 0.05, "diagnostics/staleness": 1.0, "diagnostics/kl": 0.05,
}  # fmt: skip
ILL = {
    "diagnostics/action_std": 0.001, "diagnostics/return_std": 0.0,
    "diagnostics/grad_norm_ratio": 40.0,
    "diagnostics/dormant_frac": 0.6, "diagnostics/staleness": 30.0, "diagnostics/kl": 2.0,
}  # fmt: skip


@pytest.mark.parametrize("name", BOUNDS)
def test_each_alarm_sounds_alone_and_is_silent_at_its_limit(name) -> None:
    assert training_diagnostics.out_of_bounds(FINE, BOUNDS) == []
    assert training_diagnostics.out_of_bounds({**FINE, name: ILL[name]}, BOUNDS) == [name]
    assert training_diagnostics.out_of_bounds({**FINE, name: BOUNDS[name].limit}, BOUNDS) == []
    assert training_diagnostics.out_of_bounds({name: float("nan")}, BOUNDS) == [name]
    said = training_diagnostics.warning(name, ILL[name], BOUNDS[name])
    assert f"{name} is {ILL[name]:.3g}, expected at" in said
    assert f" {BOUNDS[name].limit:g}: " in said
    assert "\n" not in said


def test_another_limit_changes_one_alarm() -> None:
    strict = training_diagnostics.with_limits(staleness=0.5)
    assert training_diagnostics.out_of_bounds(FINE, strict) == ["diagnostics/staleness"]
    assert strict["diagnostics/kl"] == BOUNDS["diagnostics/kl"]


def test_spread_is_that_of_draws_at_the_same_state() -> None:
    rng = np.random.default_rng(0)
    states = 5 * rng.standard_normal((20, 1, 4, 2))
    assert training_diagnostics.action_std(np.repeat(states, 8, 1)) < 1e-9
    noise = rng.choice([-0.3, 0.3], (20, 1, 4, 2)) * np.array([1, -1] * 4)[None, :, None, None]
    assert training_diagnostics.action_std(states + noise) == pytest.approx(0.3)


def test_dormant_units_are_those_far_below_the_mean_of_their_layer() -> None:
    # Means 1.0 and 0.1: limits 0.025 and 0.0025. Two of six units lie below.
    layers = [np.array([2.0, 1.98, 0.02, 0.0]) * 1.0, np.array([0.1, 0.1])]
    assert training_diagnostics.dormant_frac(layers) == pytest.approx(2 / 6)
    assert training_diagnostics.dormant_frac([np.zeros(4)]) == 1.0


def test_activities_are_collected_while_the_block_runs_and_only_there() -> None:
    network = nn.Sequential(nn.Linear(2, 3), nn.SiLU(), nn.Linear(3, 1))
    with torch.no_grad():
        network[0].weight.zero_()
        network[0].bias.copy_(torch.tensor([0.0, 5.0, -9.0]))
    with policy_diagnostics.activity(network) as found:
        network(torch.ones(4, 2))
        network(torch.ones(2, 2))
    network(torch.ones(2, 2))
    # silu(5) = 4.97, silu(-9) = -0.0011.
    (layer,) = found
    np.testing.assert_allclose(layer, [0.0, 4.9665, 0.0011], atol=1e-4)
    assert training_diagnostics.dormant_frac(found) == pytest.approx(2 / 3)


def test_the_divergence_of_equal_gaussians_by_hand() -> None:
    mean, other = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 1.8]])
    # (0 + 0.04) / 2 / (2 * 0.01) = 1
    assert policy_diagnostics.gaussian_kl(mean, other, 0.1) == pytest.approx(1.0)


def test_a_gradient_is_held_against_the_median_of_those_before() -> None:
    diagnostics = TrainingDiagnostics(updates=10)
    for norm in [50.0] + [1.0] * (training_diagnostics.MIN_UPDATES - 1):
        diagnostics.add_update(norm)
    assert diagnostics.metrics()["diagnostics/grad_norm_ratio"] == 1.0  # too few to tell
    diagnostics.add_update(3.0)
    diagnostics.add_update(1.0)
    assert diagnostics.metrics()["diagnostics/grad_norm_ratio"] == 3.0
    diagnostics.begin_iteration()
    assert diagnostics.metrics()["diagnostics/grad_norm_ratio"] == 1.0


def test_age_is_told_in_rounds_and_goes_on_where_it_was() -> None:
    diagnostics, again = TrainingDiagnostics(updates=10), TrainingDiagnostics(updates=10)
    diagnostics.add_samples([0, 5])
    diagnostics.add_update(1.0)
    again.restore(json.loads(json.dumps(diagnostics.state())))
    for one in (diagnostics, again):
        one.add_samples([25, 10])
    assert (
        diagnostics.metrics()
        == again.metrics()
        == {"diagnostics/grad_norm_ratio": 1.0, "diagnostics/staleness": 1.0}
    )


def test_states_are_spread_over_some_episodes_with_the_paths_taken_there() -> None:
    latest = [episode(t, number=t) for t in (1, 20, 3, 2, 9)]
    episodes, places, paths = policy_diagnostics.states(latest)
    assert [len(e) for e in episodes] == [1, 20, 3, 2]
    assert [len(p) for p in places] == [1, 8, 3, 2]
    assert places[1][[0, -1]].tolist() == [0, 19]
    assert len(paths) == 14
    np.testing.assert_array_equal(paths[8], latest[1].latents[19])


def started(algo, begun, tmp_path, **changes):
    run = config(algo, **changes)
    learner, said = run.algo.start(run, start(begun, tmp_path)), []
    learner.callbacks = Callbacks(on_warning=said.append, on_status=said.append)
    return learner, said


@pytest.mark.parametrize("algo", [name for name in ALGOS if name not in EXPLORING])
def test_the_first_round_is_the_start_policys_and_a_later_one_has_moved(
    algo, begun, tmp_path
) -> None:
    learner, said = started(algo, begun, tmp_path)
    learner.collect_rollouts_if_due()
    assert said == ["collecting 2 rollouts, iteration 1 of 2", ""]
    first = learner.rollout_metrics
    assert first["diagnostics/kl"] == pytest.approx(0.0, abs=1e-6)
    assert first["diagnostics/action_std"] > 0.005
    assert 0 <= first["diagnostics/dormant_frac"] < 0.25
    learns = [p for p in learner.policy.parameters() if p.requires_grad]
    with torch.no_grad():
        for weight in learns:
            weight.add_(0.1)
    assert learner._policy_diagnostics()["diagnostics/kl"] > 1e-3


def test_a_policy_that_acts_alike_whatever_is_drawn_has_no_spread(begun, tmp_path) -> None:
    learner, said = started("filtered_bc", begun, tmp_path)
    with torch.no_grad():
        learner.policy.head.denoiser.leave[1].weight.zero_()
    learner.collect_rollouts_if_due()
    assert (
        learner.rollout_metrics["diagnostics/action_std"] < 0.005
    )  # although practice draws at every transition
    learner.log_metrics({"grad_norm": 1.0})
    learner.log_metrics({"grad_norm": 1.0})
    assert sum("diagnostics/action_std is" in line for line in said) == 1


def test_samples_are_as_old_as_the_updates_since_and_those_of_other_runs_as_this_one(
    begun, tmp_path
) -> None:
    learner, _ = started("dppo", begun, tmp_path)
    learner.collect_rollouts_if_due()
    learner.runner.num_prior, learner.updates = 1, 6
    learner.count_samples(learner.runner.episodes)
    assert learner.diagnostics.ages == 10
    object.__setattr__(learner.runner.episodes[1], "version", 4)
    learner.count_samples(learner.runner.episodes)
    assert learner.diagnostics.ages == 10 + 5 + 1
    # Mean age 4 updates, two to a round: too old for ratios of the latest policy.
    assert "diagnostics/staleness_alarm" in learner.log_metrics({"grad_norm": 1.0})


def test_a_round_in_which_all_earn_alike_is_told_on_the_console_and_in_the_figures(
    begun, tmp_path
) -> None:
    text = io.StringIO()
    run = config(
        reward="sparse", n_iterations=1, steps=2, eval=EvalConfig(every=0, final_episodes=0)
    )
    console = Console(file=text, width=60)
    loop.run(
        replace(run, episodes_per_iteration=1), start(begun, tmp_path), tmp_path / "run", console
    )
    alarms = [row for row in text.getvalue().splitlines() if row.startswith("alarm:")]
    (told,) = [row for row in alarms if "return_std" in row]
    assert "diagnostics/return_std is 0, expected at least 0.01: " in told
    assert told.endswith("what `vla eval --pass-at 8` says")
    rows = [json.loads(row) for row in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["diagnostics/return_std_alarm"] for row in rows] == [1.0, 1.0]
    assert all(set(BOUNDS) <= set(row) for row in rows)
    assert "diagnostics/kl_alarm" not in rows[-1]
