"""Online RL end to end in seconds: iterations, what is learned from, stopping and resuming."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks.reward_models.synthetic_dataset import make_reward_model
from tests.training.rl.conftest import TASK
from tests.training.rl.fake_rollouts import episode, groups
from tests.training.rl.runs import ALGOS, config, start
from tests.training.tiny_run import tiny_config
from training.core import loop
from training.core.config import EvalConfig
from training.core.metrics import read_metrics
from training.core.optimizer import Optimizer
from training.data import demos
from training.rl.config import RuntimeConfig
from training.rl.experience import episode_store
from vla import checkpoint
from vla.backbones import tiny
from vla.memory import none
from vla.policies import vla


@pytest.mark.parametrize("algo", ALGOS)
def test_every_iteration_collects_stores_and_reports(algo, begun, tmp_path) -> None:
    (result,) = loop.run(
        config(algo), start(begun, tmp_path), tmp_path / "run", Console(quiet=True)
    )
    assert len(result.success) == 2
    assert episode_store.iterations(tmp_path / "experience") == ["round-000000", "round-000001"]
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    told = {row["step"]: row["rollout/episodes"] for row in rows if "rollout/episodes" in row}
    assert told == {1: 2.0, 2: 2.0, 3: 4.0, 4: 4.0}
    later = episode_store.read_iteration(tmp_path / "experience", "round-000001")
    assert [e.version for e in later] == [2, 2]
    assert later[0].seed == 20_001


def with_queries(place):
    """Return a folder with demonstrations and a policy with queries that started from them."""
    demos.record_demos(demos.DemosConfig(out=place / "demos", task=TASK, episodes=3))
    small = vla.Config(
        chunk_size=4, n_action_steps=4, backbone=tiny.Config(queries=2), memory=none.Config()
    )
    clone = tiny_config(task=TASK, policy=small, steps=2)
    clone = replace(clone, algo=replace(clone.algo, short_decisions=0))
    loop.run(clone, place / "demos", place / "start", Console(quiet=True))
    return place


def test_demonstrations_go_on_teaching_where_to_look(tmp_path) -> None:
    """A policy with queries; without their loss it soon looks elsewhere."""
    with_queries(tmp_path)
    run = config("filtered_bc")
    loop.run(run, start(tmp_path, tmp_path), tmp_path / "run", Console(quiet=True))
    rows = [row for row in read_metrics(tmp_path / "run") if "loss" in row]
    assert [row["grounding_loss"] > 0 for row in rows] == [True] * 4
    rollouts = episode_store.read_iteration(tmp_path / "experience", "round-000000")
    for rollout in rollouts:
        assert rollout.referents.shape == (len(rollout.step), 2, 2, 2)
        assert np.isnan(rollout.referents).all((1, 2, 3)).tolist() == [False] * rollout.steps + [
            True
        ]
    assert not any(rollout.success for rollout in rollouts)
    blind = replace(run, algo=replace(run.algo, grounding_loss_coef=0.0))
    place = start(tmp_path, tmp_path / "b")
    loop.run(blind, place, tmp_path / "blind", Console(quiet=True))
    names = {name for row in read_metrics(tmp_path / "blind") for name in row}
    assert "grounding_loss" not in names
    (first, *_) = episode_store.read_iteration(place.experience, "round-000000")
    assert not first.referents.size


def test_failures_teach_where_to_look_and_nothing_else(tmp_path) -> None:
    begun = with_queries(tmp_path)
    run = config("filtered_bc")
    learner = run.algo.start(run, start(begun, tmp_path))
    batch = learner.collect()
    failed = batch.grounding_weight != batch.weight
    assert failed.sum() == run.algo.num_failures * run.algo.states_per_episode
    assert not batch.weight[failed].any()
    assert (batch.grounding_weight == 1).all()

    def losses(changed):
        learner.policy.eval()  # a batch's own statistics would tell of all its frames
        return learner.policy.bc_loss(changed, torch.Generator().manual_seed(0))[1]

    other = torch.where(failed[:, None, None], batch.actions + 1, batch.actions)
    moved = torch.where(failed[:, None, None, None], -batch.referents, batch.referents)
    before, acted, looked = (
        losses(b) for b in (batch, replace(batch, actions=other), replace(batch, referents=moved))
    )
    assert acted == before
    assert looked["loss"] == before["loss"]
    assert looked["grounding_loss"] != before["grounding_loss"]


def test_rollouts_of_filtered_bc_may_act_as_the_policy_is_used(begun, tmp_path) -> None:
    for stochastic in (True, False):
        run = config("filtered_bc")
        run = replace(run, algo=replace(run.algo, stochastic_denoising=stochastic))
        learner = run.algo.start(run, start(begun, tmp_path / str(stochastic)))
        learner.collect()
        moved = [np.abs(e.log_prob).max() > 0 for e in learner.runner.episodes]
        assert moved == [stochastic] * 2


# With processes it stops after it took its second round, and before it was saved that it did.
@pytest.mark.parametrize(
    ("algo", "done", "apart"),
    [*((algo, 3, False) for algo in ALGOS), ("filtered_bc", 2, True), ("asymmetric_ac", 2, True)],
)
def test_a_run_that_stopped_ends_with_the_same_weights(algo, done, apart, begun, tmp_path) -> None:
    def weights(out):
        return torch.cat([
            p.flatten() for p in checkpoint.load(out)[0].state_dict().values() if p.dim()
        ])  # fmt: skip

    def rounds(out):
        """What every row tells of its round; as text, in which a NaN is a NaN."""
        names = ("rollout/", "diagnostics/")
        rows = [{k: v for k, v in row.items() if k.startswith(names)} for row in read_metrics(out)]
        return json.dumps(rows)

    run = config(algo, runtime=RuntimeConfig(distributed=apart))
    place = start(begun, tmp_path / "b")
    loop.run(run, start(begun, tmp_path / "a"), tmp_path / "a/run", Console(quiet=True))
    step = Optimizer.step

    def stops(self, loss):
        if self.count == done:
            raise KeyboardInterrupt
        return step(self, loss)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Optimizer, "step", stops)
        with pytest.raises(KeyboardInterrupt):
            loop.run(run, place, tmp_path / "b/run", Console(quiet=True))
    loop.run(run, place, tmp_path / "b/run", Console(quiet=True))
    assert torch.equal(weights(tmp_path / "a/run"), weights(tmp_path / "b/run"))
    assert rounds(tmp_path / "a/run") == rounds(tmp_path / "b/run")


def test_only_what_the_reward_takes_for_success_is_cloned(begun, tmp_path) -> None:
    learner = config().algo.start(config(), start(begun, tmp_path))
    learner.collect()
    for one in learner.runner.rewards:
        object.__setattr__(one, "success", False)
    assert learner.bc_rollouts() == []
    assert len(learner.collect().task) == 4
    good = learner.runner.episodes[1]
    object.__setattr__(learner.runner.rewards[1], "success", True)
    ((episode, moments),) = learner.bc_rollouts()
    assert episode is good
    assert moments.tolist() == list(range(len(good)))
    seen = torch.from_numpy(good.images[:-1])
    last = [drawn.images[-len(good) :] for drawn in (learner.collect() for _ in range(20))]
    assert any(images.shape == seen.shape and torch.equal(images, seen) for images in last)


@pytest.mark.parametrize("algo", ALGOS)
def test_what_makes_no_sense_is_refused(algo, begun, tmp_path) -> None:
    run = config(algo, reward="learned")
    with pytest.raises(
        ValueError, match="reward 'learned' needs a reward model; give one with --reward-model"
    ):
        run.algo.start(run, start(begun, tmp_path))
    with pytest.raises(ValueError, match="use `vla train rl`"):
        ALGOS[algo].start(tiny_config(), begun / "demos")
    with pytest.raises(ValueError, match="as many steps in every iteration"):
        config(steps=5)


@pytest.mark.parametrize("algo", [name for name in ALGOS if not name.startswith("dppo")])
def test_a_later_run_learns_from_an_earlier_one_as_well(algo, begun, tmp_path) -> None:
    place = start(begun, tmp_path / "a")
    loop.run(config(algo), place, tmp_path / "a/run", Console(quiet=True))
    also = replace(start(begun, tmp_path / "b"), prior_runs=(place.experience,))
    run = config(algo, reward="sparse", max_prior_episodes=3)
    learner = run.algo.start(run, also)
    learner.collect()
    # Three of the four of the earlier run, by this run's reward, and two of its own.
    assert [e.number for e in learner.runner.episodes] == [1, 0, 1, 0, 1]
    assert all((w.potential == 0).all() for w in learner.runner.rewards)
    assert learner.rollout_metrics["rollout/episodes"] == 2
    assert episode_store.iterations(also.experience) == ["round-000000"]


def test_experience_of_another_kind_is_refused(begun, tmp_path) -> None:
    episode_store.write_iteration(tmp_path / "other", "round-000000", [episode(2)])
    also = replace(start(begun, tmp_path), prior_runs=(tmp_path / "other",))
    with pytest.raises(ValueError, match=r"other: actions of shape \(2, 2\), this policy has"):
        config().algo.start(config(), also)


def test_a_reward_model_gives_rewards_and_interventions_and_is_audited(begun, tmp_path) -> None:
    watched = groups(intervention={"fraction": 1.0, "patience": 1})
    place = replace(
        start(begun, tmp_path), reward_model=make_reward_model(tmp_path / "reward_model")
    )
    run = config(reward="learned", **watched, eval=EvalConfig(every=0, final_episodes=0))
    loop.run(run, place, tmp_path / "run", Console(quiet=True))
    told = [json.loads(row) for row in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    # Fresh weights see no progress: help comes, and is learned from whatever they claim.
    assert told[-1]["rollout/intervention_rate"] > 0.2
    assert 0 <= told[-1]["rollout/mismatched_success"] <= 1
    kept = episode_store.read_iteration(place.experience, "round-000001")
    assert all(e.is_intervention.any() and not e.is_intervention[0] for e in kept)


def test_a_run_continues_if_no_person_answers(begun, tmp_path, capsys) -> None:
    alone = groups(intervention={"source": "human", "response_timeout_s": 0.0})
    run = config(**alone, eval=EvalConfig(every=0, final_episodes=0))
    assert (config().parallel_envs, run.parallel_envs) == (2, 1)
    loop.run(run, start(begun, tmp_path), tmp_path / "run", Console(quiet=True))
    said = capsys.readouterr().err
    assert said.count("a person can watch and take over: http://127.0.0.1:") == 1
    assert "a person acted in 0 of 4 episodes and in 0% of decisions" in said
    assert all(
        e.is_policy_action.all() for e in episode_store.read_newest(tmp_path / "experience", 4)
    )


def test_a_run_does_not_go_on_with_another_reward_than_it_was_begun_with(begun, tmp_path) -> None:
    def place(name):
        return replace(start(begun, tmp_path), reward_model=make_reward_model(tmp_path / name))

    quick = EvalConfig(every=0, final_episodes=0)
    run, out = config(reward="learned", eval=quick), tmp_path / "run"
    loop.run(run, place("reward_model"), out, Console(quiet=True))
    with pytest.raises(
        ValueError,
        match=r"started from reward_model .*reward_model, now .*reward_model-b",
    ):
        loop.run(run, place("reward_model-b"), out, Console(quiet=True))
