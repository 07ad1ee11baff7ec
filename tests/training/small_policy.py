"""An untrained policy for a short memory task, and a run folder around it; fast to play."""

import json
from pathlib import Path

import torch

from sim.tasks import cue_colour
from vla import checkpoint
from vla.contracts import config as configs
from vla.contracts import registry
from vla.contracts.config import PluginConfig
from vla.heads import diffusion
from vla.memory import bank
from vla.nn.normalize import NormalizationStatistics
from vla.nn.text import train_tokenizer
from vla.policies import vla
from vla.policies.vla import VLAPolicy

TASK = cue_colour.Config(delay_steps=(16, 64), act_steps=8)
SLOTS = 7


def small_policy(memory: PluginConfig | None = None, prefix: int = 0) -> VLAPolicy:
    """Return a policy for so101 with random weights, with a bank of `SLOTS` slots by default, that
    goes on from up to `prefix` actions.
    """
    robot = registry.load("vla.robots", "so101").SPEC
    channels = len(robot.channels)
    statistics = NormalizationStatistics(
        state_mean=robot.home, state_std=(0.5,) * channels, action_low=robot.low,
        action_high=robot.high,
    )  # fmt: skip
    head = diffusion.Config(max_prefix_len=prefix)
    config = vla.Config(memory=memory or bank.Config(slots=SLOTS), head=head)
    with torch.random.fork_rng(devices=[]):  # the same weights whatever tests ran before
        torch.manual_seed(0)  # noqa: TID251  torch's initialisers know no other source
        return config.build(robot, statistics, train_tokenizer(cue_colour.INSTRUCTIONS)).eval()


def write_run(policy: VLAPolicy, folder: Path) -> None:
    """Write what a training run of `TASK` that has just saved its first checkpoint leaves."""
    folder.mkdir()
    config = {"task": configs.to_json(TASK), "policy": configs.to_json(policy.config), "steps": 9}
    (folder / "config.json").write_text(json.dumps(config))
    origin = checkpoint.provenance(configs.to_json(TASK), cue_colour.INSTRUCTIONS, 7)
    checkpoint.save(policy, origin, folder / "checkpoint", policy.state_dict())
