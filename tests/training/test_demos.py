"""Recording survives Ctrl-C, SIGKILL and a full disk, and ends with the same content."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sim.tasks import cue_colour
from tests.fake_episodes import Config, failing_episode, fake_episode
from training.data.demos import DemosConfig, main, record_demos
from vla.data.reader import open_dataset, read_columns
from vla.data.store import load_episodes

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from pathlib import Path
from tests.fake_episodes import Config, fake_episode
from training.data.demos import DemosConfig, record_demos
from vla.utils.interrupted import Interrupted
if __name__ == "__main__":
    config = DemosConfig(out=Path(sys.argv[1]), episodes=80, workers=1, seed=3, task=Config())
    try:
        record_demos(config, fake_episode)
    except Interrupted as stop:
        print(stop)
        sys.exit(130)
"""


def config(out: Path, **changes: object) -> DemosConfig:
    given: dict[str, Any] = {
        "out": out,
        "episodes": 80,
        "workers": 1,
        "seed": 3,
        "task": Config(),
        **changes,
    }
    return DemosConfig(**given)


def start_and_signal(script: Path, out: Path, number: int) -> tuple[int, str]:
    """Record in a real process, signal it once the first shard is saved; return code and output."""
    process = subprocess.Popen(
        [sys.executable, str(script), str(out)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    first = process.stdout.readline()
    assert first == "saved 25 of 80 episodes\n"
    process.send_signal(number)
    rest, _ = process.communicate(timeout=60)
    return process.returncode, first + rest


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_recording_keeps_what_was_saved_and_continues(
    tmp_path: Path, number: int
) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    out = tmp_path / "set"
    code, output = start_and_signal(script, out, number)
    assert code == (130 if number == signal.SIGINT else -signal.SIGKILL)
    assert not out.exists()
    shards = sorted((tmp_path / "set.parts").glob("episodes-*"))
    saved = sum(open_dataset(shard).num_episodes for shard in shards)
    assert 25 <= saved < 80
    if number == signal.SIGINT:
        assert f"{saved} of 80 episodes are saved" in output
    else:
        time.sleep(1)  # the worker notices that its parent is gone
    info = record_demos(config(out), fake_episode)
    assert info.num_episodes == 80
    assert not (tmp_path / "set.parts").exists()
    expected = [fake_episode("fake_episodes", 3, i, robot=None) for i in range(80)]
    assert info.lengths.tolist() == [len(e.success) for e in expected]
    assert info.tasks == tuple(e.instruction for e in expected)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a data set of four episodes recorded by two workers."""
    out = tmp_path_factory.mktemp("demos") / "set"
    record_demos(config(out, episodes=4, workers=2), fake_episode)
    return out


def test_a_finished_recording_is_left_alone(recorded: Path) -> None:
    before = {f: f.stat().st_mtime_ns for f in recorded.rglob("*")}
    assert record_demos(config(recorded, episodes=4), fake_episode).num_episodes == 4
    assert {f: f.stat().st_mtime_ns for f in recorded.rglob("*")} == before


def test_a_recording_from_before_a_task_had_a_setting_is_the_same(tmp_path: Path) -> None:
    cue = config(tmp_path / "set", episodes=4, task=cue_colour.Config())
    record_demos(cue, fake_episode)
    settings = cue.out / "meta/recording.json"
    stored = json.loads(settings.read_text())
    del stored["task"]["random_distractors"]
    settings.write_text(json.dumps(stored))
    assert record_demos(cue, fake_episode).num_episodes == cue.episodes
    stored["task"].pop("cue_steps")  # no later setting
    settings.write_text(json.dumps(stored))
    with pytest.raises(ValueError, match="was recorded with task"):
        record_demos(cue, fake_episode)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, "was recorded with seed 3, not 4; choose another --out"),
        ({"behaviour": "drop"}, "was recorded with behaviour 'expert', not 'drop'"),
        ({"task": Config(difficulty=2)}, "was recorded with task .*'difficulty': 1"),
        ({"episodes": 5}, "was recorded with episodes 4, not 5"),
    ],
)
def test_a_directory_of_another_recording_is_refused(
    recorded: Path, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        record_demos(config(recorded, **{"episodes": 4, **changes}), fake_episode)


def test_a_data_set_of_somebody_else_is_refused(fake_dataset: Path, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    with pytest.raises(ValueError, match="exists and holds no data set; choose another --out"):
        record_demos(config(tmp_path / "set"), fake_episode)


def test_a_full_disk_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    out = tmp_path / "set"
    with pytest.raises(OSError, match="No space left on device"):
        record_demos(config(out, episodes=4, workers=2), failing_episode)
    assert not out.exists()
    left = {p.name for p in (tmp_path / "set.parts").iterdir()}
    assert left <= {"lock", "recording.json", "episodes-0000000"}
    info = record_demos(config(out, episodes=4), fake_episode)
    assert info.num_episodes == 4


def test_the_number_of_workers_changes_no_bit(recorded: Path, tmp_path: Path) -> None:
    record_demos(config(tmp_path / "one", episodes=4), fake_episode)
    one, two = (load_episodes(p) for p in (tmp_path / "one", recorded))
    np.testing.assert_array_equal(one.actions, two.actions)
    np.testing.assert_array_equal(one.states, two.states)
    assert one.tasks == two.tasks
    np.testing.assert_array_equal(one.frames, two.frames)


def test_wrong_use_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "usage: vla demos TASK" in capsys.readouterr().out
    with pytest.raises(ValueError, match="unknown task 'cue_color': did you mean cue_colour"):
        main(["cue_color", "--out", str(tmp_path)])
    with pytest.raises(ValueError, match="episodes: got 0, expected at least 1"):
        record_demos(config(tmp_path / "none", episodes=0), fake_episode)


def test_a_real_task_is_recorded_by_its_command(tmp_path: Path) -> None:
    out = tmp_path / "set"
    command = f"cue_colour --episodes 1 --workers 1 --seed 5 --out {out}"
    assert main([*command.split(), "--task.delay-steps", "16", "16"]) == 0
    info = open_dataset(out)
    assert info.recording is not None
    assert info.recording["task"]["delay_steps"] == [16, 16]
    assert [c.name for c in info.cameras] == ["front", "wrist"]
    assert read_columns(info).scalars["success"][-1] == 1.0
