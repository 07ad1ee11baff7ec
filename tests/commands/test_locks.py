"""A command that writes what another command writes says so, and leaves it alone."""

import pytest

from benchmarks.hardening.other_formats import lerobot_v2
from tests.commands.lines import TRAIN
from vla.utils import files

LINES = {
    "demos": "demos reach --episodes 2 --workers 1 --out {out}",
    "import": "data import {old} --out {out}",
    "train": TRAIN + " --steps 2 --dataset {data} --out {out}",
    "export": "export {run} --out {out}",
    "convert": "convert {bags} --fps 10 --out {out}",
}


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_an_output_that_another_command_writes_is_left_alone(
    line, data, run, refuse, tmp_path
) -> None:
    out, old, bags = tmp_path / "out", tmp_path / "old", tmp_path / "bags"
    lerobot_v2(data, old)
    bags.mkdir()
    words = line.format(out=out, old=old, bags=bags, data=data, run=run)
    with files.claim(out):
        refuse(words, f"{out}: another process writes it; wait until it ends, or stop it")
        assert not out.exists()
