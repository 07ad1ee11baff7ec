"""`vla lerobot pack` and `unpack`: nothing is lost on the way there and back."""

import json
import shutil

import numpy as np
import pytest
import torch

pytest.importorskip("lerobot")

from lerobot.configs.policies import PreTrainedConfig
from lerobot.configs.types import NormalizationMode
from lerobot.policies.factory import get_policy_class, make_pre_post_processors

from lerobot_policy_mneme import MnemeConfig
from tests.lerobot_policy.stock import files, packed
from vla import checkpoint, cli


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("convert")
    packed(place)
    return place


def test_there_and_back_no_byte_differs(place):
    out = place / "back"
    assert cli.main(["lerobot", "unpack", str(place / "packed"), "--out", str(out)]) == 0
    assert files(out) == files(place / "packed") == files(place / "packed-run")


def test_what_lerobot_loads_and_saves_again_is_the_same_to_the_byte(place, tmp_path):
    config = PreTrainedConfig.from_pretrained(place / "packed")
    policy = get_policy_class(config.type).from_pretrained(place / "packed", config=config)
    ours, _ = checkpoint.load(place / "packed-run")
    weights, loaded = ours.state_dict(), policy.policy.state_dict()
    assert weights.keys() == loaded.keys()
    assert all(value.equal(loaded[name]) for name, value in weights.items())
    policy.save_pretrained(tmp_path / "again")
    again = files(tmp_path / "again")
    before = files(place / "packed")
    assert again == before
    assert json.loads((tmp_path / "again" / "config.json").read_text()) == json.loads(
        (place / "packed" / "config.json").read_text()
    )


def test_the_processors_of_the_folder_leave_every_number_as_it_is(place):
    config = PreTrainedConfig.from_pretrained(place / "packed")
    config.pretrained_path = place / "packed"
    before, after = make_pre_post_processors(config, pretrained_path=str(place / "packed"))
    rng = np.random.default_rng(0)
    state = torch.from_numpy(rng.standard_normal((2, 6), np.float32))
    image = torch.from_numpy(rng.random((2, 3, 8, 8), np.float32))
    clock = torch.tensor([[8, 5, 2**40], [0, 6, 2**40]])
    seen = before({
        "observation.state": state, "observation.images.front": image, "task": ["a", "b"],
        "observation.robot_state": {"clock": clock},
    })  # fmt: skip
    assert seen["observation.state"].equal(state)
    assert seen["observation.images.front"].equal(image)
    assert seen["observation.robot_state"]["clock"].equal(clock)
    assert seen["task"] == ["a", "b"]
    assert after(state).equal(state)


def copy_of(place, tmp_path):
    return shutil.copytree(place / "packed", tmp_path / "copy")


def say(words, capsys):
    assert cli.main(words) == 1
    return capsys.readouterr().err


def test_what_is_wrong_with_a_folder_is_one_sentence(place, tmp_path, capsys):
    out = str(tmp_path / "out")
    assert "no policy of LeRobot there" in say(
        ["lerobot", "unpack", str(tmp_path), "--out", out], capsys
    )
    folder = copy_of(place, tmp_path)
    (folder / "policy.json").unlink()
    assert "no checkpoint there" in say(["lerobot", "unpack", str(folder), "--out", out], capsys)
    (folder / "config.json").write_text('{"type": "act"}')
    told = say(["lerobot", "unpack", str(folder), "--out", out], capsys)
    assert "a policy of type 'act', expected 'mneme'" in told
    told = say(["lerobot", "pack", str(place / "packed-run"), "--out", str(folder)], capsys)
    assert "exists already" in told
    assert not (tmp_path / "out").exists()


def test_a_policy_whose_task_nobody_said_asks_for_it(place, tmp_path, capsys):
    folder, out = copy_of(place, tmp_path), tmp_path / "out"
    said = json.loads((folder / "policy.json").read_text())
    said["provenance"]["task"] = {}
    (folder / "policy.json").write_text(json.dumps(said))
    words = ["lerobot", "unpack", str(folder), "--out", str(out)]
    assert "give --task" in say(words, capsys)
    assert cli.main([*words, "--task", "reach"]) == 0
    assert checkpoint.load(out)[1].task["type"] == "reach"


def test_settings_that_are_not_the_policys_are_refused(place):
    config = PreTrainedConfig.from_pretrained(
        place / "packed", cli_overrides=["--n_action_steps=4"]
    )
    with pytest.raises(ValueError, match="n_action_steps: the settings say 4, .* trained for 8"):
        get_policy_class("mneme").from_pretrained(place / "packed", config=config)
    mode = {"STATE": NormalizationMode.MEAN_STD}
    with pytest.raises(ValueError, match="{'STATE': 'MEAN_STD'}, expected IDENTITY"):
        MnemeConfig(device="cpu", normalization_mapping=mode)
