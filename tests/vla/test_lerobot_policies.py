"""What is LeRobot's in the baselines: its scaling, its model folders, and what it is refused."""

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
from tests.fakes import PX, STATISTICS, TASKS, fake_noise, fake_observation
from vla import checkpoint
from vla.contracts.types import Prefix
from vla.data.store import load_episodes, statistics
from vla.nn.text import train_tokenizer
from vla.policies import act, lerobot_diffusion, smolvla
from vla.policies._lerobot import Scale, image_statistics


def test_columns_are_scaled_as_lerobot_scales_them() -> None:
    column = statistics(np.array([[0.0, 1.0], [2.0, 1.0], [4.0, 1.0]], np.float32))
    ranged, spread = Scale("range", 2), Scale("deviation", 2)
    ranged.fit_statistics(column)
    spread.fit_statistics(column)
    given = torch.tensor([[0.0, 1.0], [4.0, 1.025]])
    # The second column does not vary: it is moved to 0, and 0.05 of it become 2, or 1.
    expected = torch.tensor([[-1.0, 0.0], [1.0, 1.0]])
    torch.testing.assert_close(ranged(given), expected)
    deviation = (8 / 3) ** 0.5
    expected = torch.tensor([[-2 / deviation, 0.0], [2 / deviation, 0.5]])
    torch.testing.assert_close(spread(given), expected)
    for scale in (ranged, spread):
        torch.testing.assert_close(scale.inverse(scale(given)), given)


def test_pictures_are_measured_view_by_view_and_colour_by_colour() -> None:
    frames = np.zeros((4, 2, 2, 2, 3), np.uint8)
    frames[:2, 0, ..., 0] = 255  # half of the first camera's reds
    frames[:, 1, ..., 2] = 51  # all blues of the second
    mean, std = image_statistics(frames)
    torch.testing.assert_close(mean, torch.tensor([[0.5, 0.0, 0.0], [0.0, 0.0, 0.2]]))
    torch.testing.assert_close(std, torch.tensor([[0.5, 1e-3, 1e-3], [1e-3, 1e-3, 1e-3]]))


def test_a_picture_of_mean_colour_is_shown_as_zero(fake_dataset: Path, tmp_path: Path) -> None:
    policy = small(act.Config(width=16, layers=1, image_px=PX))
    frames = np.full((3, 2, PX, PX, 3), 51, np.uint8)
    frames[0], frames[1] = 0, 102
    store = load_episodes(
        fake_dataset, cameras=("front", "wrist"), image_hw=(PX, PX), stride=1, phase_seed=0,
        phases=1, cache_dir=tmp_path,
    )  # fmt: skip
    policy.fit_statistics(replace(store, frames=frames))
    mean = torch.from_numpy(store.states.mean(0, keepdims=True))
    seen = policy.inputs(torch.from_numpy(frames[2:]), mean, TASKS[:1])
    assert seen["observation.images.wrist"].shape == (1, 3, PX, PX)
    assert seen["observation.images.wrist"].abs().max() < 1e-3
    assert seen["observation.state"].abs().max() < 1e-4


def small(config: Any) -> Any:
    config = replace(config, chunk_size=4, n_action_steps=2)
    return config.build(fake_robot(PX), STATISTICS, config.tokenizer(TASKS)).eval()


@pytest.fixture
def model(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    return shutil.copytree(tiny_model("smolvlm"), tmp_path / "model")


def test_a_smolvla_takes_its_models_weights_and_its_checkpoint_needs_no_folder(
    model: Path, tmp_path: Path
) -> None:
    policy = small(smolvla.Config(model=str(model), layers=1, num_inference_steps=2, image_px=PX))
    given = safetensors.torch.load_file(model / "model.safetensors")
    name = "model.vision_model.embeddings.patch_embedding.weight"
    assert torch.equal(policy.vlm.state_dict()[name], given[name])
    layers = {key.split(".")[3] for key in policy.vlm.state_dict() if "text_model.layers" in key}
    assert layers == {"0"}  # of two
    learns = [n for n, p in policy.net.named_parameters() if p.requires_grad]
    assert learns
    assert not any(".vlm." in name for name in learns)
    origin = checkpoint.provenance({"type": "fake"}, TASKS, 1)
    checkpoint.save(policy, origin, tmp_path / "c", policy.state_dict())
    shutil.rmtree(model)
    loaded, found = checkpoint.load(tmp_path / "c")
    assert found.pretrained["name"] == str(model)
    rng = np.random.default_rng(0)
    obs, noise = fake_observation(rng, 2), fake_noise(rng, policy, 2)
    a, b = (p.act(obs, p.initial_state(2), noise)[0].values for p in (policy, loaded))
    assert torch.equal(a, b)


def test_smolvla_does_not_learn_what_follows_the_end_of_an_episode() -> None:
    policy = small(smolvla.Config(model="random", image_px=24, layers=1))
    seen = policy.inputs(torch.zeros(2, 2, PX, PX, 3), torch.zeros(2, 2), TASKS)
    assert seen["observation.language.attention_mask"].all()
    padded = torch.tensor([[False, False, True, True]] * 2)
    seen |= {"action": torch.zeros(2, 4, 2), "action_is_pad": padded}
    losses = []
    for beyond in (0.0, 100.0):
        seen["action"][:, 2:] = beyond
        with torch.random.fork_rng(devices=[]), torch.no_grad():
            torch.manual_seed(0)  # noqa: TID251  LeRobot's losses draw from it
            losses.append(float(policy.loss(seen)))
    assert losses[1] == pytest.approx(losses[0])  # actions attend to earlier ones alone


def test_a_model_of_another_family_is_refused(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ValueError, match="holds a 'qwen3_vl', expected a SmolVLM"):
        small(smolvla.Config(model=str(tiny_model("qwen3_vl"))))


@pytest.mark.parametrize(
    ("config", "changes", "message"),
    [
        (act.Config, {"width": 20}, "policy.width: got 20, expected a multiple of 8"),
        (act.Config, {"layers": 0}, "layers: got 0"),
        (
            lerobot_diffusion.Config,
            {"chunk_size": 12},
            "multiple of 8: 3 policy.down_dims",
        ),
        (lerobot_diffusion.Config, {"down_dims": (20,)}, "expected multiples of 8"),
        (lerobot_diffusion.Config, {"eta": 2.0}, "eta up to 1"),
        (smolvla.Config, {"model": "random", "image_px": 100}, "a multiple of 24"),
    ],
)
def test_settings_out_of_range_are_refused(config: Any, changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        config(**changes)


def test_a_prefix_is_refused() -> None:
    policy = small(act.Config(width=16, layers=1, image_px=PX))
    obs = fake_observation(np.random.default_rng(0), 1)
    noise = np.zeros((1, 1, 4, 2), np.float32)
    prefix = Prefix(values=noise[0], mask=np.zeros((1, 4), np.float32))
    with pytest.raises(ValueError, match="LeRobot policies take none"):
        policy.act(obs, policy.initial_state(1), noise, prefix)
    assert train_tokenizer(TASKS).get_vocab_size() == policy.text.vocabulary
