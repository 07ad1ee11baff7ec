"""Driving with delayed decisions: with none it is an evaluation, and what was measured is kept."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.training import latency_sweep
from benchmarks.training.latency_sweep import BenchArgs, Cell, Outcome, drive
from sim import vec_env
from sim.tasks import cue_colour, reach
from tests.training.small_policy import small_policy
from training.evaluation.evaluate import evaluate
from vla import checkpoint
from vla.contracts import config as configs
from vla.memory import gru, none
from vla.runtime.rtc_scheduler import MODES, RealtimeConfig

TASK = reach.Config()


@pytest.fixture(scope="module")
def policy():
    return small_policy(none.Config(), prefix=8)


@pytest.fixture(scope="module")
def folder(policy, tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("policy") / "checkpoint"
    origin = checkpoint.provenance(configs.to_json(TASK), cue_colour.INSTRUCTIONS, 7)
    checkpoint.save(policy, origin, place, policy.state_dict())
    return place


@pytest.fixture
def executed(monkeypatch):
    """Return the list of all actions that environments execute, filled as they do."""
    actions: list[np.ndarray] = []
    make = vec_env.make

    def watched(*names, **more):
        env = make(*names, **more)
        step_chunk = env.step_chunk

        def step(chunk, use_expert, frozen):
            found = step_chunk(chunk, use_expert, frozen)
            actions.extend(chunk[0, : int(found.info["steps"][0])])
            return found

        env.step_chunk = step
        return env

    monkeypatch.setattr(vec_env, "make", watched)
    return actions


@pytest.mark.parametrize("mode", ["synchronous", "skip", "trained"])
def test_without_a_delay_it_is_an_evaluation(policy, mode, executed) -> None:
    config = RealtimeConfig(mode=mode, n_action_steps=policy.n_action_steps)
    found = drive(policy, TASK, config, episodes=2, seed=3)
    ours, _ = np.stack(executed), executed.clear()
    expected = evaluate(policy, TASK, episodes=2, seed=3, environments=1)
    assert (found.success, found.steps) == (expected.success, expected.steps)
    np.testing.assert_allclose(ours, np.stack(executed), rtol=0, atol=1e-5)
    executed.clear()
    drive(
        policy, TASK, RealtimeConfig(mode=mode, n_action_steps=policy.n_action_steps, delay=2), 2, 3
    )
    assert np.abs(ours - np.stack(executed)).max() > 1e-2  # a delay is seen in what is done


@pytest.mark.parametrize("mode", MODES)
def test_a_delay_changes_what_is_done_and_the_first_targets_are_the_measured_pose(policy, mode):
    seen = []

    class Watched:
        def __getattr__(self, name):
            return getattr(policy, name)

        def act(self, obs, state, noise, prefix=None):
            seen.append((float(obs.time_s[0]), prefix))
            return policy.act(obs, state, noise, prefix)

    config = RealtimeConfig(mode=mode, n_action_steps=8, delay=4)
    found = drive(Watched(), TASK, config, episodes=1, seed=3)
    assert len(found.steps) == len(found.jump) == 1
    times = np.array([time for time, _ in seen])
    assert times[:3] == pytest.approx([0.0, 1.2, 2.4 if mode == "synchronous" else 2.0])
    has = [prefix is not None for _, prefix in seen]
    assert has == [False, *[mode in ("trained", "guided")] * (len(seen) - 1)]


def test_a_policy_that_remembers_decides_at_the_pace_it_was_trained_for() -> None:
    with pytest.raises(ValueError, match="got 4, .* this policy was trained with one every 8"):
        latency_sweep.check(small_policy(), RealtimeConfig(mode="skip", n_action_steps=4))
    assert latency_sweep.pace(small_policy(gru.Config())) == 8
    assert latency_sweep.pace(small_policy(none.Config())) == 0


def test_nothing_is_measured_twice_and_all_seeds_are() -> None:
    args = BenchArgs(
        policies=(Path("a"), Path("b")), delays=(0, 4), n_action_steps=8, rates=(4, 8), rate_delay=4
    )
    found = latency_sweep.cells(args)
    assert len(set(found)) == len(found) == 2 * len(MODES) * 3


def test_the_bench_writes_a_page_and_goes_on_where_it_was(folder, tmp_path, monkeypatch) -> None:
    words = [str(folder), "--episodes", "1", "--modes", "skip", "trained", "--delays", "0", "2",
             "--n-action-steps", "8", "--rates", "4", "--rate-delay", "2", "--processes", "1",
             "--out", str(tmp_path / "out")]  # fmt: skip
    assert latency_sweep.main(words) == 0
    told = json.loads((tmp_path / "out/realtime.json").read_text())
    assert len(told) == 6
    assert {(one["mode"], one["delay"], one["n_action_steps"]) for one in told} == {
        (mode, *way) for mode in ("skip", "trained") for way in ((0, 8), (2, 8), (2, 4))
    }
    assert all(one["of"] == 1 for one in told)
    page = (tmp_path / "out/realtime.html").read_text()
    assert "frequency-averaged score" in page
    assert "trained prefix" in page
    kept = sorted((tmp_path / "out/cells").iterdir())
    kept[0].unlink()
    driven: list[Cell] = []

    def again(cell, episodes, seed):
        driven.append(cell)
        return Outcome(success=[True], steps=[5], jump=[0.1])

    monkeypatch.setattr(latency_sweep, "_cell", again)
    assert latency_sweep.main(words) == 0
    assert len(driven) == 1  # the others are still there
    assert sorted((tmp_path / "out/cells").iterdir()) == kept


def test_success_is_pooled_over_policies_and_the_jump_is_a_median() -> None:
    way = RealtimeConfig(mode="skip")
    found = latency_sweep.pooled(
        {
            Cell(Path("a"), way): Outcome([True, False], [3, 4], [0.1, 0.2]),
            Cell(Path("b"), way): Outcome([True, True], [3, 4], [0.3, 0.9]),
        }
    )
    assert found[way] == latency_sweep.Rate(3, 4, pytest.approx(0.25))
    assert found[way].text() == "75.0% (30.1 to 95.4)"
