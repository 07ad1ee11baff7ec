"""`vla train` with a pretrained backbone: the same command, the same loop, the same checkpoint."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from vla import checkpoint, cli
from vla.backbones import vision_text, vlm


def line(data: Path, out: Path, model: str) -> list[str]:
    words = (
        f"train --recipe cue_colour --dataset {data} --out {out} --policy.backbone.type vlm "
        "--policy.backbone.finetune_mode lora --policy.backbone.lora_rank 2 "
        "--policy.backbone.image-px 32 --policy.backbone.pooled_tokens_per_side 2 "
        "--algo.batch-size 2 "
        "--steps 2 --threads 1 --eval.every 0 --eval.final-episodes 0"
    )
    return [*words.split(), *(("--policy.backbone.model", model) if model else ())]


def recording(out: Path, model: str) -> list[str]:
    """Return the command where demonstrations are still to be recorded."""
    words = line(out, out, model)
    del words[words.index("--dataset") : words.index("--dataset") + 2]
    return words


def test_a_run_is_trained_by_the_command_and_goes_on(
    arm_dataset: Path, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, out = tiny_model("smolvlm"), tmp_path / "run"
    assert cli.main(line(arm_dataset, out, str(folder))) == 0
    policy, origin = checkpoint.load(out)
    assert origin.step == 2
    assert origin.pretrained["name"] == str(folder)
    backbone = policy.config.backbone
    assert isinstance(backbone, vlm.Config)
    assert (backbone.finetune_mode, backbone.lora_rank, backbone.pooled_tokens_per_side) == (
        "lora",
        2,
        2,
    )
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    written = json.loads((out / "checkpoint" / "tokenizer.json").read_text())
    assert written["model"]["vocab"] == vocabulary
    assert cli.main(line(arm_dataset, out, str(folder))) == 0  # nothing is left to do


@pytest.mark.parametrize(
    ("model", "said"),
    [("", "policy.backbone.model: got none, expected a model; give its folder"),
     ("owner/name", "fetch it once: hf download owner/name")],
)  # fmt: skip
def test_a_model_that_is_missing_is_one_sentence_before_anything_is_recorded(
    model: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(recording(tmp_path / "run", model)) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [("model.safetensors", "has no weights (no *.safetensors)"),
     ("tokenizer.json", "has no tokenizer.json"),
     ("config.json", "config.json: damaged, or names no model_type")],
)  # fmt: skip
def test_a_model_that_is_not_whole_is_told_before_anything_is_recorded(
    spoilt: str, said: str, tiny_model: Callable[[str], Path], tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    model = shutil.copytree(tiny_model("smolvlm"), tmp_path / "model")
    (model / spoilt).unlink()
    if spoilt == "config.json":
        (model / spoilt).write_text("{")
    assert cli.main(recording(tmp_path / "run", str(model))) == 1
    assert said in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [model]


@pytest.mark.parametrize(("package", "tune"), [("transformers", "frozen"), ("peft", "lora")])
def test_a_package_that_is_missing_is_named_with_the_extra_that_has_it(
    package: str, tune: str, tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = vlm.Config(model=str(tiny_model("smolvlm")), finetune_mode=tune)
    config.check()
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == package else find(name, *a)
    )
    said = rf"needs {package}, which is not installed; pip install 'mneme-vla\[train\]'"
    with pytest.raises(ValueError, match=said):
        config.check()
    frozen = vlm.Config(model=config.model)
    if package == "peft":
        frozen.check()  # adapters alone need it


def test_a_backbone_refuses_the_models_of_another_before_it_is_built(
    tiny_model: Callable[[str], Path],
) -> None:
    with pytest.raises(ValueError, match=r"is a dinov2, expected one of smolvlm, qwen3_vl"):
        vlm.Config(model=str(tiny_model("dinov2"))).check()
    with pytest.raises(ValueError, match=r"is a smolvlm, expected one of siglip, dinov2"):
        vision_text.Config(model=str(tiny_model("smolvlm"))).check()
    vision_text.Config(model=str(tiny_model("dinov2"))).check()  # has no words of its own
    vision_text.Config(model=str(tiny_model("siglip"))).check()
