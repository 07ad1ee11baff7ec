"""Checkpoints: exact round trips, one sentence for every kind of damage, nothing lost to a kill."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from tests.fake_episodes import fake_robot
from tests.fakes import PX, TASKS, fake_noise, fake_observation, fake_policy
from vla import checkpoint
from vla.memory import bank
from vla.policies import vla
from vla.utils import files

CONFIG = vla.Config(chunk_size=4, n_action_steps=2, memory=bank.Config(slots=9, recent=3))
TASK = {"type": "cue_colour", "colours": 4}


def save(folder: Path, policy: vla.VLAPolicy, step: int = 7, **more: Any) -> None:
    origin = checkpoint.provenance(TASK, TASKS, step)
    checkpoint.save(policy, origin, folder, policy.state_dict(), **more)


@pytest.fixture(scope="module")
def policy() -> vla.VLAPolicy:
    return fake_policy(CONFIG)


@pytest.fixture(scope="module")
def original(policy: vla.VLAPolicy, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run") / "checkpoint"
    save(folder, policy)
    return folder


@pytest.fixture
def folder(original: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    shutil.copytree(original, tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_a_round_trip_is_exact(policy: vla.VLAPolicy, original: Path) -> None:
    loaded, origin = checkpoint.load(original, fake_robot(PX))
    assert (loaded.config, loaded.robot, loaded.statistics) == (
        policy.config, policy.robot, policy.statistics,
    )  # fmt: skip
    assert origin == checkpoint.provenance(TASK, TASKS, 7)
    assert not loaded.training
    weights = loaded.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in policy.state_dict().items())
    rng = np.random.default_rng(0)
    obs, noise = fake_observation(rng, 2), fake_noise(rng, policy, 2)
    a, b = (p.act(obs, p.initial_state(2), noise)[0].values for p in (policy, loaded))
    assert torch.equal(a, b)


def test_the_given_weights_are_stored_not_those_of_the_policy(policy, tmp_path: Path) -> None:
    average = {name: value + 0 for name, value in policy.state_dict().items()}
    average["memory.peak.bias"] = torch.full_like(average["memory.peak.bias"], 0.25)
    origin = checkpoint.provenance(TASK, TASKS, 1)
    checkpoint.save(policy, origin, tmp_path / "c", average)
    assert (checkpoint.load(tmp_path / "c")[0].memory.peak.bias == 0.25).all()


def test_the_run_folder_may_be_given_instead(original: Path, monkeypatch) -> None:
    assert checkpoint.find(original.parent) == original
    monkeypatch.chdir(original)
    assert checkpoint.find(Path()) == original


def edit(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    """Return what changes policy.json."""

    def damage(folder: Path) -> None:
        description = json.loads((folder / "policy.json").read_text())
        change(description)
        (folder / "policy.json").write_text(json.dumps(description))

    return damage


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Callable[[Path], None]:
    """Return what changes the weights."""

    def damage(folder: Path) -> None:
        tensors = safetensors.torch.load_file(folder / "model.safetensors")
        change(tensors)
        safetensors.torch.save_file(tensors, folder / "model.safetensors")

    return damage


def cut(name: str, share: float) -> Callable[[Path], None]:
    """Return what truncates a file."""

    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: int(share * len(content))])

    return damage


WEIGHT = "memory.peak.bias"
DAMAGE = {
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        "checkpoint lacks model.safetensors; copy the whole folder",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "lacks tokenizer.json"),
    "no description": (lambda f: (f / "policy.json").unlink(), "no checkpoint there"),
    "half the weights": (cut("model.safetensors", 0.5), "damaged weights"),
    "no byte of weights": (cut("model.safetensors", 0.0), "damaged weights"),
    "half the description": (cut("policy.json", 0.5), "policy.json: damaged, not JSON"),
    "half the tokenizer": (cut("tokenizer.json", 0.5), "damaged tokenizer"),
    "bytes for text": (
        lambda f: (f / "policy.json").write_bytes(b"\xff\xfe\x00"), "policy.json: damaged",
    ),
    "a list": (lambda f: (f / "policy.json").write_text("[]"), "damaged, no JSON object; restore"),
    "other format": (edit(lambda d: d.update(format=99)), "checkpoint format 99, expected 1"),
    "no format": (edit(lambda d: d.pop("format")), "checkpoint format None, expected 1"),
    "no robot": (edit(lambda d: d.pop("robot")), "robot: expected an object, got None"),
    "unknown field": (
        edit(lambda d: d["policy"]["memory"].update(slotz=3)), "memory: unknown field 'slotz'",
    ),
    "wrong type": (
        edit(lambda d: d["policy"].update(chunk_size="4")),
        "policy.chunk_size: expected int, got '4'",
    ),
    "unknown plug-in": (
        edit(lambda d: d["policy"]["memory"].update(type="bnak")),
        "unknown memory 'bnak': did you mean bank",
    ),
    "impossible setting": (
        edit(lambda d: d["policy"]["memory"].update(slots=2)), "memory.slots must be at least",
    ),
    "huge network": (
        edit(lambda d: d["policy"]["backbone"].update(text_width=20_000_000)),
        "policy.json: describes no network that can be built .far larger than its weights",
    ),
    "wrong shape": (
        weights(lambda t: t.update({WEIGHT: t[WEIGHT][:-1].clone()})),
        r"weight 'memory.peak.bias' has shape \(\d+,\), the description expects \(\d+,\)",
    ),
    "missing weight": (weights(lambda t: t.pop(WEIGHT)), "lacks weight 'memory.peak.bias'"),
    "extra weight": (
        weights(lambda t: t.update(extra=torch.zeros(1))), "unexpected weight 'extra'",
    ),
    "NaN": (
        weights(lambda t: t[WEIGHT].fill_(float("nan"))),
        "weight 'memory.peak.bias' is not finite",
    ),
    "infinity": (
        weights(lambda t: t["normalizer.action_scale"].fill_(float("inf"))),
        "weight 'normalizer.action_scale' is not finite",
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGE)
def test_every_kind_of_damage_has_its_sentence(kind: str, folder: Path) -> None:
    damage, message = DAMAGE[kind]
    damage(folder)
    with pytest.raises(ValueError, match=message):
        checkpoint.load(folder)


def test_nothing_at_the_place_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no checkpoint there.*`vla train --out` wrote"):
        checkpoint.load(tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["os", "evil", "../evil", "vla.policies.vla", "_shared", ""])
@pytest.mark.parametrize("level", ["policy", "memory"])
def test_no_code_outside_the_plug_in_folder_is_run(
    name: str, level: str, folder: Path, monkeypatch
) -> None:
    (folder / "evil.py").write_text("raise SystemExit('code from a checkpoint was run')\n")
    monkeypatch.syspath_prepend(str(folder))

    def change(description: dict[str, Any]) -> None:
        part = description["policy"] if level == "policy" else description["policy"]["memory"]
        part["type"] = name

    edit(change)(folder)
    with pytest.raises(ValueError, match=f"unknown {level}"):
        checkpoint.load(folder)


def test_another_robot_is_refused_and_the_first_difference_named(original: Path) -> None:
    robot = fake_robot(PX)
    shoulder = replace(robot.channels[0], name="shoulder")
    with pytest.raises(ValueError, match=r"wrong robot: .* fake with names .*'joint'.*'shoulder'"):
        checkpoint.load(original, replace(robot, channels=(shoulder, *robot.channels[1:])))
    with pytest.raises(ValueError, match="wrong robot: .* control_hz 10.0, got fake with 20.0"):
        checkpoint.load(original, replace(robot, control_hz=20.0))
    checkpoint.load(original, replace(robot, name="its twin"))


class Killed(BaseException):
    """Stands for the end of the process."""


def test_a_kill_between_the_two_renames_loses_nothing(policy, tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "checkpoint"
    save(folder, policy, step=1)
    calls, rename, rmtree = [], Path.rename, shutil.rmtree

    def killed_at_the_second(self: Path, target: Path) -> Path:
        calls.append(self)
        if len(calls) == 2:
            raise Killed
        return rename(self, target)

    monkeypatch.setattr(files, "exchange", lambda one, other: False)  # as on macOS
    monkeypatch.setattr(Path, "rename", killed_at_the_second)
    # a killed process does not clean up after itself either
    monkeypatch.setattr(shutil, "rmtree", lambda *a, **k: None)
    with pytest.raises(Killed):
        save(folder, policy, step=2)
    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert not folder.exists()
    assert checkpoint.load(folder)[1].step == 1
    assert checkpoint.load(tmp_path)[1].step == 1  # reading leaves the run to its writer
    assert not folder.exists()
    checkpoint.recover_folder(folder)
    assert [f.name for f in tmp_path.iterdir()] == ["checkpoint"]
    save(folder, policy, step=3)
    assert checkpoint.load(folder)[1].step == 3


def test_without_an_exchange_of_names_a_failed_rename_is_taken_back(
    policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rename, calls = tmp_path / "checkpoint", Path.rename, []

    def failing(self: Path, target: Path) -> Path:
        calls.append(target)
        if len(calls) == 2:
            raise OSError(5, "Input/output error")
        return rename(self, target)

    save(folder, policy, step=1)
    monkeypatch.setattr(files, "exchange", lambda one, other: False)
    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="Input/output error"):
        save(folder, policy, step=2)
    monkeypatch.undo()
    assert checkpoint.load(folder)[1].step == 1
    assert [f.name for f in tmp_path.iterdir()] == ["checkpoint"]


def test_a_full_disk_leaves_the_old_checkpoint_and_no_rest(policy, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save(folder, policy, step=1)

    def full(_: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        save(folder, policy, step=2, add_files=full)
    assert checkpoint.load(folder)[1].step == 1
    assert [f.name for f in tmp_path.iterdir()] == ["checkpoint"]


def test_further_files_appear_with_the_weights(policy, tmp_path: Path) -> None:
    save(tmp_path / "c", policy, add_files=lambda place: (place / "trainer.json").write_text("{}"))
    assert (tmp_path / "c" / "trainer.json").read_text() == "{}"
