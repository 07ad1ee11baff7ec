"""Fresh modules draw their weights from torch's global generator: every test sets it alike."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _same_initial_weights() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # noqa: TID251  torch's initialisers know no other source
        yield
