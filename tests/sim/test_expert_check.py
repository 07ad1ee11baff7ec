"""The command that measures experts."""

import pytest

from sim import check_expert


def test_wilsons_interval_of_a_perfect_score_starts_at_n_over_n_plus_z_squared() -> None:
    low, high = check_expert.wilson(200, 200)
    # centre - half = (1 + z^2/2n - z^2/2n) / (1 + z^2/n) = n / (n + z^2) = 200 / 203.8416
    assert low == pytest.approx(0.98115, abs=1e-5)
    assert high == 1.0


def test_wilsons_interval_of_one_half_is_symmetric() -> None:
    low, high = check_expert.wilson(50, 100)
    assert low + high == pytest.approx(1.0)
    # Half the width: 1.96 times the root of 0.0025 + 3.8416 / 40000, over 1 + 3.8416 / 100.
    assert high - 0.5 == pytest.approx(1.96 * 0.00259604**0.5 / 1.038416, abs=1e-9)


def test_the_command_prints_one_line_per_task_and_robot(capsys: pytest.CaptureFixture) -> None:
    code = check_expert.main(["--task", "reach", "--robot", "so101", "--seeds", "3"])
    out = capsys.readouterr().out
    assert code == 0
    assert out.count("\n") == 1
    assert "reach        so101     100.0%" in out


def test_no_seeds_at_all_are_refused() -> None:
    with pytest.raises(ValueError, match="got 0, expected at least 1"):
        check_expert.main(["--seeds", "0"])
