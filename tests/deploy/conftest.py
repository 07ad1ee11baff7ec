"""Policies and a reward model with random weights, and what is exported of them."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

from deploy.commands import export
from deploy.reward_model import artefact as reward_model_artefacts
from deploy.reward_model import export as reward_model_export
from deploy.reward_model.artefact import RewardModelArtefact
from deploy.runtime import artefact as artefacts
from deploy.runtime.artefact import Artefact
from reward_models.core import checkpoint as reward_model_checkpoint
from reward_models.core.calibration import Calibration
from reward_models.core.curves import ScorerConfig
from reward_models.core.scorer import Scorer
from reward_models.models import pairwise
from tests.fakes import PX, TASKS, fake_policy, liven_
from vla import checkpoint
from vla.backbones import tiny
from vla.checkpoint import Provenance
from vla.contracts.protocols import ArmPolicy
from vla.data.info import DatasetInfo
from vla.data.store import EpisodeStore
from vla.heads import diffusion, flow_matching
from vla.memory import bank, gru, none
from vla.nn.text import train_tokenizer
from vla.policies import vla
from vla.policies.vla import VLAPolicy
from vla.runtime import policy_loader

CONFIGS = {
    "remembers": (
        vla.Config(memory=bank.Config(slots=7), head=diffusion.Config(max_prefix_len=5)), 1,
    ),
    "another": (
        vla.Config(
            memory=none.Config(), cameras=("wrist",),
            head=diffusion.Config(
                denoiser="transformer", prediction_type="epsilon", num_inference_steps=4,
                ft_denoising_steps=2, width=64, depth=1, max_prefix_len=3,
            ),
        ),
        3,
    ),
    "flows": (
        vla.Config(
            memory=none.Config(),
            head=flow_matching.Config(
                width=64, depth=1, num_inference_steps=4, ft_denoising_steps=2, max_prefix_len=3,
            ),
        ),
        1,
    ),
    "recurrent": (
        vla.Config(
            memory=gru.Config(hidden_size=24),
            backbone=tiny.Config(queries=3, text_encoder="transformer"),
            head=diffusion.Config(num_inference_steps=2, max_prefix_len=3),
        ),
        1,
    ),
}  # fmt: skip
"""Policies and the batch they are exported with: between them, every branch of an export."""


def origin() -> Provenance:
    return checkpoint.provenance({"type": "reach"}, TASKS, 7)


def made(name: str) -> VLAPolicy:
    """Return a policy in which the late network differs from the other."""
    return fake_policy(CONFIGS[name][0])


@pytest.fixture(scope="session")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the folder of each exported policy; tests copy what they change.

    It takes a while: several workers of pytest-xdist share what the first one of them exports.
    """
    place = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        place = place.parent
    with FileLock(place / "exported.lock"):
        for name, (_, batch) in CONFIGS.items():
            if not (place / name).exists():
                export.export(made(name), origin(), place / name, batch=batch)
    return {name: place / name for name in CONFIGS}


@pytest.fixture
def policy(exported: dict[str, Path]) -> ArmPolicy:
    """Return an exported policy that remembers."""
    return policy_loader.open_policy(exported["remembers"], threads=1).policy


@pytest.fixture(params=list(CONFIGS))
def pair(request: pytest.FixtureRequest, exported: dict[str, Path]) -> tuple[VLAPolicy, Artefact]:
    """Return each policy with what was exported of it."""
    return made(request.param), artefacts.read(exported[request.param])


CRITIC = pairwise.Config(
    backbone=tiny.Config(image_px=PX), memory_width=8, text_width=8, width=16, bins=9
)
CRITIC_BATCH = 2
SETTINGS = ScorerConfig(lags_s=(0.4, 0.9, 1.7), horizon_s=1.2, absolute_share=0.4)
FITTED = Calibration(
    done=(-0.5, 0.8), confidence=(2.0, -9.0, -12.0, 1.0), trend=(-0.3, 0.8, 0.1, 1.5, 2.0)
)
"""With these the reward model of the tests abstains now and then."""


def made_reward_model(seed: int = 0) -> Scorer:
    """Return a reward model with random weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # noqa: TID251  initial weights come from the global generator
        reward_model = CRITIC.build(train_tokenizer(TASKS))
    liven_(reward_model, seed)
    return Scorer(reward_model.eval(), SETTINGS, FITTED)


def save_reward_model(scorer: Scorer, folder: Path) -> Path:
    """Write a reward model as `vla reward-model train` does."""
    reward_model_checkpoint.save(
        scorer, CRITIC, train_tokenizer(TASKS), folder, weights=scorer.reward_model.state_dict(),
        provenance={"step": 3, "data": ["push"]},
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def reward_model_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folder of a reward model and what was exported of it; tests copy what they
    change.
    """
    place = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        place = place.parent
    trained, exported = place / "reward_model", place / "exported-reward_model"
    with FileLock(place / "exported-reward_model.lock"):
        if not exported.exists():
            reward_model_export.export(
                save_reward_model(made_reward_model(), trained), exported, batch=CRITIC_BATCH
            )
    return trained, exported


@pytest.fixture
def reward_model_artefact(reward_model_folders: tuple[Path, Path]) -> RewardModelArtefact:
    """Return the exported reward model."""
    return reward_model_artefacts.read(reward_model_folders[1])


def with_steps(policy: VLAPolicy, steps: int) -> VLAPolicy:
    """Return the policy, denoising in another number of steps."""
    config = replace(policy.config, head=replace(policy.config.head, num_inference_steps=steps))  # type: ignore[type-var]
    other = config.build(policy.robot, policy.statistics, policy.text.tokenizer)
    other.load_state_dict(policy.state_dict())
    return other.eval()


RECORDED_TASKS = ("press the red button", "press the blue button")


def made_up(px=32):
    """Return a data set of 12 decisions, six in each of two episodes of 48 control steps."""
    rng = np.random.default_rng(3)
    cameras = ("front", "wrist")
    info = DatasetInfo(
        path=Path("made-up"), fps=10.0, robot=None, cameras=(), state_names=("a", "b"),
        action_names=("a", "b"), scalars=(), tasks=RECORDED_TASKS, offsets=np.array([0, 48, 96]),
        video_start={}, video_file={}, recording=None,
    )  # fmt: skip
    return EpisodeStore(
        info=info, cameras=cameras, stride=8,
        frames=rng.integers(0, 256, (12, len(cameras), px, px, 3), np.uint8),
        frame_time=np.tile(np.arange(6) * 8, 2), seq_offsets=np.array([0, 6, 12]),
        seq_episode=np.array([0, 1]), step_offsets=info.offsets,
        states=rng.standard_normal((96, 2), np.float32), actions=np.zeros((96, 2), np.float32),
        scalars={},
    )  # fmt: skip
