"""Fixtures of the bridge's tests: ROS domains that parallel tests do not share, and a policy."""

import os
from dataclasses import replace

import pytest

from deploy.commands import export
from sim.tasks import cue_colour
from tests.training.small_policy import TASK, small_policy
from vla import checkpoint
from vla.contracts import config as configs


@pytest.fixture(autouse=True)
def domain(monkeypatch, worker_id):
    """Each worker has a domain of its own, so that parallel tests do not hear each other."""
    number = 60 + int(worker_id.removeprefix("gw") or 0) if worker_id != "master" else 59
    monkeypatch.setenv("ROS_DOMAIN_ID", str(number))
    assert os.environ["FASTDDS_DEFAULT_PROFILES_FILE"].endswith("fastdds_loopback.xml")
    return number


@pytest.fixture(scope="session")
def arm_policy(tmp_path_factory):
    """An exported policy with random weights, for episodes of at most seven seconds."""
    place = tmp_path_factory.mktemp("arm_policy") / "exported"
    task = configs.to_json(replace(TASK, delay_steps=(16, 17)))
    origin = checkpoint.provenance(task, cue_colour.INSTRUCTIONS, 7)
    export.export(small_policy(), origin, place)
    return place
