"""What the tests here share: initial weights, and data sets of other formats.

Fresh modules draw their weights from torch's global generator: every test sets it alike.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from benchmarks.hardening import other_formats
from benchmarks.hardening.other_formats import B_FRAMES


@pytest.fixture(autouse=True)
def _same_initial_weights() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  torch's initialisers know no other source
        yield


@pytest.fixture(scope="module")
def v2(fake_dataset, tmp_path_factory) -> Path:
    return other_formats.lerobot_v2(fake_dataset, tmp_path_factory.mktemp("v2") / "v2", B_FRAMES)


@pytest.fixture(scope="module")
def hdf5(fake_dataset, tmp_path_factory) -> Path:
    return other_formats.robomimic(fake_dataset, tmp_path_factory.mktemp("hdf5") / "demo.hdf5")


@pytest.fixture(scope="module")
def rlds(fake_dataset, tmp_path_factory) -> Path:
    return other_formats.rlds(fake_dataset, tmp_path_factory.mktemp("rlds") / "arm/1.0.0")
