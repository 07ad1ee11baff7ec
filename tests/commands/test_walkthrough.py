"""A new user's chain through real processes: record, train, be killed, go on, test, report,
export, and test again without torch.
"""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.commands.lines import start
from vla import checkpoint


def follow(line: str) -> str:
    """Run a command to its good end; return what it printed."""
    process = start(line)
    said, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors
    return said


def kill_when(process: subprocess.Popen[str], file: Path) -> None:
    """SIGKILL a command once a file exists."""
    while not file.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
def test_from_demonstrations_to_a_report_with_a_kill_on_the_way(tmp_path) -> None:
    data, run = tmp_path / "data", tmp_path / "run"
    said = follow(f"demos reach --episodes 6 --workers 1 --out {data}")
    assert said.splitlines()[-1].startswith("6 episodes, ")
    train = (
        f"train --recipe reach --dataset {data} --out {run} --steps 30 --save-every 2 --threads 1 "
        "--algo.batch-size 8 --eval.final-episodes 0"
    )
    kill_when(start(train), run / "checkpoint" / "policy.json")
    reached = checkpoint.load(run)[1].step
    assert 0 < reached < 30
    assert "updates to go" in follow(train)
    assert checkpoint.load(run)[1].step == 30
    said = follow(f"eval {run} --episodes 4 --videos 1")
    assert "of 4 episodes succeeded" in said
    found = json.loads((run / "evaluation.json").read_text())
    assert (len(found["success"]), found["step"]) == (4, 30)
    follow(f"report {run}")
    page = (run / "report.html").read_text()
    assert "<video" in page
    assert f"{found['rate']:.1%}" in page
    deployed, again = tmp_path / "deployed", tmp_path / "again"
    assert "5 graphs" in follow(f"export {run} --out {deployed}")
    said = follow(
        f"verify-export {deployed} --reference-checkpoint {run} --dataset {data} --decisions 30 "
        "--stages 3 --episodes 38"
    )
    assert "success, 38 episodes" in said
    follow(f"eval {deployed} --episodes 4 --videos 1 --out {again}")
    other = json.loads((again / "evaluation.json").read_text())
    assert other["success"] == found["success"]
    assert other["steps"] == found["steps"]
    assert (again / "episodes.mp4").exists()
