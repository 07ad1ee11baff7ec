"""Practice in processes: the same run as in one, and nothing lost when a process is killed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from reward_models.label.practice import make_critic
from tests.training.rl.runs import ALGOS, config, start
from training import loop
from training.config import EvalConfig
from training.rl import store
from training.rl.config import RuntimeConfig
from training.rl.help import HelpConfig
from training.rl.processes import parts
from training.rl.processes.team import Team
from vla import checkpoint

QUICK = EvalConfig(every=0, final_episodes=0)
TIMED = {"seconds", "samples_per_s"}


def weights(out):
    state = checkpoint.load(out)[0].state_dict()
    return torch.cat([p.flatten() for p in state.values() if p.dim()])


def rows(out):
    told = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if k not in TIMED} for row in told]


def test_without_lag_processes_make_the_same_run_to_the_bit(begun, tmp_path) -> None:
    critic = make_critic(tmp_path / "critic")
    helped = HelpConfig(attended=1.0, patience=2, led=0.5, lead=2, curriculum=True)
    run = config(reward="critic", eval=QUICK, help=helped)
    apart = replace(run, runtime=RuntimeConfig(processes=True))
    for name, one in (("one", run), ("apart", apart)):
        place = replace(start(begun, tmp_path / name), critic=critic)
        loop.run(one, place, tmp_path / name / "run", Console(quiet=True))
    assert torch.equal(weights(tmp_path / "one/run"), weights(tmp_path / "apart/run"))
    assert rows(tmp_path / "one/run") == rows(tmp_path / "apart/run")
    kept = [store.read_newest(tmp_path / name / "experience", 4) for name in ("one", "apart")]
    for a, b in zip(*kept, strict=True):
        assert a.helped.any()
        for field in vars(a):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    left = [p.name for p in (tmp_path / "apart/experience").iterdir() if p.name.startswith(".")]
    assert left == []


@pytest.mark.parametrize("algo", [ALGOS["steer"], replace(ALGOS["dppo"], tuned=1)])
def test_what_an_algorithm_adds_to_the_policy_practises_elsewhere_too(
    begun, tmp_path, algo
) -> None:
    run = replace(config(eval=QUICK), algo=algo)
    apart = replace(run, runtime=RuntimeConfig(processes=True))
    for name, one in (("one", run), ("apart", apart)):
        loop.run(one, start(begun, tmp_path / name), tmp_path / name / "run", Console(quiet=True))
    assert torch.equal(weights(tmp_path / "one/run"), weights(tmp_path / "apart/run"))


def test_an_actor_that_is_killed_loses_nothing_and_the_run_goes_on(
    begun, tmp_path, monkeypatch, capsys
) -> None:
    place = start(begun, tmp_path)
    run = config(runtime=RuntimeConfig(processes=True, lag=1), environments=1, eval=QUICK)
    tend, seen = Team.tend, []

    def kill_once(self: Team) -> None:
        finished, _ = parts.there(self.folder, "round-000000")
        if finished and not seen:
            seen.append(parts.read(self.folder, "round-000000", 0))
            self.members[0].process.kill()
            self.members[0].process.join()
        tend(self)

    monkeypatch.setattr(Team, "tend", kill_once)
    loop.run(run, place, tmp_path / "run", Console(quiet=True))
    said = [line for line in capsys.readouterr().err.splitlines() if "actor" in line]
    assert said == ["the actor was ended by signal 9; started anew, nothing finished is lost"]
    assert store.rounds(place.experience) == ["round-000000", "round-000001"]
    first, second = (
        store.read_round(place.experience, name) for name in store.rounds(place.experience)
    )
    assert [e.number for e in first + second] == [0, 1, 0, 1]
    assert np.array_equal(first[0].images, seen[0].images)
    assert [e.version for e in first] == [0, 0]
    assert all(0 <= e.version <= 2 for e in second)
    behind = {row["step"]: row["practice/behind"] for row in rows(tmp_path / "run")}
    assert behind == dict.fromkeys((1, 2), 0.0) | dict.fromkeys(
        (3, 4), 2.0 - min(e.version for e in second)
    )
