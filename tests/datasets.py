"""Data sets that several tests read; nobody may write to them."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fake_episodes import fake_episode, fake_robot
from vla.contracts import registry
from vla.data.writer import merge_shards, write_shard

EPISODES = 5


@pytest.fixture(scope="session")
def fake_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set of `EPISODES` fake episodes, merged from shards of 3 and 2."""
    place = tmp_path_factory.mktemp("data")
    robot = fake_robot()
    for name, indices in (("a", (0, 1, 2)), ("b", (3, 4))):
        write_shard(place / name, robot, (fake_episode("push", 7, i) for i in indices), {})
    merge_shards([place / "a", place / "b"], place / "whole", {"seed": 7})
    return place / "whole"


@pytest.fixture(scope="session")
def arm_dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set of 7 made-up episodes of the so101 arm with small images."""
    spec = registry.load("vla.robots", "so101").SPEC
    cameras = tuple(replace(c, width_px=32, height_px=32) for c in spec.cameras)
    robot = replace(spec, cameras=cameras)
    folder = tmp_path_factory.mktemp("arm") / "data"
    write_shard(folder, robot, (fake_episode("press", 3, i, robot=robot) for i in range(7)), {})
    return folder
