"""What was exported is checked file by file before anything of it is used."""

import json
import shutil

import pytest

from deploy.commands import export
from deploy.runtime import artefact as artefacts
from tests.deploy import damage
from tests.deploy.conftest import made, origin
from tests.deploy.damage import changed
from vla.contracts import migrate


@pytest.fixture
def folder(exported, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(exported["remembers"], tmp_path / "copy")


def test_a_manifest_names_every_file_with_its_shapes_and_says_where_it_comes_from(folder):
    manifest = artefacts.read(folder).manifest
    files = {p.name for p in folder.iterdir()}
    assert files == {g.file for g in manifest.graphs.values()} | {
        artefacts.MANIFEST, artefacts.TOKENIZER,
    }  # fmt: skip
    ports = {p.name: (p.dtype, p.shape) for p in manifest.graphs["encode"].inputs}
    assert ports["images"] == ("uint8", (1, 2, 32, 32, 3))
    assert ports["token_ids"] == ("int64", (1, "num_tokens"))
    assert (manifest.task, manifest.step, manifest.precision) == ({"type": "reach"}, 7, "fp32")
    assert set(manifest.versions) == {"torch", "onnx", "onnxscript"}


def test_no_file_holds_paths_of_the_exporting_machine(exported):
    for place in exported.values():
        damage.assert_private(place)


@pytest.mark.parametrize(
    "name", ["encode.onnx", "memory_update.onnx", "act.onnx", "tokenizer.json"]
)
def test_a_file_that_was_changed_or_lost_is_named(folder, name):
    damage.assert_named(artefacts.read, folder, name)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"format": 4}, "format 4, expected 2 or 3"),
        ({"num_inference_steps": 0}, "0 steps of 100"),
        ({"batch": 0}, "batch 0"),
        ({"views": [5]}, r"views \(5,\) of 2 cameras"),
        ({"batch": "1"}, "expected int, got '1'"),
        ({"more": 1}, "unknown field 'more'"),
        ({"graphs": {}}, "lacks graph 'encode'"),
        (
            {"state_shapes": {"hidden": [3]}},
            "state_shapes.hidden is no output of graph 'memory_update'",
        ),
        ({"format": 2, "memory": [7, 17]}, "export again"),
    ],
)
def test_a_description_that_makes_no_sense_is_refused(folder, values, said):
    changed(folder, **values)
    with pytest.raises(ValueError, match=said):
        artefacts.read(folder)


def test_a_description_of_format_2_is_read_as_one_whose_memory_is_slots(folder):
    path, expected = folder / artefacts.MANIFEST, artefacts.read(folder).manifest
    found = json.loads(path.read_text())
    shapes, _ = found.pop("state_shapes"), found.pop("remembers")
    old = {**found, "format": 2, "memory": shapes["slot_tokens"]}
    path.write_text(json.dumps(old))
    assert artefacts.read(folder).manifest == expected
    forgetful = migrate.manifest({**old, "memory": [1, 17, 64]})  # of policies without memory
    assert forgetful["remembers"] is False
    assert forgetful["state_shapes"]["slot_tokens"] == [1, 17, 64]


def test_a_description_cannot_name_files_elsewhere(folder):
    found = json.loads((folder / artefacts.MANIFEST).read_text())
    found["graphs"]["encode"]["file"] = "../copy/encode.onnx"
    changed(folder, graphs=found["graphs"])
    with pytest.raises(ValueError, match="is not inside the folder"):
        artefacts.read(folder)


def test_scaling_has_a_number_for_each_channel(folder):
    scaling = json.loads((folder / artefacts.MANIFEST).read_text())["scaling"]
    changed(folder, scaling={**scaling, "action_scale": [1.0]})
    with pytest.raises(ValueError, match=r"scaling.action_scale has 1 numbers for 2"):
        artefacts.read(folder)


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00"])
def test_a_manifest_that_is_no_object_is_refused(folder, text):
    (folder / artefacts.MANIFEST).write_text(text)
    with pytest.raises(ValueError, match="export again"):
        artefacts.read(folder)


def test_a_folder_that_holds_something_else_is_neither_read_nor_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    with pytest.raises(ValueError, match="no exported policy there"):
        artefacts.read(tmp_path / "mine")
    with pytest.raises(ValueError, match="no exported policy; give another --out"):
        export.export(made("remembers"), origin(), tmp_path / "mine")
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"


def test_what_a_killed_export_left_is_cleared_away_by_the_next(folder, monkeypatch):
    rest = folder.parent / f".{folder.name}.new-1"
    rest.mkdir()
    monkeypatch.setattr(export.graph, "export", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export.export(made("remembers"), origin(), folder)
    assert not rest.exists()


def test_an_export_that_fails_leaves_what_was_there(folder, monkeypatch):
    before = artefacts.read(folder).manifest
    monkeypatch.setattr(export.graph, "export", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export.export(made("remembers"), origin(), folder)
    assert artefacts.read(folder).manifest == before
    assert [p.name for p in folder.parent.iterdir()] == [folder.name]
