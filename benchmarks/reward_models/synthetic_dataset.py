"""A small made-up data set and a reward model with fresh weights: what speed and crashes are tried
on.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from reward_models.core import checkpoint as reward_model_checkpoint
from reward_models.core.curves import ScorerConfig
from reward_models.core.scorer import Scorer
from reward_models.models import pairwise
from vla.contracts import registry
from vla.contracts.specs import RobotSpec
from vla.data.writer import write_shard
from vla.nn.text import train_tokenizer

TASKS = ("push the red square", "push the blue square")


@dataclass(frozen=True, kw_only=True)
class Clip:
    """An episode of the made-up data set, as `vla.data.writer.Episode` wants it."""

    images: np.ndarray
    proprio: np.ndarray
    action: np.ndarray
    success: np.ndarray
    progress: np.ndarray
    instruction: str
    behaviour: str = "made up"
    labels: dict[str, np.ndarray] = field(default_factory=dict)
    instructions: tuple[str, ...] = ()


def clip(robot: RobotSpec, seed: int, index: int, steps: int) -> Clip:
    """Return an episode in which a bright square crosses noise."""
    rng = np.random.default_rng([seed, index])
    camera, channels = robot.cameras[0], len(robot.channels)
    height, width = camera.height_px, camera.width_px
    images = np.empty((steps, len(robot.cameras), height, width, 3), np.uint8)
    images[:] = rng.integers(60, 180, (height, width, 3), np.uint8)
    for t in range(steps):
        left = (width - 12) * t // steps
        images[t, :, 20:32, left : left + 12] = (240, 30, 30) if index % 2 else (30, 30, 240)
    return Clip(
        images=images, proprio=np.zeros((steps, channels), np.float32),
        action=np.zeros((steps, channels), np.float32), success=np.arange(steps) == steps - 1,
        progress=np.linspace(0, 1, steps).astype(np.float32), instruction=TASKS[index % 2],
    )  # fmt: skip


def make_data(folder: Path, *, episodes: int, steps: int, seed: int = 0) -> Path:
    """Write the data set, if it is not there; return where."""
    if not folder.exists():
        robot = registry.load("vla.robots", "so101").SPEC
        folder.parent.mkdir(parents=True, exist_ok=True)
        write_shard(folder, robot, (clip(robot, seed, i, steps) for i in range(episodes)), {})
    return folder


def make_reward_model(folder: Path, config: pairwise.Config | None = None) -> Path:
    """Write a reward model with fresh weights of a fixed seed, if it is not there; return where.

    It never abstains: what it says means nothing, but all of it is compared.
    """
    if not folder.exists():
        config, words = config or pairwise.Config(), train_tokenizer(TASKS)
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(0)
            reward_model = config.build(words)
        scorer = Scorer(reward_model, ScorerConfig(abstain_below=0.0))
        reward_model_checkpoint.save(
            scorer, config, words, folder, weights=reward_model.state_dict(),
            provenance={"untrained": True},
        )  # fmt: skip
    return folder
