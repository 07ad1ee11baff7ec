"""Remember a colour while a side lamp flashes eight other times: what memory keeps and ignores."""

import dataclasses

from sim.tasks import cue_colour
from training.core.config import TrainConfig
from training.recipes import _base
from vla.memory import bank
from vla.policies import vla


def recipe() -> TrainConfig:
    """Return the recipe."""
    base = _base.memory_task(cue_colour.Config(distractors=8))
    policy = vla.Config(memory=bank.Config(slots=32, recent=8))
    return dataclasses.replace(base, policy=policy, steps=1500)
