"""`vla verify-export` passes what is the same, and nothing else."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from deploy.commands import verify_export
from deploy.commands.verify_export import ClosedLoop, PolicyComparison, VerifyExportArgs
from deploy.export import recorded
from deploy.runtime import artefact as artefacts
from deploy.runtime.policy import DeployedPolicy
from deploy.targets import onnxruntime
from deploy.verify import difference
from deploy.verify.difference import Difference
from tests.deploy.conftest import RECORDED_TASKS, made, made_up
from tests.fakes import liven_
from vla import checkpoint


def compared(policy, folder, **more):
    artefact = artefacts.read(folder)
    args = VerifyExportArgs(
        reference_checkpoint=folder, dataset=folder, **{"decisions": 40, "stages": 5, **more}
    )
    engine = onnxruntime.Config().open(artefact)
    return verify_export.compare(policy, artefact, engine, made_up(), args)


def test_recorded_frames_become_one_unbroken_episode():
    store = made_up()
    seen = list(recorded.observations(store, hz=10.0, count=14))
    assert [float(o.time_s[0]) for o in seen[:3]] == [0.0, 0.8, 1.6]
    assert seen[13].time_s[0] == pytest.approx(13 * 0.8)
    assert [seen[i].task[0] for i in (5, 6, 12)] == [
        RECORDED_TASKS[0],
        RECORDED_TASKS[1],
        RECORDED_TASKS[0],
    ]
    np.testing.assert_array_equal(seen[13].images[0], store.frames[1])
    np.testing.assert_array_equal(seen[7].proprio[0], store.states[48 + 8])


def test_what_was_exported_of_a_policy_is_that_policy(exported):
    found = compared(made("remembers"), exported["remembers"])
    assert set(found.stages) == {
        "encode", "memory_update", "condition", "act",
        *(f"denoise, timestep {t}" for t in (99, 82, 66, 49, 32, 16)),
    }  # fmt: skip
    assert max(one.worst for one in found.stages.values()) < 1e-4
    assert (found.parted, found.decisions) == (0, 40)
    assert not verify_export.failures(found, None, "fp32")


def test_what_was_exported_of_a_policy_that_follows_a_flow_is_that_policy(exported):
    found = compared(made("flows"), exported["flows"])
    asked = {"denoise, timestep 999", "denoise, timestep 749"}
    asked |= {"denoise_ft, timestep 499", "denoise_ft, timestep 249"}
    assert asked <= set(found.stages)
    assert found.stages["act"].worst < 1e-4
    assert not verify_export.failures(found, None, "fp32")


def test_the_policy_after_another_update_is_not(exported):
    policy = made("remembers")
    liven_(policy.head, seed=9, by=0.01)
    found = compared(policy, exported["remembers"])
    assert found.stages["encode"].worst < 1e-4  # the head alone has changed
    assert found.stages["denoise, timestep 99"].worst > 1e-3
    assert "actions differ by" in verify_export.failures(found, None, "fp32")[0]


def test_a_memory_that_merges_other_entries_is_seen_where_no_action_tells(exported, tmp_path):
    folder = shutil.copytree(exported["remembers"], tmp_path / "copy")
    policy = made("remembers")
    policy.memory.merging["recent"] = 1
    found = compared(policy, folder)
    assert found.parted > 0
    assert any("memories parted" in fault for fault in verify_export.failures(found, None, "fp32"))


@pytest.mark.parametrize(
    ("action", "parted", "precision", "count"),
    [(9e-5, 0, "fp32", 0), (2e-4, 0, "fp32", 1), (float("nan"), 0, "fp32", 1), (9e-5, 3, "fp32", 1),
     (2e-2, 3, "int8", 0)],
)  # fmt: skip
def test_budgets_of_actions_and_merges_are_those_of_full_precision(
    action, parted, precision, count
):
    found = PolicyComparison(
        stages={"encode": Difference(0.0, 1.0)}, action=action, cosine=1.0, parted=parted,
        decisions=40,
    )  # fmt: skip
    assert len(verify_export.failures(found, None, precision)) == count


def test_the_bound_of_a_paired_difference_is_that_of_agresti_and_min():
    torch_success = np.array([True] * 60 + [False] * 40)
    same = verify_export.paired(torch_success, torch_success)
    # 0.5 won and 0.5 lost of 102: variance (1 - 0) / 102^2
    assert same.low == pytest.approx(-1.96 / 102)
    assert same.within_margin
    other = torch_success.copy()
    other[:10] = False
    other[60:64] = True
    found = verify_export.paired(torch_success, other)
    # 4.5 won, 10.5 lost: difference -6 / 102, deviation sqrt(15 - 36 / 102) / 102
    assert found.low == pytest.approx(-6 / 102 - 1.96 * np.sqrt(15 - 36 / 102) / 102)
    assert (found.torch, found.exported, found.episodes) == (0.6, 0.54, 100)
    assert not found.within_margin


def test_success_that_may_have_fallen_too_far_is_a_fault_at_any_precision():
    lost = ClosedLoop(torch=0.9, exported=0.86, low=-0.07, episodes=200)
    found = PolicyComparison(stages={}, action=0.0, cosine=1.0, parted=0, decisions=1)
    for precision in ("fp32", "int8"):
        assert "7.0 points, at most 5" in verify_export.failures(found, lost, precision)[0]


@pytest.fixture
def run(tmp_path):
    """A checkpoint of another number of updates than the exported one's."""
    folder = tmp_path / "checkpoint"
    policy = made("remembers")
    other = checkpoint.provenance({"type": "reach"}, ("press",), 8)
    checkpoint.save(policy, other, folder, policy.state_dict())
    return folder


def test_a_checkpoint_that_it_was_not_exported_from_is_refused(exported, run):
    words = [str(exported["remembers"]), "--reference-checkpoint", str(run), "--dataset", str(run)]
    with pytest.raises(
        ValueError, match=r"exported after 7 updates on reach, the checkpoint has 8 on"
    ):
        verify_export.main(words)


def test_what_was_found_is_kept_in_the_manifest_and_what_is_wrong_is_said(
    exported, tmp_path, capsys
):
    folder = shutil.copytree(exported["remembers"], tmp_path / "copy")
    manifest = artefacts.read(folder).manifest
    stages = {"encode": Difference(1e-3, 0.5)}
    one = PolicyComparison(stages=stages, action=0.0, cosine=1.0, parted=0, decisions=1)
    assert difference.conclude(folder, manifest, one, ["one"], target="onnxruntime") == 1
    assert capsys.readouterr().err == "beyond the budget: one\n"
    kept = artefacts.read(folder).manifest.parity
    assert kept == json.loads((folder / artefacts.MANIFEST).read_text())["parity"]
    assert (kept["faults"], kept["target"]) == (["one"], "onnxruntime")
    assert kept["found"]["stages"] == {"encode": {"worst": 1e-3, "cosine": 0.5}}
    assert difference.conclude(folder, manifest, one, []) == 0


def test_a_policy_that_says_nothing_finite_is_beyond_every_budget(exported, monkeypatch):
    artefact = artefacts.read(exported["remembers"])
    act = DeployedPolicy.act

    def nothing(self, obs, state, noise, prefix=None):
        chunk, new = act(self, obs, state, noise, prefix)
        return replace(chunk, values=np.full_like(chunk.values, np.nan)), new

    monkeypatch.setattr(DeployedPolicy, "act", nothing)
    args = VerifyExportArgs(
        reference_checkpoint=artefact.folder, dataset=artefact.folder, decisions=3, stages=1
    )
    found = verify_export.compare(
        made("remembers"), artefact, onnxruntime.Config().open(artefact), made_up(), args
    )
    assert np.isnan(found.action)
    assert np.isnan(found.cosine)
    for precision in ("fp32", "fp16", "int8"):
        assert verify_export.failures(found, None, precision)
