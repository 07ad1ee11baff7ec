"""Policies and a critic with random weights, and what is exported of them."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from filelock import FileLock

from deploy import artefact as artefacts
from deploy import export
from deploy.artefact import Artefact
from deploy.critic import artefact as critics
from deploy.critic import export as critic_export
from deploy.critic.artefact import CriticArtefact
from reward_models import checkpoint as critic_checkpoint
from reward_models.calibrate import Calibration
from reward_models.critics import pairwise
from reward_models.curves import ScorerConfig
from reward_models.scorer import Scorer
from tests.fakes import PX, TASKS, fake_policy, liven_
from vla import checkpoint, opening
from vla.backbones import tiny
from vla.checkpoint import Provenance
from vla.contracts.protocols import ArmPolicy
from vla.data.info import DatasetInfo
from vla.data.store import EpisodeStore
from vla.heads import diffusion, flow_matching
from vla.memory import bank, none
from vla.nn.text import train_tokenizer
from vla.policies import vla
from vla.policies.vla import VLAPolicy

CONFIGS = {
    "remembers": (vla.Config(memory=bank.Config(slots=7), head=diffusion.Config(prefix=5)), 1),
    "another": (
        vla.Config(
            memory=none.Config(), cameras=("wrist",),
            head=diffusion.Config(
                denoiser="transformer", prediction="epsilon", steps=4, tuned=2, width=64, depth=1,
                prefix=3,
            ),
        ),
        3,
    ),
    "flows": (
        vla.Config(
            memory=none.Config(),
            head=flow_matching.Config(width=64, depth=1, steps=4, tuned=2, prefix=3),
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
    return opening.open_(exported["remembers"], threads=1).policy


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
"""With these the critic of the tests abstains now and then."""


def made_critic(seed: int = 0) -> Scorer:
    """Return a critic with random weights, in evaluation mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)  # noqa: TID251  initial weights come from the global generator
        critic = CRITIC.build(train_tokenizer(TASKS))
    liven_(critic, seed)
    return Scorer(critic.eval(), SETTINGS, FITTED)


def save_critic(scorer: Scorer, folder: Path) -> Path:
    """Write a critic as `vla critic train` does."""
    critic_checkpoint.save(
        scorer, CRITIC, train_tokenizer(TASKS), folder, weights=scorer.critic.state_dict(),
        provenance={"step": 3, "data": ["push"]},
    )  # fmt: skip
    return folder


@pytest.fixture(scope="session")
def critic_folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folder of a critic and what was exported of it; tests copy what they change."""
    place = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        place = place.parent
    trained, exported = place / "critic", place / "exported-critic"
    with FileLock(place / "exported-critic.lock"):
        if not exported.exists():
            critic_export.export(save_critic(made_critic(), trained), exported, batch=CRITIC_BATCH)
    return trained, exported


@pytest.fixture
def critic_artefact(critic_folders: tuple[Path, Path]) -> CriticArtefact:
    """Return the exported critic."""
    return critics.read(critic_folders[1])


def with_steps(policy: VLAPolicy, steps: int) -> VLAPolicy:
    """Return the policy, denoising in another number of steps."""
    config = replace(policy.config, head=replace(policy.config.head, steps=steps))  # type: ignore[type-var]
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
