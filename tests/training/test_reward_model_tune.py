"""Tuning a vision-language reward model on a data set, from the command to the reward model that
is read.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import tiny_models
from reward_models.core import checkpoint
from reward_models.models import vlm
from training.commands import tune_reward_model
from training.commands.tune_reward_model import TuneConfig
from vla.data.info import Columns
from vla.data.reader import open_dataset, read_columns

PX = 32


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return tiny_models.save_qwen(tmp_path_factory.mktemp("qwen"))


@pytest.fixture
def config(model: Path) -> TuneConfig:
    told = vlm.Config(model=str(model), image_px=PX, dtype="float32", lora_rank=4)
    return TuneConfig(reward_model=told, frames=4, pairs=6)


def test_the_command_writes_a_reward_model_that_has_learned(
    model: Path, arm_dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "reward_model"
    words = (
        f"--dataset {arm_dataset} --out {out} --steps 12 --pairs 4 --frames 3 --lr 0.01 "
        f"--reward-model.model {model} --reward-model.image-px 32 "
        "--reward-model.dtype float32 --reward-model.lora-rank 4"
    )
    assert tune_reward_model.main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("update 1 of 12: loss ")
    assert lines[-1] == f"reward model: {out}"
    first, last = (float(lines[i].split("loss ")[1].split(",")[0]) for i in (0, -2))
    assert last < first
    scorer = checkpoint.load(out)
    assert all(weights.isfinite().all() for weights in scorer.reward_model.state_dict().values())
    assert (out / "adapter/adapter_model.safetensors").is_file()
    with pytest.raises(ValueError, match="exists; choose another --out"):
        tune_reward_model.main(words.split())


def test_pairs_carry_the_labels_of_their_own_frames(config: TuneConfig, arm_dataset: Path) -> None:
    reward_model = config.reward_model.build()
    info = open_dataset(arm_dataset)
    moments = tune_reward_model.read(info, reward_model, config)
    assert len(moments.progress) == 4 * info.num_episodes  # 4 frames of each
    starts = moments.offsets[:-1]
    assert (moments.progress[starts] == 0).all()
    assert (moments.progress[moments.offsets[1:] - 1] == 1).all()
    pairs = tune_reward_model.sample_pairs(
        moments, replace(config, mismatched_instruction_prob=0.0), np.random.default_rng(0)
    )
    assert pairs.match.tolist() == [1.0] * 6
    for i in range(6):
        at = int((moments.embeddings == pairs.b[i]).all(1).nonzero()[0, 0])
        assert moments.progress[at] == pairs.progress[i, 1]
        assert moments.done[at] == pairs.done[i]
        episode = np.searchsorted(moments.offsets, at, side="right") - 1
        assert torch.equal(moments.embeddings[starts[episode]], pairs.first[i])


def test_a_foreign_instruction_changes_the_words_alone_and_nothing_was_done_for_it(
    config: TuneConfig, arm_dataset: Path
) -> None:
    moments = tune_reward_model.read(open_dataset(arm_dataset), config.reward_model.build(), config)
    own = tune_reward_model.sample_pairs(
        moments, replace(config, mismatched_instruction_prob=0.0), np.random.default_rng(0)
    )
    told = tune_reward_model.sample_pairs(
        moments, replace(config, mismatched_instruction_prob=1.0), np.random.default_rng(0)
    )
    assert told.match.tolist() == [0.0] * 6
    assert (told.progress == 0).all()
    assert (told.done == 0).all()
    assert (told.a[:, : vlm.TEXT_BYTES] != own.a[:, : vlm.TEXT_BYTES]).any(1).all()
    assert torch.equal(told.a[:, vlm.TEXT_BYTES :], own.a[:, vlm.TEXT_BYTES :])


def test_motion_labels_episodes_that_succeed_and_no_others(arm_dataset: Path) -> None:
    info = open_dataset(arm_dataset)
    columns = read_columns(info)
    success = columns.scalars["success"].copy()
    success[info.offsets[1] - 1] = 0.0  # the first episode fails
    changed = Columns(
        state=columns.state, action=columns.action, scalars={**columns.scalars, "success": success}
    )
    progress = tune_reward_model.motion(info, changed)
    assert np.isnan(progress[: info.offsets[1]]).all()
    rest = progress[info.offsets[1] :]
    assert ((rest >= 0) & (rest <= 1)).all()
    assert (progress[info.offsets[2:] - 1] == 1).all()


def test_what_is_not_recorded_is_known_only_far_from_the_end() -> None:
    columns = Columns(state=np.zeros((4, 1)), action=np.zeros((4, 1)), scalars={})
    done = tune_reward_model.completed(columns, np.array([0.5, 0.9, 0.97, np.nan], np.float32))
    np.testing.assert_array_equal(done, np.array([0.0, np.nan, 1.0, np.nan], np.float32))


def test_wrong_use_is_explained(arm_dataset: Path, fake_dataset: Path, tmp_path: Path) -> None:
    info = open_dataset(arm_dataset)
    bare = Columns(state=np.zeros((0, 1)), action=np.zeros((0, 1)), scalars={})
    with pytest.raises(ValueError, match="has no column 'progress'; take --labels motion"):
        tune_reward_model.recorded(info, bare)
    with pytest.raises(ValueError, match="robot 'fake' is not under vla/robots"):
        tune_reward_model.motion(open_dataset(fake_dataset), bare)
    with pytest.raises(ValueError, match="steps: got 0, expected at least 1"):
        TuneConfig(steps=0)
