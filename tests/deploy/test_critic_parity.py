"""`vla parity` passes the critic that was exported, and no other."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from deploy import artefact as artefacts
from deploy.critic import artefact as critics
from deploy.critic import parity
from deploy.critic.parity import CriticParityArgs, Found
from deploy.difference import Difference, between, cosine, worst_of
from deploy.targets import onnxruntime
from tests.deploy.conftest import CRITIC_BATCH, made_critic, made_up, save_critic
from tests.fakes import liven_
from vla import cli
from vla.contracts.types import Progress


def compared(scorer, artefact, **more):
    args = CriticParityArgs(against=artefact.folder, data=artefact.folder, stages=4, **more)
    engine = onnxruntime.Config().open(artefact)
    return parity.compare(scorer, artefact, engine, made_up(), args)


def test_what_was_exported_of_a_critic_is_that_critic(critic_artefact):
    found = compared(made_critic(), critic_artefact)
    assert set(found.stages) == {"embed", "judge", "compare"}
    assert max(one.worst for one in found.stages.values()) < 1e-4
    assert min(one.cosine for one in found.stages.values()) > 0.99999
    assert (found.moments, found.episodes, found.parted) == (12, 2, 0)
    assert not parity.faults(found)
    assert all(0 < p50 <= p99 for p50, p99 in found.seconds.values())


def test_the_critic_after_another_update_is_not(critic_artefact):
    scorer = made_critic()
    liven_(scorer.critic.verdict, seed=9, by=0.05)
    found = compared(scorer, critic_artefact)
    assert found.stages["embed"].worst < 1e-4  # one head alone has changed
    assert found.stages["judge"].worst > 1e-3
    wrong = parity.faults(found)
    assert any(line.startswith("done_prob differs by") for line in wrong)


def test_another_bound_for_silence_is_seen_where_no_number_tells(critic_artefact):
    scorer = made_critic()
    scorer.config = replace(scorer.config, abstain_below=0.99)
    found = compared(scorer, critic_artefact)
    assert found.silent == found.moments
    assert found.parted > 0
    assert parity.faults(found) == [
        f"only one of them abstained at {found.parted} of {found.moments} moments"
    ]


@pytest.mark.parametrize(
    ("worst", "parted", "count"), [(9e-5, 0, 0), (2e-4, 0, 1), (float("nan"), 0, 1), (9e-5, 1, 1)]
)
def test_a_difference_beyond_the_budget_is_a_fault_and_so_is_no_number(worst, parted, count):
    found = Found(
        stages={}, progress={"value": worst}, parted=parted, silent=0, moments=9, episodes=1,
        seconds={},
    )  # fmt: skip
    assert len(parity.faults(found)) == count


def test_a_number_that_is_none_counts_unless_one_of_them_abstained():
    nan, none = np.array([np.nan, 0.5]), np.array([True, False])
    assert parity._apart(nan, np.array([0.1, 0.5]), none) == 0.0
    assert np.isnan(parity._apart(nan, np.array([0.1, 0.5]), ~none))
    trend = np.array([[np.nan, 0.5, 0.5], [0.0, 0.5, 0.5]])
    assert np.isnan(parity._apart(trend, np.zeros((2, 3)), none))
    assert np.isnan(worst_of([Difference(0.0, 1.0), Difference(np.nan, np.nan)]).worst)
    assert between([(np.array([1.0, 2.0]), np.array([1.0, 2.5]))]).worst == 0.5
    assert cosine(np.array([1.0, 0.0]), np.array([1.0, 1.0])) == pytest.approx(np.sqrt(0.5))


def test_episodes_follow_one_another_in_rows_until_all_were_watched():
    store = made_up()  # two episodes of six moments
    at, here = parity.side_by_side(store, rows=1, episodes=2)
    assert at[:, 0].tolist() == list(range(12))
    assert here.all()
    at, here = parity.side_by_side(store, rows=3, episodes=2)
    assert at.T.tolist() == [list(range(6)), list(range(6, 12)), list(range(6))]
    assert here.sum(0).tolist() == [6, 6, 0]
    frames, tasks = list(parity.moments(store, at))[2]
    np.testing.assert_array_equal(frames.images, store.frames[[2, 8, 2]])
    assert frames.time_s.tolist() == [1.6, 1.6, 1.6]
    assert tasks == (store.tasks[0], store.tasks[1], store.tasks[0])


def test_the_command_writes_what_it_found_and_refuses_another_critic(
    critic_folders, tmp_path, monkeypatch, capsys
):
    trained, exported = critic_folders
    folder = shutil.copytree(exported, tmp_path / "copy")
    monkeypatch.setattr(parity, "load", lambda data, scorer: made_up())
    line = f"parity {folder} --against {trained} --data {tmp_path}"
    assert cli.main(line.split()) == 0
    told = capsys.readouterr().out
    assert f"step of {CRITIC_BATCH}, p99: PyTorch / ONNX Runtime" in told
    manifest = critics.read(folder).manifest
    assert manifest.parity["faults"] == []
    assert manifest.parity["found"]["progress"].keys() == vars(said()).keys()
    assert json.loads((folder / artefacts.MANIFEST).read_text())["parity"] == manifest.parity
    other = save_critic(made_critic(seed=1), tmp_path / "other")
    assert cli.main(f"parity {folder} --against {other} --data {tmp_path}".split()) == 1
    assert "exported from critic" in capsys.readouterr().err


def said():
    one = np.zeros(1, np.float32)
    trend = np.zeros((1, 3), np.float32)
    return Progress(value=one, delta=one, trend=trend, done_prob=one, match=one, confidence=one)


def test_beyond_a_budget_the_command_fails(critic_folders, tmp_path, monkeypatch, capsys):
    trained, exported = critic_folders
    folder = shutil.copytree(exported, tmp_path / "copy")
    monkeypatch.setattr(parity, "load", lambda data, scorer: made_up())
    monkeypatch.setattr(parity, "BUDGET", 1e-12)
    assert cli.main(f"parity {folder} --against {trained} --data {tmp_path}".split()) == 1
    assert "beyond the budget: value differs by" in capsys.readouterr().err
    assert critics.read(folder).manifest.parity["faults"]
