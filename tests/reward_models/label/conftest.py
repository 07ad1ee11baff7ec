"""What tests of the labeller share: a reward model with weights, and the command in this
process.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.reward_models import synthetic_dataset
from reward_models.label.command import label
from reward_models.label.plan import prepare
from reward_models.label.settings import LabelArgs


@pytest.fixture(scope="session")
def reward_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pairwise reward model with fresh weights: what it says means nothing, but is the same
    again.
    """
    return synthetic_dataset.make_reward_model(tmp_path_factory.mktemp("reward_model") / "small")


@pytest.fixture
def run(fake_dataset: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that labels the fake data set and returns where."""

    def run(**changes: Any) -> Path:
        given = {
            "source": fake_dataset,
            "reward_model": "oracle",
            "out": tmp_path / "out",
            **changes,
        }
        args = LabelArgs(**given)
        label(prepare(args))
        return args.out

    return run
