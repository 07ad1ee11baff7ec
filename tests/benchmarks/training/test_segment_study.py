"""The command that measures how well sub-tasks are found."""

import numpy as np
import pytest

from benchmarks.training import segment_study
from benchmarks.training.segment_study import all_hit, true_boundaries


def test_the_truth_is_the_first_hold_and_the_first_frame_after_the_last() -> None:
    held = np.array([0, 0, 1, 0, 1, 1, 0, 0], bool)
    assert true_boundaries(held).tolist() == [2, 6]
    assert true_boundaries(held[:6]).tolist() == [2]  # never let go
    assert true_boundaries(held[:2]).tolist() == []


def test_a_hit_needs_every_boundary_and_none_too_many() -> None:
    true = np.array([10, 20])
    assert all_hit(np.array([13, 17]), true)
    assert not all_hit(np.array([14, 20]), true)
    assert not all_hit(np.array([10]), true)
    assert not all_hit(np.array([10, 20, 30]), true)


@pytest.mark.parametrize("task", sorted(segment_study.OBJECTS))
def test_sub_tasks_of_real_demonstrations_are_found(
    task: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = segment_study.main(["--task", task, "--robot", "so101", "--seeds", "3"])
    out = capsys.readouterr().out
    assert code == 0
    assert out.count("\n") == 1
    assert "within 3 frames: 100.0% of 3" in out


def test_no_seeds_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="seeds: got 0, expected at least 1"):
        segment_study.main(["--seeds", "0"])
