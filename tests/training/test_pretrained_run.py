"""`vla train` with a pretrained backbone: the same command, the same loop, the same checkpoint."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from vla import checkpoint, cli
from vla.backbones import vlm


def line(data: Path, out: Path, model: str) -> list[str]:
    words = (
        f"train --recipe cue_colour --data {data} --out {out} --policy.backbone.type vlm "
        "--policy.backbone.tune lora --policy.backbone.rank 2 --policy.backbone.image-px 32 "
        "--policy.backbone.cells 2 --algo.batch 2 --steps 2 --threads 1 "
        "--eval.every 0 --eval.final-episodes 0"
    )
    return [*words.split(), *(("--policy.backbone.model", model) if model else ())]


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
    assert (backbone.tune, backbone.rank, backbone.cells) == ("lora", 2, 2)
    vocabulary = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    written = json.loads((out / "checkpoint" / "tokenizer.json").read_text())
    assert written["model"]["vocab"] == vocabulary
    assert cli.main(line(arm_dataset, out, str(folder))) == 0  # nothing is left to do


@pytest.mark.parametrize(
    ("model", "said"),
    [("", "policy.backbone.model: got none, expected a model; give its folder"),
     ("owner/name", "fetch it once: hf download owner/name")],
)  # fmt: skip
def test_a_model_that_is_missing_is_one_sentence(
    model: str, said: str, arm_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(line(arm_dataset, tmp_path / "run", model)) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
