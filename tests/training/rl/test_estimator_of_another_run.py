"""A run whose value function reads the state that another run learned to estimate."""

import shutil
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from sim.backends import ros
from tests.training.rl.runs import ALGOS, config, start
from training.core import loop
from training.core.config import EvalConfig
from training.rl.experience import episode_store
from training.rl.value.chunk_value import ValueConfig
from training.rl.value.state_estimator import FILE, StateEstimator
from vla import checkpoint

QUICK = EvalConfig(every=0, final_episodes=0)


@pytest.fixture(scope="module")
def simulated(begun, tmp_path_factory):
    """Return a run in simulation."""
    out = tmp_path_factory.mktemp("simulated") / "run"
    loop.run(config("asymmetric_ac", eval=QUICK), start(begun, out), out, Console(quiet=True))
    return out


def reading(run, **changes):
    """Return a run that reads the estimate of another."""
    algo = ALGOS["asymmetric_ac"]
    algo = replace(algo, value=replace(algo.value, estimator=str(run)))
    return replace(config("asymmetric_ac", eval=QUICK, **changes), algo=algo)


def test_it_needs_no_simulator_and_leaves_the_estimate_as_it_is(simulated, begun, tmp_path) -> None:
    place = replace(start(begun, tmp_path), policy=simulated)
    loop.run(reading(simulated), place, tmp_path / "run", Console(quiet=True))
    rollouts = episode_store.read_newest(place.experience, 4)
    assert all(e.simulator_state.size == 0 and e.features.size for e in rollouts)
    before = StateEstimator.load(simulated / "checkpoint" / FILE).state_dict()
    after = StateEstimator.load(tmp_path / "run/checkpoint" / FILE).state_dict()
    assert all(torch.equal(before[name], value) for name, value in after.items())
    assert before["linear"].any()


def test_its_first_rollouts_may_be_those_of_the_simulation(simulated, begun, tmp_path) -> None:
    also = replace(start(begun, tmp_path), policy=simulated, prior_runs=(simulated / "experience",))
    run = reading(simulated, reward="sparse")
    learner = run.algo.start(run, also)
    learner.collect()
    assert len(learner.runner.episodes) == 6
    assert learner.replay.simulator.numel() == 0


def test_a_policy_that_sees_otherwise_is_refused(simulated, begun, tmp_path) -> None:
    policy, origin = checkpoint.load(begun / "start")
    weights = policy.state_dict()
    name = next(n for n in weights if n.startswith("backbone.") and "pool" not in n)
    weights[name] = weights[name] + 1
    checkpoint.save(policy, origin, tmp_path / "other", weights)
    place = replace(start(begun, tmp_path), policy=tmp_path / "other")
    with pytest.raises(ValueError, match=rf"whose policy sees otherwise \({name} differs\)"):
        reading(simulated).algo.start(reading(simulated), place)


@pytest.mark.parametrize("algo", ["asymmetric_ac", "residual_ac"])
def test_a_policy_of_which_other_last_layers_learned_is_accepted(
    algo, simulated, begun, tmp_path
) -> None:
    policy, origin = checkpoint.load(begun / "start")
    moved = {
        name: weight + 0.1 if name.startswith(("backbone.pool", "head")) else weight
        for name, weight in policy.state_dict().items()
    }
    checkpoint.save(policy, origin, tmp_path / "other", moved)
    place = replace(start(begun, tmp_path), policy=tmp_path / "other")
    run = replace(
        reading(simulated), algo=replace(ALGOS[algo], value=reading(simulated).algo.value)
    )
    assert run.algo.start(run, place).value.estimator is not None


def test_an_estimate_that_was_never_fitted_is_refused(simulated, begun, tmp_path) -> None:
    shutil.copytree(simulated, tmp_path / "copy")
    estimator = StateEstimator.load(tmp_path / "copy/checkpoint" / FILE)
    estimator.linear.zero_()
    estimator.save(tmp_path / "copy/checkpoint" / FILE)
    with pytest.raises(ValueError, match="it was never fitted"):
        reading(tmp_path / "copy").algo.start(reading(tmp_path / "copy"), start(begun, tmp_path))


def test_a_run_without_an_estimate_is_refused(simulated, begun, tmp_path) -> None:
    shutil.copytree(simulated, tmp_path / "copy")
    file = tmp_path / "copy/checkpoint" / FILE
    for damage in (lambda: file.write_bytes(b"{}"), file.unlink):
        damage()
        run, policy = reading(tmp_path / "copy"), start(begun, tmp_path)
        with pytest.raises(ValueError, match="got no estimate of the state that can be read"):
            run.algo.start(run, policy)
    with pytest.raises(ValueError, match="got an estimator and state 'features'"):
        ValueConfig(state="features", estimator=str(simulated))


def test_an_arm_without_an_estimate_is_refused(begun, tmp_path) -> None:
    run = config("asymmetric_ac", backend=ros.Config())
    with pytest.raises(ValueError, match="the ros backend has no privileged state: .*estimator"):
        run.algo.start(run, start(begun, tmp_path))
