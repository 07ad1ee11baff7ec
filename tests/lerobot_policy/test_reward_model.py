"""Our reward model behind LeRobot's interface: found by name, scores as `vla label` does."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("lerobot.rewards", reason="LeRobot 0.6, which needs Python 3.12")

from lerobot.rewards import (
    make_reward_model,
    make_reward_model_config,
    make_reward_pre_post_processors,
)

import lerobot_policy_mneme  # noqa: F401  registers it, as LeRobot does by its name
from reward_models.core import checkpoint
from reward_models.core.scorer import Scorer
from tests.fakes import PX, TASKS, liven_
from tests.reward_models.test_checkpoint import CONFIG, save
from vla.contracts.types import Frames
from vla.nn.text import train_tokenizer

WINDOW, ROWS, FPS = 5, 2, 10.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a reward model on disk."""
    network = CONFIG.build(train_tokenizer(TASKS))
    liven_(network)
    place = tmp_path_factory.mktemp("made") / "reward_model"
    save(Scorer(network.eval()), place)
    return place


@pytest.fixture(scope="module")
def scorer(folder: Path) -> Scorer:
    return checkpoint.load(folder)


@pytest.fixture(scope="module")
def images(scorer: Scorer) -> np.ndarray:
    """Return u8 [b, t, v, h, w, 3]."""
    shape = (ROWS, WINDOW, len(scorer.reward_model.cameras), PX, PX, 3)
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


def window(scorer: Scorer, images: np.ndarray) -> dict:
    floats = torch.from_numpy(images).permute(0, 1, 2, 5, 3, 4).float() / 255
    named = {
        f"observation.images.{name}": floats[:, :, view]
        for view, name in enumerate(scorer.reward_model.cameras)
    }
    return {**named, "task": ["push it", "lift it"]}


@pytest.mark.parametrize("output", ["progress", "success"])
def test_the_last_frame_of_a_window_scores_as_in_our_own_scorer(
    scorer: Scorer, folder: Path, images: np.ndarray, output: str
) -> None:
    config = make_reward_model_config(
        "mneme", pretrained_path=str(folder), device="cpu", reward_output=output, fps=FPS
    )
    model = make_reward_model(config)
    before, after = make_reward_pre_post_processors(config)
    batch = before(window(scorer, images))
    found = after(model.compute_reward(batch))
    frames = Frames(
        images=images.reshape(-1, *images.shape[2:]),
        image_ok=np.ones((ROWS * WINDOW, images.shape[2]), np.bool_),
        time_s=np.tile(np.arange(WINDOW) / FPS, ROWS),
        episode_index=np.repeat(np.arange(ROWS), WINDOW),
    )
    curves = scorer.curves(frames, ("push it", "lift it"))
    whole = curves.value if output == "progress" else scorer.progress(curves).done_prob
    np.testing.assert_array_equal(found.numpy(), whole[WINDOW - 1 :: WINDOW])
    assert not model.is_trainable


def test_it_is_saved_and_opened_again(scorer, folder: Path, images, tmp_path: Path) -> None:
    model = make_reward_model(
        make_reward_model_config("mneme", pretrained_path=str(folder), device="cpu", fps=4.0)
    )
    model.save_pretrained(tmp_path / "saved")
    again = type(model).from_pretrained(tmp_path / "saved")
    assert again.config.fps == 4.0
    batch = window(scorer, images)
    torch.testing.assert_close(again.compute_reward(batch), model.compute_reward(batch))


def test_what_is_wrong_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="got no folder, expected that of `vla reward-model"):
        make_reward_model(make_reward_model_config("mneme", device="cpu"))
    with pytest.raises(ValueError, match="no reward model there"):
        make_reward_model(
            make_reward_model_config("mneme", device="cpu", pretrained_path=str(tmp_path))
        )
    model = make_reward_model(
        make_reward_model_config("mneme", device="cpu", pretrained_path=str(folder))
    )
    with pytest.raises(ValueError, match=r"missing, got no images"):
        model.compute_reward({"task": "push it"})
