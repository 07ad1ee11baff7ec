"""A policy of two updates with its demonstrations, and runs of practice that take seconds."""

from dataclasses import replace

import pytest
from rich.console import Console

from sim.tasks import reach
from tests.training.tiny_run import tiny_config
from training.core import loop
from training.data import demos
from vla.backbones import tiny
from vla.policies import vla

TASK = reach.Config()


@pytest.fixture(scope="session")
def begun(tmp_path_factory: pytest.TempPathFactory):
    """Return a folder with demonstrations in "demos" and a policy with memory in "start"."""
    place = tmp_path_factory.mktemp("practice")
    demos.record_demos(demos.DemosConfig(out=place / "demos", task=TASK, episodes=3))
    small = vla.Config(chunk_size=4, n_action_steps=4, backbone=tiny.Config())
    clone = tiny_config(task=TASK, policy=small, steps=2)
    clone = replace(clone, algo=replace(clone.algo, short_decisions=0))
    loop.run(clone, place / "demos", place / "start", Console(quiet=True))
    return place
