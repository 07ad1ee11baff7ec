"""Online RL in processes: the same run as in one, and nothing is lost when one is killed."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from rich.console import Console

from benchmarks.reward_models.synthetic_dataset import make_reward_model
from tests.training.rl.fake_rollouts import groups
from tests.training.rl.runs import ALGOS, config, start
from training.core import loop
from training.core.config import EvalConfig
from training.rl.config import RuntimeConfig
from training.rl.experience import episode_store
from training.rl.processes import incremental_store
from training.rl.processes.actor_pool import ActorPool
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
    reward_model = make_reward_model(tmp_path / "reward_model")
    helped = groups(
        intervention={"fraction": 1.0, "patience": 2},
        jump_start={"fraction": 0.5, "max_guide_steps": 2, "curriculum": True},
    )
    run = config(reward="learned", eval=QUICK, **helped)
    apart = replace(run, runtime=RuntimeConfig(distributed=True))
    for name, one in (("one", run), ("apart", apart)):
        place = replace(start(begun, tmp_path / name), reward_model=reward_model)
        loop.run(one, place, tmp_path / name / "run", Console(quiet=True))
    assert torch.equal(weights(tmp_path / "one/run"), weights(tmp_path / "apart/run"))
    assert rows(tmp_path / "one/run") == rows(tmp_path / "apart/run")
    kept = [
        episode_store.read_newest(tmp_path / name / "experience", 4) for name in ("one", "apart")
    ]
    for a, b in zip(*kept, strict=True):
        assert a.is_intervention.any()
        for field in vars(a):
            np.testing.assert_array_equal(getattr(a, field), getattr(b, field))
    left = [p.name for p in (tmp_path / "apart/experience").iterdir() if p.name.startswith(".")]
    assert left == []


@pytest.mark.parametrize(
    "algo",
    [
        replace(ALGOS["dppo"], ft_denoising_steps=1),
        ALGOS["dppo, frozen vision"],
        ALGOS["ogpo, frozen vision"],
    ],
)
def test_parts_that_an_algorithm_adds_to_the_policy_act_in_the_actor_process(
    algo, begun, tmp_path
) -> None:
    run = replace(config(eval=QUICK), algo=algo)
    apart = replace(run, runtime=RuntimeConfig(distributed=True))
    for name, one in (("one", run), ("apart", apart)):
        loop.run(one, start(begun, tmp_path / name), tmp_path / name / "run", Console(quiet=True))
    assert torch.equal(weights(tmp_path / "one/run"), weights(tmp_path / "apart/run"))


def test_an_actor_that_is_killed_loses_nothing_and_the_run_goes_on(
    begun, tmp_path, monkeypatch, capsys
) -> None:
    place = start(begun, tmp_path)
    run = config(runtime=RuntimeConfig(distributed=True, max_policy_lag=1), num_envs=1, eval=QUICK)
    tend, seen = ActorPool.check, []

    def kill_once(self: ActorPool) -> None:
        finished, _ = incremental_store.progress(self.folder, "round-000000")
        if finished and not seen:
            seen.append(incremental_store.read_episode(self.folder, "round-000000", 0))
            self.processes[0].process.kill()
            self.processes[0].process.join()
        tend(self)

    monkeypatch.setattr(ActorPool, "check", kill_once)
    loop.run(run, place, tmp_path / "run", Console(quiet=True))
    said = [line for line in capsys.readouterr().err.splitlines() if "actor" in line]
    assert said == ["the actor was ended by signal 9; restarted, nothing finished is lost"]
    assert episode_store.iterations(place.experience) == ["round-000000", "round-000001"]
    first, second = (
        episode_store.read_iteration(place.experience, name)
        for name in episode_store.iterations(place.experience)
    )
    assert [e.number for e in first + second] == [0, 1, 0, 1]
    assert np.array_equal(first[0].images, seen[0].images)
    assert [e.version for e in first] == [0, 0]
    assert all(0 <= e.version <= 2 for e in second)
    behind = {row["step"]: row["rollout/policy_lag"] for row in rows(tmp_path / "run")}
    assert behind == dict.fromkeys((1, 2), 0.0) | dict.fromkeys(
        (3, 4), 2.0 - min(e.version for e in second)
    )
