"""Labelling goes on after a kill, in shards and in steps, and ends with the same bytes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from benchmarks.reward_models import crash_study
from reward_models.label import command, parts
from reward_models.label import score as scoring
from reward_models.label.plan import estimate, prepare
from reward_models.label.settings import LabelArgs, chosen_episodes, shard
from reward_models.label.source import checksums
from reward_models.label_report.read import LABELS_FILE
from vla import cli
from vla.utils.interrupted import Interrupted

ROOT = Path(__file__).parents[3]
DATA, ROWS = "data/chunk-000/file-000.parquet", "meta/episodes/chunk-000/file-000.parquet"


def content(folder: Path) -> dict[str, str]:
    """Return the checksums of a labelled set but for the file that says how long it took."""
    return {name: value for name, value in checksums(folder).items() if name != LABELS_FILE}


@pytest.fixture
def label(fake_dataset: Path, reward_model: Path):
    """Return a function that labels with little memory, so that every episode is a group."""

    def label(out: Path, **changes: Any) -> str:
        given = {
            "source": fake_dataset, "reward_model": str(reward_model), "out": out, "memory_mb": 1,
            **changes,
        }  # fmt: skip
        return command.label(prepare(LabelArgs(**given)))

    return label


def test_the_rest_is_scored_when_a_run_goes_on(tmp_path, label, monkeypatch) -> None:
    label(tmp_path / "whole")
    scored = []
    true_score = scoring.score_group

    def score(job, episodes, images):
        scored.extend(episodes)
        if len(scored) == 3:
            raise KeyboardInterrupt
        return true_score(job, episodes, images)

    monkeypatch.setattr(scoring, "score_group", score)
    with pytest.raises(Interrupted, match="2 of 5 episodes are saved in .*out.parts"):
        label(tmp_path / "out")
    assert not (tmp_path / "out").exists()
    scored[:] = [-1] * 9
    label(tmp_path / "out")
    assert scored[9:] == [2, 3, 4]
    assert content(tmp_path / "out") == content(tmp_path / "whole")
    assert not (tmp_path / "out.parts").exists()


def test_shards_together_make_the_whole_and_the_last_one_joins(tmp_path, label) -> None:
    label(tmp_path / "whole")
    out = tmp_path / "out"
    assert "3 of 5 episodes; the process that scores the last one joins them" in label(
        out, shard="1/2"
    )
    assert not out.exists()
    assert "labelled, 5 of 5 episodes" in label(out, shard="2/2")
    assert content(out) == content(tmp_path / "whole")
    told = json.loads((out / LABELS_FILE).read_text())
    assert told["shards"] == ["shard-1-of-2", "shard-2-of-2"]


def test_episodes_asked_for_later_join_those_already_there(tmp_path, label) -> None:
    label(tmp_path / "whole")
    out = tmp_path / "out"
    label(out, episodes="0:2,4")
    progress = pq.read_table(out / ROWS)["labels/success_prob"].to_numpy()
    assert np.isnan(progress).tolist() == [False, False, True, True, False]
    rows = pq.read_table(out / DATA)
    scored = rows.filter(rows["progress.scored"])
    assert set(scored["episode_index"].to_pylist()) == {0, 1, 4}
    assert "is labelled already, 3 of 5" in label(out, episodes="1")
    label(out, episodes="2:4")
    assert content(out) == content(tmp_path / "whole")
    assert not (tmp_path / "out.parts").exists()
    assert "is labelled already, 5 of 5" in label(out)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gamma": 0.5}, "was labelled with gamma 0.99, not 0.5; choose another --out"),
        ({"reward_model": "time"}, "was labelled with reward_model"),
        ({"agreement": True}, "was labelled with agreement False, not True"),
        ({"instruction": "sit"}, "was labelled with instruction None, not 'sit'"),
    ],
)
def test_labels_made_otherwise_are_not_mixed_in(tmp_path, label, changes, message) -> None:
    label(tmp_path / "out", episodes="0")
    with pytest.raises(ValueError, match=message):
        label(tmp_path / "out", **changes)
    if "gamma" not in changes:  # what is scored does not depend on it
        shutil.rmtree(tmp_path / "out")
        with pytest.raises(ValueError, match=message):
            label(tmp_path / "out", **changes)


def test_a_source_that_changed_between_two_runs_is_noticed(tmp_path, label, fake_dataset) -> None:
    copy = Path(shutil.copytree(fake_dataset, tmp_path / "copy"))
    label(tmp_path / "out", source=copy, shard="1/2")
    (copy / "meta/note.txt").write_text("new")
    with pytest.raises(ValueError, match="changed since labelling began .meta/note.txt"):
        label(tmp_path / "out", source=copy, shard="2/2")


def test_two_processes_do_not_work_at_the_same_shard(
    tmp_path, label, fake_dataset, reward_model
) -> None:
    label(tmp_path / "out", shard="1/2")
    store = parts.Parts(folder=tmp_path / "out.parts", key="")
    with parts.claim(store, "shard-1-of-2"), pytest.raises(ValueError, match="on the same shard"):
        label(tmp_path / "out", shard="1/2")


def test_what_a_killed_process_left_is_cleared(tmp_path, label) -> None:
    label(tmp_path / "out", shard="1/2")
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / f".out.new-{dead.pid}").mkdir()
    (tmp_path / "out.parts" / f".0000001.{dead.pid}.tmp").write_bytes(b"half")
    label(tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_ctrl_c_says_what_is_saved_and_how_to_go_on(tmp_path, fake_dataset, reward_model) -> None:
    long = tmp_path / "data"
    crash_study.synthetic_dataset.make_data(long, episodes=40, steps=60)
    words = crash_study.command(long, str(reward_model), tmp_path / "out")
    process = subprocess.Popen(
        words, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    for _ in range(600):
        if list((tmp_path / "out.parts").glob("episode-*")) or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == cli.INTERRUPTED, said
    saved = len(list((tmp_path / "out.parts").glob("episode-*")))
    assert 0 < saved < 40
    assert f"interrupted: {saved} of 40 episodes are saved in {tmp_path / 'out'}.parts" in said
    assert "the same command resumes" in said
    assert "Traceback" not in said


def test_killed_at_random_moments_it_ends_with_the_same_bytes(tmp_path) -> None:
    outcome = crash_study.study(
        crash_study.StudyArgs(kills=3, work=tmp_path, episodes=5, steps=30)
    )  # fmt: skip
    assert sum(outcome.kills.values()) == 3
    assert outcome.completed >= 1
    assert outcome.different == []


def test_an_estimate_writes_nothing(tmp_path, fake_dataset, reward_model) -> None:
    args = LabelArgs(
        source=fake_dataset, reward_model=str(reward_model), out=tmp_path / "out", episodes="0:3"
    )
    said = estimate(prepare(args))
    # 14, 12 and 12 frames: every second one and the last, 8 + 7 + 7
    assert said.startswith("3 episodes, 22 of 38 frames to score at ")
    assert "minutes on one process" in said
    assert list(tmp_path.iterdir()) == []


def test_episodes_and_shards_are_written_as_in_python_and_in_words() -> None:
    assert chosen_episodes("", 3) == (0, 1, 2)
    assert chosen_episodes("0:2,4, 1", 5) == (0, 1, 4)
    assert shard("") == (1, 1)
    assert shard("2/3") == (2, 3)
