"""An exported reward model is checked file by file, and is neither mistaken for a policy nor
lost.
"""

import json
import shutil

import pytest

from deploy.export import graph
from deploy.reward_model import artefact as reward_model_artefact
from deploy.reward_model import export
from deploy.runtime import artefact as artefacts
from tests.commands.lines import only_sentence
from tests.deploy import damage
from tests.deploy.conftest import (
    CRITIC,
    CRITIC_BATCH,
    FITTED,
    SETTINGS,
    made_reward_model,
    save_reward_model,
)
from tests.deploy.damage import changed
from tests.fake_reward_models import BrightnessRewardModel
from tests.fakes import PX
from vla import cli
from vla.runtime import policy_loader


@pytest.fixture
def folder(reward_model_folders, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(reward_model_folders[1], tmp_path / "copy")


def test_a_manifest_names_every_file_with_its_shapes_and_keeps_the_rules(folder):
    manifest = reward_model_artefact.read(folder).manifest
    files = {p.name for p in folder.iterdir()}
    assert files == {
        "embed.onnx", "score.onnx", "compare.onnx", artefacts.MANIFEST, artefacts.TOKENIZER
    }  # fmt: skip
    ports = {p.name: (p.dtype, p.shape) for p in manifest.graphs["embed"].inputs}
    assert ports["images"] == ("uint8", (CRITIC_BATCH, len(CRITIC.cameras), PX, PX, 3))
    assert ports["is_first"] == ("bool", (CRITIC_BATCH,))
    ports = {p.name: (p.dtype, p.shape) for p in manifest.graphs["compare"].inputs}
    assert ports["earlier_embeddings"] == ("float32", (CRITIC_BATCH, 5, manifest.embedding))
    assert ports["reference_embeddings"] == (
        "float32",
        ("num_reference_frames", manifest.embedding),
    )
    assert (manifest.scorer, manifest.calibration) == (SETTINGS, FITTED)
    assert manifest.provenance == {"step": 3, "data": ["push"]}
    assert set(manifest.versions) == {"torch", "onnx", "onnxscript"}


def test_no_file_holds_paths_of_the_exporting_machine(folder):
    damage.assert_private(folder)


@pytest.mark.parametrize("name", ["embed.onnx", "score.onnx", "compare.onnx", "tokenizer.json"])
def test_a_file_that_was_changed_or_lost_is_named(folder, name):
    damage.assert_named(reward_model_artefact.read, folder, name)


def scorer(**values):
    return {"stride_s": 0.2, "horizon_s": 1.2, "lags_s": [0.4, 0.9, 1.7], **values}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"format": 4}, "format 4, expected 2 or 3"),
        ({"kind": "oracle"}, r"expected one of \('reward_model',\), got 'oracle'"),
        ({"batch": 0}, "batch 0"),
        ({"cameras": ["front"]}, r"'embed' has shape \(2, 2, 32, 32, 3\), .* asks for \(2, 1, 32"),
        ({"image_hw": [32]}, "expected 2 values, got 1"),
        ({"memory": 5}, "memory of graph 'embed' has shape"),
        ({"scorer": scorer(lags_s=[0.4])}, "earlier_embeddings of graph 'compare' has shape"),
        ({"scorer": scorer(lags_s=[])}, "expected one or more above 0; export again"),
        ({"scorer": scorer(lags=[0.4])}, "unknown field 'lags'"),
        ({"calibration": {"confidence": [1.0]}}, "confidence: got 1 weights, expected 4; export"),
        ({"calibration": {"done": [float("nan"), 1.0]}}, "done: got .*expected finite numbers"),
        ({"graphs": {}}, "lacks graph 'embed'"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(folder, values, said):
    changed(folder, **values)
    with pytest.raises(ValueError, match=said) as caught:
        reward_model_artefact.read(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


def test_a_description_cannot_name_files_elsewhere(folder):
    found = json.loads((folder / artefacts.MANIFEST).read_text())["graphs"]
    found["score"]["file"] = "../copy/score.onnx"
    changed(folder, graphs=found)
    with pytest.raises(ValueError, match=r"file '../copy/score.onnx' is not inside the folder"):
        reward_model_artefact.read(folder)


def test_a_reward_model_is_not_opened_as_a_policy_nor_a_policy_as_a_reward_model(
    folder, exported, capsys
):
    with pytest.raises(
        ValueError, match="an exported reward model, expected an exported policy; give"
    ):
        policy_loader.open_policy(folder, threads=1)
    with pytest.raises(
        ValueError, match="an exported policy, expected an exported reward model; give"
    ):
        reward_model_artefact.read(exported["remembers"])
    assert cli.main(f"eval {folder} --episodes 1".split()) == 1
    assert "an exported reward model, expected an exported policy" in only_sentence(
        capsys.readouterr().err
    )


def test_a_policy_exported_before_there_were_reward_models_is_still_one(exported, tmp_path):
    old = shutil.copytree(exported["remembers"], tmp_path / "old")
    found = json.loads((old / artefacts.MANIFEST).read_text())
    del found["kind"]
    (old / artefacts.MANIFEST).write_text(json.dumps(found))
    assert artefacts.read(old).manifest.kind == "policy"
    assert artefacts.kind_of(old) == "policy"


def test_a_reward_model_of_format_2_is_read_as_it_is(folder):
    expected = reward_model_artefact.read(folder).manifest
    changed(folder, format=2)
    assert reward_model_artefact.read(folder).manifest == expected


def test_neither_replaces_the_other_but_what_is_damaged_may_be_exported_again(
    reward_model_folders, exported, folder, tmp_path
):
    policy = shutil.copytree(exported["remembers"], tmp_path / "policy")
    with pytest.raises(
        ValueError, match="is there and no exported reward model; give another --out"
    ):
        export.export(reward_model_folders[0], policy)
    assert artefacts.read(policy)
    assert artefacts.kind_of(folder) == "reward_model"
    (folder / artefacts.MANIFEST).write_text("{")
    assert artefacts.kind_of(folder) == "damaged"


def test_a_graph_gives_what_the_rules_ask_for(folder):
    found = json.loads((folder / artefacts.MANIFEST).read_text())["graphs"]
    found["embed"]["outputs"].pop()
    changed(folder, graphs=found)
    with pytest.raises(
        ValueError, match="'embed' returns embedding, expected embedding, new_memory"
    ):
        reward_model_artefact.read(folder)


def test_an_export_that_fails_leaves_what_was_there(reward_model_folders, folder, monkeypatch):
    before = reward_model_artefact.read(folder).manifest
    monkeypatch.setattr(graph, "export", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export.export(reward_model_folders[0], folder)
    assert reward_model_artefact.read(folder).manifest == before
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]


def test_kinds_that_graphs_cannot_hold_are_refused(tmp_path):
    with pytest.raises(
        ValueError, match=r"mine: a reward model of type 'fake_reward_models' is not exported"
    ):
        export.check_exportable(BrightnessRewardModel(), tmp_path / "mine")


def test_a_run_that_holds_a_reward_model_is_told_from_one_of_a_policy(tmp_path):
    save_reward_model(made_reward_model(), tmp_path / "run" / "best")
    assert export.is_source(tmp_path / "run")
    assert export.is_source(tmp_path / "run" / "best")
    assert not export.is_source(tmp_path)
    (tmp_path / "run" / "best" / "model.safetensors").unlink()
    with pytest.raises(ValueError, match="reward model lacks model.safetensors"):
        export.export(tmp_path / "run", tmp_path / "out")
