"""Process settings: the requested threads, and unchanged results."""

import torch

from training.core import runtime


def test_threads_are_set_and_tensors_survive_kept_memory() -> None:
    before = torch.get_num_threads()
    kept = torch.arange(1_000_000)
    try:
        runtime.prepare(1)
        assert torch.get_num_threads() == 1
        for size in (1, 10_000_000):
            assert int(torch.ones(size, dtype=torch.int64).sum()) == size
        assert int(kept.sum()) == 999_999 * 500_000
    finally:
        torch.set_num_threads(before)
