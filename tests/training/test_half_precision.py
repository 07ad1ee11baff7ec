"""Mixed precision as on a GPU, in bfloat16 on the CPU. Gradients are not scaled: unlike float16,
bfloat16 has the whole range of exponents.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.training.test_pretend_device import CLONES
from tests.training.tiny_run import run
from training.algos import bc
from training.core.metrics import read_metrics
from training.data import features
from vla import checkpoint


@pytest.fixture
def half(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what switches training to bfloat16."""

    def switch() -> None:
        for module in (bc, features):
            monkeypatch.setattr(
                module, "half_precision", lambda device: torch.autocast("cpu", torch.bfloat16)
            )

    return switch


@pytest.mark.parametrize("kind", CLONES)
def test_losses_are_near_those_of_32_bits_and_weights_stay_in_them(
    kind: str, arm_dataset: Path, tmp_path: Path, half: Callable[[], None]
) -> None:
    losses = []
    for precision in ("single", "half"):
        if precision == "half":
            half()
        out = run(replace(CLONES[kind](), steps=4), arm_dataset, tmp_path / precision / "run")
        losses.append([row["loss"] for row in read_metrics(out)])
        policy, _ = checkpoint.load(out)
        for name, value in policy.state_dict().items():
            assert value.dtype != torch.bfloat16, name
            assert not value.is_floating_point() or bool(value.isfinite().all()), name
    single, halved = losses
    assert single != halved, "nothing was computed in bfloat16"
    assert halved == pytest.approx(single, rel=0.05)
