"""What every registered policy must satisfy; a new one is tested by its name."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.fake_episodes import fake_robot
from tests.fakes import (
    PX,
    STATISTICS,
    TASKS,
    as_batch,
    fake_noise,
    fake_observation,
    fake_rollout,
    liven_,
    rows,
)
from vla import checkpoint
from vla.backbones import tiny
from vla.contracts import config as configs
from vla.contracts import registry
from vla.contracts.protocols import ArmPolicy
from vla.contracts.types import Observation
from vla.nn.text import train_tokenizer

SMALL: dict[str, dict[str, Any]] = {
    "act": {"image_px": PX, "width": 16, "layers": 1},
    "lerobot_diffusion": {
        "image_px": 2 * PX,
        "down_dims": (16, 32),
        "num_inference_steps": 3,
        "eta": 1.0,
    },
    "smolvla": {
        "model": "random",
        "image_px": 24,
        "train_expert_only": False,
        "layers": 1,
        "num_inference_steps": 3,
    },
    "vla": {"backbone": tiny.Config(image_px=PX)},
}
"""Settings that make a policy small enough for tests."""
READS = {"act": False, "lerobot_diffusion": False, "smolvla": True, "vla": True}
"""Which of them read instructions."""
NAMES = registry.names("vla.policies")


def config_of(name: str) -> Any:
    config = registry.load("vla.policies", name).Config()
    return replace(config, chunk_size=4, n_action_steps=2, **SMALL.get(name, {}))


@functools.cache
def made(name: str) -> Any:
    config = config_of(name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  initial weights come from the global generator
        policy = config.build(fake_robot(PX), STATISTICS, train_tokenizer(TASKS))
    liven_(policy, by=0.02)
    return policy.eval()


@pytest.fixture(params=NAMES)
def policy(request: pytest.FixtureRequest) -> Any:
    return made(request.param)


def act(policy: Any, obs: Observation, noise: np.ndarray) -> torch.Tensor:
    return policy.act(obs, policy.initial_state(len(obs.time_s)), noise)[0].values


def test_it_is_a_policy_of_its_arm_that_stays_within_the_arms_limits(policy: Any) -> None:
    assert isinstance(policy, ArmPolicy)
    assert (policy.n_action_steps, policy.max_prefix_len) == (2, 0)
    rng = np.random.default_rng(0)
    values = act(policy, fake_observation(rng, 3), 10 * fake_noise(rng, policy, 3))
    assert values.shape == (3, 4, 2)
    assert values.dtype == torch.float32
    assert values.isfinite().all()
    assert values.abs().max() <= 2.0  # radians, of the made-up arm


def test_a_decision_follows_from_observation_memory_and_noise_alone(policy: Any) -> None:
    rng = np.random.default_rng(1)
    obs, noise = fake_observation(rng, 2), fake_noise(rng, policy, 2)
    once = act(policy, obs, noise)
    act(policy, fake_observation(rng, 3), fake_noise(rng, policy, 3))
    torch.rand(5)  # whatever else is drawn
    assert torch.equal(once, act(policy, obs, noise))


def test_rows_are_decided_alone(policy: Any) -> None:
    rng = np.random.default_rng(2)
    obs, noise = fake_observation(rng, 3), fake_noise(rng, policy, 3)
    together = act(policy, obs, noise)
    for i in range(3):
        alone = act(policy, rows(obs, [i]), noise[[i]])
        torch.testing.assert_close(alone[0], together[i], atol=1e-5, rtol=0)


def test_it_looks_feels_and_uses_every_row_of_its_noise_that_it_reads(policy: Any) -> None:
    name = configs.type_name(policy.config)
    rng = np.random.default_rng(3)
    obs, noise = fake_observation(rng, 1), fake_noise(rng, policy, 1)
    before = act(policy, obs, noise)
    dark = replace(obs, images=255 - obs.images)
    for changed in (dark, replace(obs, proprio=obs.proprio + 1)):
        assert not torch.equal(before, act(policy, changed, noise))
    asked = replace(obs, task=TASKS[1:])
    assert torch.equal(before, act(policy, asked, noise)) is not READS[name]
    assert torch.equal(before, act(policy, obs, noise + 1)) is (name == "act")
    if name == "lerobot_diffusion":  # a DDPM chain: all but the last of the steps draw
        for i in range(3):
            other = noise.copy()
            other[:, i] += 1
            assert not torch.equal(before, act(policy, obs, other))


def test_a_checkpoint_decides_the_same_to_the_bit(policy: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    obs, noise = fake_observation(rng, 2), fake_noise(rng, policy, 2)
    origin = checkpoint.provenance({"type": "fake"}, TASKS, 7)
    checkpoint.save(policy, origin, tmp_path / "c", policy.state_dict())
    written = {path.name for path in (tmp_path / "c").iterdir()}
    assert written == set(checkpoint.FILES)  # nothing that would be run, nothing to look for
    loaded, found = checkpoint.load(tmp_path / "c")
    assert found.step == 7
    assert loaded.config == policy.config
    assert torch.equal(act(loaded, obs, noise), act(policy, obs, noise))


def test_it_learns_a_batch_and_what_is_drawn_follows_from_the_generator(policy: Any) -> None:
    rng = np.random.default_rng(5)
    pupil = made.__wrapped__(configs.type_name(policy.config)).train()
    batch = as_batch(list(fake_rollout(rng, 3, 4)), [4, 4, 4], [0, 5, 9, 11], 4, rng)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        once, again, other = (
            pupil.bc_loss(batch, generator.manual_seed(seed))[0] for seed in (1, 1, 2)
        )
    assert once == again
    assert once != other

    def measured() -> float:
        with torch.no_grad():
            return np.mean([pupil.bc_loss(batch, generator.manual_seed(s))[0] for s in range(4)])

    adam, before = torch.optim.Adam(pupil.parameters(), lr=3e-3), measured()
    for _ in range(14):
        loss, parts = pupil.bc_loss(batch, generator)
        assert parts["loss"] == loss
        adam.zero_grad()
        loss.backward()
        adam.step()
    assert measured() < 0.95 * before  # with the same noise


def test_decisions_without_a_query_teach_only_what_remembers_them(policy: Any) -> None:
    rng, pupil = np.random.default_rng(6), made.__wrapped__(configs.type_name(policy.config))
    pupil.train()  # as LeRobot's loss of ACT must be asked
    batch = as_batch(list(fake_rollout(rng, 2, 3)), [3, 3], [1, 4], 4, rng)
    spoiled = replace(batch, images=batch.images.clone())
    spoiled.images[[0, 2, 3, 5]] = 0
    generator = torch.Generator()
    with torch.no_grad():
        a, b = (pupil.bc_loss(x, generator.manual_seed(0))[0] for x in (batch, spoiled))
    assert (a != b) == policy.remembers


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    ("changes", "message"),
    [({"cameras": ("side",)}, "policy.cameras: fake has cameras"),
     ({"n_action_steps": 5}, r"policy.n_action_steps: got 5, expected 1 to chunk_size = 4")],
)  # fmt: skip
def test_settings_that_do_not_fit_the_arm_are_refused(
    name: str, changes: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(config_of(name), **changes).build(
            fake_robot(PX), STATISTICS, train_tokenizer(TASKS)
        )
