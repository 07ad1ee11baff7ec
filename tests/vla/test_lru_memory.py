"""The scan of the state-space memory is the recurrence, and its state cannot grow."""

import pytest
import torch

from vla.memory import lru
from vla.nn.scan import scan


def test_the_scan_is_the_recurrence_for_any_length() -> None:
    generator = torch.Generator().manual_seed(0)
    for length in (1, 2, 7, 16, 33):
        factor, inputs = torch.rand(2, 2, length, 3, generator=generator)
        held, expected = torch.zeros(2, 3), []
        for t in range(length):
            held = factor[:, t] * held + inputs[:, t]
            expected.append(held)
        torch.testing.assert_close(scan(factor, inputs), torch.stack(expected, 1))


def test_a_state_stays_bounded_over_ten_thousand_decisions_even_after_wild_training() -> None:
    memory = lru.Config(state_size=8).build(3, 4)
    memory.requires_grad_(requires_grad=False)
    memory.log_decay.fill_(-20.0)  # a radius of 1 in float32
    state, generator = memory.initial(1, torch.device("cpu")), torch.Generator().manual_seed(1)
    for t in range(10_000):
        x = torch.randn(1, 3, 4, generator=generator)
        state = memory.write(state, x, torch.full((1,), 8.0 * t), torch.ones(1))
    assert max(float(part.abs().max()) for part in state.values()) < 10


@pytest.mark.parametrize("radii", [(0.0, 0.9), (0.95, 0.9), (0.9, 1.0)])
def test_eigenvalues_outside_the_unit_circle_are_refused(radii) -> None:
    with pytest.raises(ValueError, match="expected 0 < min <= max < 1"):
        lru.Config(min_radius=radii[0], max_radius=radii[1])
