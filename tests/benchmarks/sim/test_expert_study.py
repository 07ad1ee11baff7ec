"""The command that measures experts."""

import pytest

from benchmarks.sim import expert_study


def test_the_command_prints_one_line_per_task_and_robot(capsys: pytest.CaptureFixture) -> None:
    code = expert_study.main(["--task", "reach", "--robot", "so101", "--seeds", "3"])
    out = capsys.readouterr().out
    assert code == 0
    assert out.count("\n") == 1
    assert "reach        so101     100.0%" in out


def test_no_seeds_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="got 0, expected at least 1"):
        expert_study.main(["--seeds", "0"])
