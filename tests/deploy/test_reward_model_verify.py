"""`vla verify-export` passes the reward model that was exported, and no other."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from deploy.reward_model import artefact as reward_model_artefact
from deploy.reward_model import verify
from deploy.reward_model.verify import RewardModelComparison, RewardModelVerifyArgs
from deploy.runtime import artefact as artefacts
from deploy.targets import onnxruntime
from deploy.verify.difference import Difference, between, cosine, worst_of
from tests.deploy.conftest import CRITIC_BATCH, made_reward_model, made_up, save_reward_model
from tests.fakes import liven_
from vla import cli
from vla.contracts.types import Progress


def compared(scorer, artefact, **more):
    args = RewardModelVerifyArgs(
        reference_checkpoint=artefact.folder, dataset=artefact.folder, stages=4, **more
    )
    engine = onnxruntime.Config().open(artefact)
    return verify.compare(scorer, artefact, engine, made_up(), args)


def test_what_was_exported_of_a_reward_model_is_that_reward_model(reward_model_artefact):
    found = compared(made_reward_model(), reward_model_artefact)
    assert set(found.stages) == {"embed", "score", "compare"}
    assert max(one.worst for one in found.stages.values()) < 1e-4
    assert min(one.cosine for one in found.stages.values()) > 0.99999
    assert (found.frames, found.episodes, found.parted) == (12, 2, 0)
    assert not verify.failures(found)
    assert all(0 < p50 <= p99 for p50, p99 in found.seconds.values())


def test_the_reward_model_after_another_update_is_not(reward_model_artefact):
    scorer = made_reward_model()
    liven_(scorer.reward_model.verdict, seed=9, by=0.05)
    found = compared(scorer, reward_model_artefact)
    assert found.stages["embed"].worst < 1e-4  # one head alone has changed
    assert found.stages["score"].worst > 1e-3
    wrong = verify.failures(found)
    assert any(line.startswith("done_prob differs by") for line in wrong)


def test_another_bound_for_silence_is_seen_where_no_number_tells(reward_model_artefact):
    scorer = made_reward_model()
    scorer.config = replace(scorer.config, abstain_below=0.99)
    found = compared(scorer, reward_model_artefact)
    assert found.abstained == found.frames
    assert found.parted > 0
    assert verify.failures(found) == [
        f"only one of them abstained at {found.parted} of {found.frames} frames"
    ]


@pytest.mark.parametrize(
    ("worst", "parted", "count"), [(9e-5, 0, 0), (2e-4, 0, 1), (float("nan"), 0, 1), (9e-5, 1, 1)]
)
def test_a_difference_beyond_the_budget_is_a_fault_and_so_is_no_number(worst, parted, count):
    found = RewardModelComparison(
        stages={}, outputs={"value": worst}, parted=parted, abstained=0, frames=9, episodes=1,
        seconds={},
    )  # fmt: skip
    assert len(verify.failures(found)) == count


def test_a_number_that_is_none_counts_unless_one_of_them_abstained():
    nan, none = np.array([np.nan, 0.5]), np.array([True, False])
    assert verify._largest(nan, np.array([0.1, 0.5]), none) == 0.0
    assert np.isnan(verify._largest(nan, np.array([0.1, 0.5]), ~none))
    trend = np.array([[np.nan, 0.5, 0.5], [0.0, 0.5, 0.5]])
    assert np.isnan(verify._largest(trend, np.zeros((2, 3)), none))
    assert np.isnan(worst_of([Difference(0.0, 1.0), Difference(np.nan, np.nan)]).worst)
    assert between([(np.array([1.0, 2.0]), np.array([1.0, 2.5]))]).worst == 0.5
    assert cosine(np.array([1.0, 0.0]), np.array([1.0, 1.0])) == pytest.approx(np.sqrt(0.5))


def test_episodes_follow_one_another_in_rows_until_all_were_watched():
    store = made_up()  # two episodes of six moments
    at, here = verify.parallel_rows(store, rows=1, episodes=2)
    assert at[:, 0].tolist() == list(range(12))
    assert here.all()
    at, here = verify.parallel_rows(store, rows=3, episodes=2)
    assert at.T.tolist() == [list(range(6)), list(range(6, 12)), list(range(6))]
    assert here.sum(0).tolist() == [6, 6, 0]
    frames, tasks = list(verify.frames_at(store, at))[2]
    np.testing.assert_array_equal(frames.images, store.frames[[2, 8, 2]])
    assert frames.time_s.tolist() == [1.6, 1.6, 1.6]
    assert tasks == (store.tasks[0], store.tasks[1], store.tasks[0])


def test_the_command_writes_what_it_found_and_refuses_another_reward_model(
    reward_model_folders, tmp_path, monkeypatch, capsys
):
    trained, exported = reward_model_folders
    folder = shutil.copytree(exported, tmp_path / "copy")
    monkeypatch.setattr(verify, "load", lambda data, scorer: made_up())
    line = f"verify-export {folder} --reference-checkpoint {trained} --dataset {tmp_path}"
    assert cli.main(line.split()) == 0
    told = capsys.readouterr().out
    assert f"step of {CRITIC_BATCH}, p99: PyTorch / ONNX Runtime" in told
    manifest = reward_model_artefact.read(folder).manifest
    assert manifest.parity["faults"] == []
    assert manifest.parity["found"]["outputs"].keys() == vars(said()).keys()
    assert json.loads((folder / artefacts.MANIFEST).read_text())["parity"] == manifest.parity
    other = save_reward_model(made_reward_model(seed=1), tmp_path / "other")
    assert (
        cli.main(
            f"verify-export {folder} --reference-checkpoint {other} --dataset {tmp_path}".split()
        )
        == 1
    )
    assert "exported from reward model" in capsys.readouterr().err


def said():
    one = np.zeros(1, np.float32)
    trend = np.zeros((1, 3), np.float32)
    return Progress(value=one, delta=one, trend=trend, done_prob=one, match=one, confidence=one)


def test_beyond_a_budget_the_command_fails(reward_model_folders, tmp_path, monkeypatch, capsys):
    trained, exported = reward_model_folders
    folder = shutil.copytree(exported, tmp_path / "copy")
    monkeypatch.setattr(verify, "load", lambda data, scorer: made_up())
    monkeypatch.setattr(verify, "BUDGET", 1e-12)
    assert (
        cli.main(
            f"verify-export {folder} --reference-checkpoint {trained} --dataset {tmp_path}".split()
        )
        == 1
    )
    assert "beyond the budget: value differs by" in capsys.readouterr().err
    assert reward_model_artefact.read(folder).manifest.parity["faults"]
