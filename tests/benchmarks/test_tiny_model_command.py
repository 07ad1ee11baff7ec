"""`vla bench tiny-model`: a small model of any family, whole or absent, that `vla train` takes."""

from pathlib import Path

import pytest

from benchmarks import tiny_model_command
from benchmarks.tiny_model_command import FAMILIES, TinyArgs
from vla import cli
from vla.backbones import vision_text, vlm
from vla.nn import families

TOWERS = ("siglip", "dinov2")


def test_every_family_that_a_backbone_takes_can_be_made() -> None:
    from benchmarks import tiny_models

    assert set(FAMILIES) == {*tiny_models.FAMILIES, *tiny_models.TOWERS}
    assert set(FAMILIES) == {*families.FAMILIES, *vision_text.FAMILIES} - {"dinov2_with_registers"}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_larger_one_is_a_model_that_a_backbone_takes(family: str, tmp_path: Path) -> None:
    out = tmp_path / "models" / family
    args = TinyArgs(out=out, width=128, layers=3, image_px=64)
    weights = tiny_model_command.make(family, args)
    assert [path.name for path in out.parent.iterdir()] == [family]
    plugged = vision_text if family in TOWERS else vlm
    config = plugged.Config(model=str(out), image_px=64)
    config.check()
    words = config.tokenizer(["press the button"]).get_vocab_size()
    net = config.build(1, 3, words, 8)
    # A picture of 64 pixels has 8 x 8 patches; most language models are given 4 x 4 of them.
    side = 8 if family in (*TOWERS, "paligemma") else 4
    assert net.perceive.means.shape == (16, side**2)
    assert net.perceive.norm.normalized_shape == (128,)
    assert weights > 3 * 4 * 128**2  # three layers with four square matrices each


def test_the_command_says_what_it_made_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["bench", "tiny-model", "dinov2", "--out", str(tmp_path / "model")]
    assert cli.main(words) == 0
    assert "random weights; it has learned nothing" in capsys.readouterr().out
    before = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert cli.main(words) == 1
    assert "is there already; choose another --out" in capsys.readouterr().err
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == before


def test_a_failure_on_the_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from benchmarks import tiny_models

    def half(folder: Path, sizes: tiny_models.Sizes) -> Path:
        folder.mkdir()
        (folder / "config.json").write_text("{")
        raise KeyboardInterrupt

    monkeypatch.setitem(tiny_models.TOWERS, "siglip", half)
    with pytest.raises(KeyboardInterrupt):
        tiny_model_command.make("siglip", TinyArgs(out=tmp_path / "model"))
    assert list(tmp_path.iterdir()) == []
