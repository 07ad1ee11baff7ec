"""The vision-language model as an actor, beside the critic that shares it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from reward_models.critics import vlm as critics
from sim import vec_env
from tests.fake_episodes import fake_robot
from tests.fakes import PX, fake_observation, liven_
from vla.contracts.protocols import Policy
from vla.contracts.types import Frames
from vla.nn import tiny_models, vlm
from vla.vlm_actor import ActorConfig, VlmActor

RNG = np.random.default_rng(0)
NOISE = np.zeros((3, *VlmActor.noise_shape), np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tiny_models.save_qwen(tmp_path_factory.mktemp("qwen"))


def actor(folder: Path, lora_rank: int = 0, **changes) -> VlmActor:
    model = vlm.load(str(folder), lora_rank=lora_rank)
    if not lora_rank:
        liven_(model.model, by=0.3)
    config = replace(ActorConfig(chunk=2, cameras=("front",), bins=16), **changes)
    return VlmActor(config, fake_robot(PX), model)


def test_it_acts_within_the_limits_whatever_the_model_says(folder: Path) -> None:
    arm = actor(folder)
    assert isinstance(arm, Policy)
    obs = fake_observation(RNG, 3)
    chunk, state = arm.act(obs, arm.initial_state(3), NOISE)
    assert chunk.values.shape == (3, 2, 2)
    low, high = torch.tensor(arm.robot.low), torch.tensor(arm.robot.high)
    assert ((chunk.values > low) & (chunk.values < high)).all()
    assert state.slot_count.tolist() == [[0.0]] * 3
    again, _ = arm.act(obs, state, NOISE + 1.0)
    assert torch.equal(again.values, chunk.values)


def test_bins_lie_between_the_limits_and_their_middles_are_the_values(folder: Path) -> None:
    arm = actor(folder)
    low, high = torch.tensor(arm.robot.low), torch.tensor(arm.robot.high)
    bins = torch.arange(16)[:, None].expand(-1, 2)
    values = arm.values_of(bins)
    torch.testing.assert_close(values[0], low + (high - low) / 32)  # half of one bin in 16
    assert torch.equal(arm.bins_of(values), bins)
    outside = torch.stack([low - 1.0, high + 1.0])
    assert arm.bins_of(outside).tolist() == [[0, 0], [15, 15]]


def test_it_learns_to_repeat_what_it_was_shown(folder: Path) -> None:
    arm = actor(folder, lora_rank=4)
    obs = fake_observation(RNG, 2)
    low, high = torch.tensor(arm.robot.low), torch.tensor(arm.robot.high)
    shown = low + (high - low) * torch.rand(2, 2, 2, generator=torch.Generator().manual_seed(0))
    weights = [p for p in arm.vlm.parameters() if p.requires_grad]
    optimiser = torch.optim.AdamW(weights, lr=1e-2)
    for _ in range(60):
        loss = arm.loss(obs, shown)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    chunk, _ = arm.act(obs, arm.initial_state(2), NOISE[:2])
    assert ((chunk.values - shown).abs() <= (high - low) / 32 + 1e-6).all()


def test_one_network_plays_both_roles(folder: Path) -> None:
    arm = actor(folder)
    told = critics.Config(model=str(folder), cameras=("front",), image_px=PX, dtype="float32")
    critic = critics.VlmCritic(told, arm.vlm)
    obs = fake_observation(RNG, 2)
    frames = Frames(
        images=obs.images[:, :1], image_ok=obs.image_ok[:, :1], time_s=obs.time_s,
        row=np.arange(2),
    )  # fmt: skip
    now, _ = critic.embed(frames, obs.task, critic.remember(2))
    assert critic.judge(now, now, None).value.shape == (2,)
    assert arm.act(obs, arm.initial_state(2), NOISE[:2])[0].values.shape == (2, 2, 2)
    assert critic.vlm is arm.vlm


def test_it_drives_a_simulated_arm(folder: Path) -> None:
    env = vec_env.make("reach", 2)
    try:
        model = vlm.load(str(folder))
        arm = VlmActor(ActorConfig(chunk=2, bins=256), env.spec.robot, model)
        obs = env.reset(seed=0)
        chunk, _ = arm.act(obs, arm.initial_state(2), NOISE[:2])
        after = env.step_chunk(chunk.values.numpy())
        assert after.info["steps"].tolist() == [2, 2]
    finally:
        env.close()


def test_wrong_use_is_explained(folder: Path) -> None:
    with pytest.raises(ValueError, match="has cameras .* got .'back',."):
        actor(folder, cameras=("back",))
    with pytest.raises(ValueError, match="bins: got 100000, but the tokenizer has"):
        actor(folder, bins=100_000)
    with pytest.raises(ValueError, match="chunk: got 0, expected at least 1"):
        ActorConfig(chunk=0)
