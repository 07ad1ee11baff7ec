"""A small run of the fault study, and proof that it finds what it looks for."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.hardening.io_fault_study import content, points, shares

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler (gcc)")

BROKEN = """
import sys
from pathlib import Path
from benchmarks.hardening import io_faults
from vla.utils import files
work = Path(sys.argv[1])
io_faults.preload(work)
def careless():
    (work / "there" / "out").write_text("new" * 9)
    return 0
def careful():
    files.write_text(work / "there" / "out", "new" * 9)
    return 0
for call in (careless, careful):
    for kind in ("write", "kill", "sync", "rename"):
        (work / "there" / "out").write_text("old")
        ended = io_faults.run(call, work / "there", work / "log", io_faults.KINDS[kind], 1)
        print(ended.code, ended.calls, ended.failed, (work / "there" / "out").read_text())
"""


def test_a_call_that_fails_or_dies_leaves_what_it_had_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BROKEN, str(tmp_path)], capture_output=True, text=True, check=True
    )
    new = "new" * 9
    rows = [line.split(maxsplit=3) for line in done.stdout.splitlines()]
    # Careless: after an error part of the text is there, after a kill at the opening what was.
    assert (rows[0][0], rows[0][2]) == ("99", "1")
    assert rows[0][3] not in ("old", new)
    assert rows[1][:3] == ["-9", "1", "1"]
    assert [row[0] for row in rows[2:4]] == ["0", "0"]
    assert [row[3] for row in rows[2:4]] == [new, new]
    # Careful: the old text is there after each.
    assert [row[0] for row in rows[4:]] == ["99", "-9", "99", "99"]
    assert [row[3] for row in rows[4:]] == ["old"] * 4


def test_an_import_that_fails_anywhere_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    words = [
        "--verbs",
        "import",
        "--kinds",
        "write",
        "sync",
        "rename",
        "encode",
        "kill",
        "--points",
        "2",
        "--kills",
        "3",
        "--out",
    ]
    words[1] = "data import"
    module = [sys.executable, "-m", "benchmarks.hardening.io_fault_study"]
    done = subprocess.run(
        [*module, *words, str(tmp_path / "study")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "study/results.json").read_text())
    assert [(one["kind"], one["faults"]) for one in found] == [
        ("write", 2), ("sync", 2), ("rename", 2), ("encode", 2), ("kill", 3),
    ]  # fmt: skip
    assert all(sum(one["states"].values()) == one["faults"] for one in found)


def test_points_are_all_or_evenly_spread() -> None:
    assert points(4, 0) == [1, 2, 3, 4]
    assert points(3, 9) == [1, 2, 3]
    assert points(101, 3) == [1, 51, 101]


def test_kills_that_a_short_verb_has_no_calls_for_go_to_the_others() -> None:
    assert shares([500, 6, 40, 900], 300) == [127, 6, 40, 127]
    assert shares([5, 5], 300) == [5, 5]
    assert shares([5, 5], 0) == [0, 0]


def test_content_is_by_name_and_bytes_and_leaves_out_what_holds_times(tmp_path: Path) -> None:
    assert content(tmp_path / "none") == {}
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a/metrics.jsonl").write_text("1")
    (tmp_path / "a/b/c").write_text("x")
    before = content(tmp_path / "a", ("metrics",))
    assert set(before) == {"b", "b/c"}
    (tmp_path / "a/b/c").write_text("y")
    assert content(tmp_path / "a", ("metrics",)) != before
