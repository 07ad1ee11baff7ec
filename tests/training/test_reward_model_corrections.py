"""What people corrected is read from labelled sets and changes what a reward model learns."""

import json
import shutil

import numpy as np
import pytest
import torch

from reward_models.core import overrides
from reward_models.losses import pairwise as pairs
from reward_models.models import pairwise
from training.reward_model.batches import SamplerConfig
from training.reward_model.corrections import PAST, load_corrections, sample_corrections
from vla.backbones import tiny
from vla.nn.text import train_tokenizer


def correction(episode: int, frame: int | None, kind: str, value: int | bool):
    return overrides.Override(
        episode=episode, frame=frame, kind=kind, value=value, author="ann",
        time="2026-11-21T10:00:00+00:00",
    )  # fmt: skip


@pytest.fixture
def corrected(fake_dataset, tmp_path):
    """A data set of 10 Hz in which someone corrected two things, one of them twice."""
    folder = tmp_path / "set"
    shutil.copytree(fake_dataset, folder)
    for one in (
        correction(0, 8, "trend", 1),
        correction(0, 8, "trend", -1),
        correction(2, None, "success", False),
    ):
        overrides.append(folder, one)
    return folder


def test_the_latest_correction_of_a_thing_counts(corrected):
    known = load_corrections([str(corrected)], ("front", "wrist"), horizon_s=0.5, px=32)
    assert known.trend.tolist() == [0, -1]
    assert known.success.tolist() == [-1, 0]
    assert known.images.shape == (2, PAST + 2, 2, 32, 32, 3)


def test_frames_are_those_of_the_horizon_and_of_what_came_before(corrected):
    known = load_corrections([str(corrected)], ("front",), horizon_s=0.5, px=32)
    # The square of episode 0 is at column 4 + t: at step 3 before, at step 8 now.
    now, before = known.images[0, -1, 0], known.images[0, -2, 0]
    background = known.images[0, 0, 0].astype(int)
    for image, step in ((before, 3), (now, 8)):
        columns = np.flatnonzero((np.abs(image.astype(int) - background).sum(2) > 90).any(0))
        assert columns.max() == 4 + step + 3


def test_learning_from_corrections_takes_their_side(corrected):
    known = load_corrections([str(corrected)], ("front", "wrist"), horizon_s=0.5, px=32)
    config = pairwise.Config(backbone=tiny.Config(image_px=32), memory_width=8, width=16, bins=5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251
        reward_model = config.build(train_tokenizer(known.instruction.tolist()))
    optimizer = torch.optim.Adam(reward_model.parameters(), lr=3e-3)
    rng, plain = (
        np.random.default_rng(0),
        SamplerConfig(random_shift_px=0, brightness_jitter=0.0, view_dropout=0.0),
    )
    before = reward_model.standardize_text.running_var.clone()
    found = []
    for _ in range(30):
        batch = sample_corrections(known, 4, plain, rng)
        loss = pairs.correction_loss(reward_model, batch, pairs.Losses(corrected=1.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    assert np.mean(found[-5:]) < 0.3 * np.mean(found[:5])
    assert torch.equal(reward_model.standardize_text.running_var, before)
    assert reward_model.standardize_text.training


def test_a_set_that_nobody_corrected_is_told(fake_dataset):
    with pytest.raises(ValueError, match="holds no corrections; make some with `vla label --rev"):
        load_corrections([str(fake_dataset)], ("front",), horizon_s=1.0, px=32)
    assert load_corrections([], ("front",), horizon_s=1.0, px=32) is None


def test_damaged_corrections_are_told(corrected):
    file = corrected / overrides.FILE
    file.write_text(json.dumps([{"episode": 0}]))
    with pytest.raises(ValueError, match="entry 0"):
        load_corrections([str(corrected)], ("front",), horizon_s=1.0, px=32)
