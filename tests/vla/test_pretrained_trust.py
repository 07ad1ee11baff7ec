"""A pretrained model may be anybody's, and so may a checkpoint that names one."""

import json
import shutil
import socket
from pathlib import Path

import pytest

from tests.vla.test_pretrained import Models, made, saved, settings
from vla import checkpoint


@pytest.mark.parametrize("description", ["kept", "left out"])
def test_a_checkpoint_downloads_nothing_and_says_what_would_fetch_its_model(
    description: str, tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = made(settings("siglip", tiny_model("siglip"), embed_mib=0))
    place = saved(policy, tmp_path / "checkpoint")
    told = json.loads((place / "policy.json").read_text())
    told["policy"]["backbone"]["model"] = "hub:evil/huge"
    said = r"'evil/huge' is not on this machine; fetch it once: hf download evil/huge$"
    if description == "left out":
        told["policy"]["backbone"]["description"] = None
        said = r"policy.json: lacks the description of its pretrained model \(description is null\)"
    (place / "policy.json").write_text(json.dumps(told))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr(socket.socket, "connect", None)
    with pytest.raises(ValueError, match=said):
        checkpoint.load(place)


@pytest.mark.parametrize("kind", ["siglip", "smolvlm"])
def test_no_code_beside_a_model_is_run(
    kind: str, tiny_model: Models, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # to "Do you wish to run the code?"
    folder = shutil.copytree(tiny_model(kind), tmp_path / "model")
    (folder / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = json.loads((folder / "config.json").read_text())
    names = ("AutoConfig", "AutoModel", "AutoModelForImageTextToText")
    config["auto_map"] = {name: f"own.{name}" for name in names}
    (folder / "config.json").write_text(json.dumps(config))
    made(settings(kind, folder))
    config["model_type"] = "unheard_of"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="contains custom code"):
        settings(kind, folder).build(2, 2, 300, 8)
    assert not (tmp_path / "ran").exists()
