"""What tests of the labeller share: a critic with weights, and the command in this process."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reward_models.label import practice
from reward_models.label.command import label
from reward_models.label.plan import prepare
from reward_models.label.settings import LabelArgs


@pytest.fixture(scope="session")
def critic(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pairwise critic with fresh weights: what it says means nothing, but is the same again."""
    return practice.make_critic(tmp_path_factory.mktemp("critic") / "small")


@pytest.fixture
def run(fake_dataset: Path, tmp_path: Path) -> Callable[..., Path]:
    """Return a function that labels the fake data set and returns where."""

    def run(**changes: Any) -> Path:
        given = {"source": fake_dataset, "critic": "oracle", "out": tmp_path / "out", **changes}
        args = LabelArgs(**given)
        label(prepare(args))
        return args.out

    return run
