"""What is left of memory: of the machine, or of the control group."""

import pytest

from vla.utils import memory


def test_the_least_limit_counts(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = memory.available_bytes()
    assert whole > 2**20
    group = tmp_path / "job"
    group.mkdir()
    monkeypatch.setattr(memory, "_limit_files", lambda: iter([group / "memory.max", group / "no"]))
    (group / "memory.max").write_text("max\n")
    assert memory.available_bytes() > 2**20
    (group / "memory.max").write_text("12345\n")
    assert memory.available_bytes() == 12345
