"""Practice end to end in seconds: rounds, what is learned from, stopping and going on."""

import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from reward_models.label.practice import make_critic
from tests.training.rl.made_up import episode
from tests.training.rl.runs import ALGOS, config, start
from tests.training.tiny_run import tiny_config
from training import loop
from training.config import EvalConfig
from training.metrics import read_metrics
from training.optimiser import Optimiser
from training.rl import store
from training.rl.config import RuntimeConfig
from training.rl.help import HelpConfig
from vla import checkpoint


@pytest.mark.parametrize("algo", ALGOS)
def test_every_round_practises_and_is_kept_and_told(algo, begun, tmp_path) -> None:
    (result,) = loop.run(
        config(algo), start(begun, tmp_path), tmp_path / "run", Console(quiet=True)
    )
    assert len(result.success) == 2
    assert store.rounds(tmp_path / "experience") == ["round-000000", "round-000001"]
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    told = {row["step"]: row["practice/episodes"] for row in rows if "practice/episodes" in row}
    assert told == {1: 2.0, 2: 2.0, 3: 4.0, 4: 4.0}
    later = store.read_round(tmp_path / "experience", "round-000001")
    assert [e.version for e in later] == [2, 2]
    assert later[0].seed == 20_001


# With processes it stops after it took its second round, and before it was saved that it did.
@pytest.mark.parametrize(
    ("algo", "done", "apart"), [*((algo, 3, False) for algo in ALGOS), ("filtered_bc", 2, True)]
)
def test_a_run_that_stopped_ends_with_the_same_weights(algo, done, apart, begun, tmp_path) -> None:
    def weights(out):
        return torch.cat([
            p.flatten() for p in checkpoint.load(out)[0].state_dict().values() if p.dim()
        ])  # fmt: skip

    def rounds(out):
        """What every row tells of its round; as text, in which a NaN is a NaN."""
        names = ("practice/", "health/")
        rows = [{k: v for k, v in row.items() if k.startswith(names)} for row in read_metrics(out)]
        return json.dumps(rows)

    run = config(algo, runtime=RuntimeConfig(processes=apart))
    place = start(begun, tmp_path / "b")
    loop.run(run, start(begun, tmp_path / "a"), tmp_path / "a/run", Console(quiet=True))
    step = Optimiser.step_

    def stops(self, loss):
        if self.count == done:
            raise KeyboardInterrupt
        return step(self, loss)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Optimiser, "step_", stops)
        with pytest.raises(KeyboardInterrupt):
            loop.run(run, place, tmp_path / "b/run", Console(quiet=True))
    loop.run(run, place, tmp_path / "b/run", Console(quiet=True))
    assert torch.equal(weights(tmp_path / "a/run"), weights(tmp_path / "b/run"))
    assert rounds(tmp_path / "a/run") == rounds(tmp_path / "b/run")


def test_only_what_the_reward_takes_for_success_is_cloned(begun, tmp_path) -> None:
    learner = config().algo.start(config(), start(begun, tmp_path))
    learner.collect()
    for one in learner.rounds.worth:
        object.__setattr__(one, "success", False)
    assert learner.lessons() == []
    assert len(learner.collect().task) == 4
    good = learner.rounds.episodes[1]
    object.__setattr__(learner.rounds.worth[1], "success", True)
    ((episode, moments),) = learner.lessons()
    assert episode is good
    assert moments.tolist() == list(range(len(good)))
    seen = torch.from_numpy(good.images[:-1])
    last = [drawn.images[-len(good) :] for drawn in (learner.collect() for _ in range(20))]
    assert any(images.shape == seen.shape and torch.equal(images, seen) for images in last)


@pytest.mark.parametrize("algo", ALGOS)
def test_what_makes_no_sense_is_refused(algo, begun, tmp_path) -> None:
    run = config(algo, reward="critic")
    with pytest.raises(ValueError, match="reward 'critic' needs a critic; give one with --critic"):
        run.algo.start(run, start(begun, tmp_path))
    with pytest.raises(ValueError, match="use `vla train rl`"):
        ALGOS[algo].start(tiny_config(), begun / "demos")
    with pytest.raises(ValueError, match="as many steps in every round"):
        config(steps=5)


@pytest.mark.parametrize("algo", ALGOS)
def test_a_later_run_learns_from_an_earlier_one_as_well(algo, begun, tmp_path) -> None:
    place = start(begun, tmp_path / "a")
    loop.run(config(algo), place, tmp_path / "a/run", Console(quiet=True))
    also = replace(start(begun, tmp_path / "b"), earlier=(place.experience,))
    run = config(algo, reward="sparse", earlier=3)
    learner = run.algo.start(run, also)
    learner.collect()
    # Three of the four of the earlier run, by this run's reward, and two of its own.
    assert [e.number for e in learner.rounds.episodes] == [1, 0, 1, 0, 1]
    assert all((w.potential == 0).all() for w in learner.rounds.worth)
    assert learner.figures["practice/episodes"] == 2
    assert store.rounds(also.experience) == ["round-000000"]


def test_experience_of_another_kind_is_refused(begun, tmp_path) -> None:
    store.write_round(tmp_path / "other", "round-000000", [episode(2)])
    also = replace(start(begun, tmp_path), earlier=(tmp_path / "other",))
    with pytest.raises(ValueError, match=r"other: actions of shape \(2, 2\), this policy has"):
        config().algo.start(config(), also)


def test_a_critic_rewards_calls_for_help_and_is_audited(begun, tmp_path) -> None:
    watched = HelpConfig(attended=1.0, patience=1)
    place = replace(start(begun, tmp_path), critic=make_critic(tmp_path / "critic"))
    run = config(reward="critic", help=watched, eval=EvalConfig(every=0, final_episodes=0))
    loop.run(run, place, tmp_path / "run", Console(quiet=True))
    told = [json.loads(row) for row in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    # Fresh weights see no progress: help comes, and is learned from whatever they claim.
    assert told[-1]["practice/helped"] > 0.2
    assert 0 <= told[-1]["practice/foreign"] <= 1
    kept = store.read_round(place.experience, "round-000001")
    assert all(e.helped.any() and not e.helped[0] for e in kept)


def test_a_run_goes_on_where_a_person_could_help_and_nobody_comes(begun, tmp_path, capsys) -> None:
    alone = HelpConfig(by="human", answer_s=0.0)
    run = config(help=alone, eval=EvalConfig(every=0, final_episodes=0))
    assert (config().side_by_side, run.side_by_side) == (2, 1)
    loop.run(run, start(begun, tmp_path), tmp_path / "run", Console(quiet=True))
    said = capsys.readouterr().err
    assert said.count("a person can watch and take over: http://127.0.0.1:") == 1
    assert "a person acted in 0 of 4 episodes and in 0% of decisions" in said
    assert all(e.own.all() for e in store.read_newest(tmp_path / "experience", 4))


def test_a_run_does_not_go_on_with_another_reward_than_it_was_begun_with(begun, tmp_path) -> None:
    def place(name):
        return replace(start(begun, tmp_path), critic=make_critic(tmp_path / name))

    quick = EvalConfig(every=0, final_episodes=0)
    run, out = config(reward="critic", eval=quick), tmp_path / "run"
    loop.run(run, place("critic"), out, Console(quiet=True))
    with pytest.raises(
        ValueError, match=r"cannot continue .*begun with critic .*critic, now .*critic-b\)"
    ):
        loop.run(run, place("critic-b"), out, Console(quiet=True))
