"""The study of pretrained families: what failed is a row, what was well is not done again."""

import json
from pathlib import Path

import pytest

from benchmarks.deploy import backbone_study as study
from benchmarks.deploy.backbone_study import Row, StudyArgs

WELL = Row(finetune_mode="lora", loss=(1.0, 0.5), same=True, parity=1e-6, seconds=60.0)


def test_the_sentence_of_a_verb_that_fails_is_raised() -> None:
    with pytest.raises(
        ValueError, match=r"`vla bench tiny-model` ended with 1: .*unknown family 'x'"
    ):
        study.vla("bench", "tiny-model", "x", "--out", "nowhere")


def test_a_family_that_fails_is_a_row_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = []

    def take(family: str, place: Path, data: Path, args: StudyArgs) -> Row:
        taken.append(family)
        return Row(finetune_mode="lora", wrong="it broke") if family == "siglip" else WELL

    monkeypatch.setattr(study, "take", take)
    (tmp_path / "data").mkdir()
    words = ["--out", str(tmp_path), "--families", "smolvlm", "siglip", "dinov2"]
    assert study.main(words) == 1
    told = capsys.readouterr().out
    assert told.count("the same to the bit") == 2
    assert "it broke" in told
    assert taken == ["smolvlm", "siglip", "dinov2"]
    assert study.main(words) == 1
    assert taken[3:] == ["siglip"]
    assert list(json.loads((tmp_path / "backbones.json").read_text())) == [
        "smolvlm", "dinov2", "siglip",
    ]  # fmt: skip
    assert study.main([*words[:2], "--families", "dinov2"]) == 0


def test_a_damaged_table_and_unknown_families_are_refused(tmp_path: Path) -> None:
    (tmp_path / "backbones.json").write_text("{")
    with pytest.raises(ValueError, match=r"backbones.json: damaged .*; delete it to start again"):
        study.main(["--out", str(tmp_path)])
    with pytest.raises(ValueError, match=r"families: got \('llava',\), expected some of"):
        StudyArgs(families=("llava",))


@pytest.mark.slow
def test_a_family_goes_from_its_folder_to_onnx(tmp_path: Path) -> None:
    args = ["--out", str(tmp_path / "study"), "--families", "dinov2", "--updates", "2"]
    assert study.main([*args, "--decisions", "5"]) == 0
    row = json.loads((tmp_path / "study" / "backbones.json").read_text())["dinov2"]
    assert row["same"]
    assert 0 < row["parity"] < 1e-4
    assert not (tmp_path / "study" / "dinov2" / "model").exists()
