"""The corpus of once defective inputs, and a few random ones, for every reader."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.hardening import fuzz, mutations
from benchmarks.hardening.readers import READERS

RANDOM = 6
"""Random inputs of each reader."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.mark.parametrize("name", [name for name in READERS if name != "inspect"])
def test_damaged_inputs_are_accepted_or_refused_in_one_sentence(place: Path, name: str) -> None:
    base = place / "base" / name
    base.mkdir(parents=True)
    READERS[name].make(base)
    jobs = [
        {"reader": name, "files": sorted(map(str, (fuzz.CORPUS / name).glob("*.json")))},
        {"reader": name, "seed": 1, "first": 0, "count": RANDOM},
    ]
    for job in jobs:
        for which, ops in fuzz.inputs(job, base):
            result = fuzz.read(READERS[name], base, place / "work", ops)
            assert result["end"] != "defect", f"{which}: {result['why']} after {ops}"


def test_what_is_no_refusal_is_a_defect(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base/a.json").write_text('{"x": 1}')

    def read(folder: Path, out: Path) -> None:
        content = (folder / "a.json").read_text()
        if "null" in content:
            raise ValueError(f"{folder / 'a.json'}: x is null")
        if "true" in content:
            raise KeyError("x")
        if "false" in content:
            (folder / "a.json").unlink()

    reader = READERS["manifest"].__class__(lambda folder: None, read, 1)

    def ends(value: str) -> str:
        op = {"file": "a.json", "do": "json", "at": ["x"], "how": "set", "value": value}
        return str(fuzz.read(reader, tmp_path / "base", tmp_path / "work", [op])["end"])

    assert [ends(value) for value in ("2", "null", "true", "false")] == [
        "accepted", "refused", "defect", "defect",
    ]  # fmt: skip


def test_a_drawn_damage_is_json_and_repeats(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"x": [1, {"y": 2}]}')
    (tmp_path / "b.bin").write_bytes(bytes(100))
    drawn = [mutations.draw(np.random.default_rng(seed), tmp_path) for seed in range(50)]
    again = [mutations.draw(np.random.default_rng(seed), tmp_path) for seed in range(50)]
    assert drawn == again
    assert {op["do"] for ops in drawn for op in ops} >= {"json", "flip", "cut"}
