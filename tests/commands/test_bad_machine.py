"""What a machine can break: a full disk, no drawing, Ctrl-C; one sentence, nothing lost."""

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.commands.lines import TRAIN, only_sentence, start
from vla import checkpoint, cli
from vla.data.reader import open_dataset

# --- a full disk ---------------------------------------------------------------------------------


@pytest.fixture
def disk(tmp_path) -> Iterator[Callable[[str], Path]]:
    """Return a function that makes a disk of some size, and changes its size."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = False

    def size(text: str) -> Path:
        nonlocal mounted
        options = f"size={text}" if not mounted else f"remount,size={text}"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], capture_output=True
        )
        if done.returncode:
            pytest.skip("only root can mount a small disk")
        mounted = True
        return place

    yield size
    if mounted:
        subprocess.run(["umount", str(place)], check=True)


def fill(file: Path) -> None:
    """Write until the disk is full."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass


def test_a_disk_full_of_demonstrations_keeps_what_was_saved_and_goes_on(disk, refuse) -> None:
    out = disk("150k") / "data"
    line = f"demos reach --episodes 6 --workers 1 --out {out}"
    refuse(line, "disk full", "free space and run the same command again")
    assert not out.exists()
    disk("20m")
    assert cli.main(line.split()) == 0
    assert open_dataset(out).num_episodes == 6


def test_a_disk_full_at_a_checkpoint_keeps_the_one_before_and_goes_on(data, disk, refuse) -> None:
    out = disk("40m") / "run"  # holds one checkpoint of 27 MB, not two
    line = f"{TRAIN} --steps 6 --dataset {data} --out {out}"
    refuse(line, "disk full", "free space and run the same command again")
    assert checkpoint.load(out)[1].step == 2
    assert sorted(p.name for p in out.iterdir()) == [
        "checkpoint", "config.json", "metrics.jsonl", "tensorboard",
    ]  # fmt: skip
    disk("96m")
    assert cli.main(line.split()) == 0
    assert checkpoint.load(out)[1].step == 6


def test_a_disk_full_at_a_report_keeps_the_one_before(run, disk, refuse) -> None:
    out = disk("1m") / "report.html"
    out.write_text("the report of yesterday")
    fill(out.parent / "filler")
    refuse(f"report {run} --out {out}", "disk full", "free space and run the same command again")
    assert out.read_text() == "the report of yesterday"
    assert sorted(p.name for p in out.parent.iterdir()) == ["filler", "report.html"]


# --- processes of their own: drawing and Ctrl-C --------------------------------------------------


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"__EGL_VENDOR_LIBRARY_DIRS": "/nonexistent"}, ("no off-screen OpenGL", "libegl1")),
        ({"MUJOCO_GL": "glut"}, ("MUJOCO_GL=glut", "MUJOCO_GL=egl")),
    ],
    ids=["no driver", "no such library"],
)
def test_without_egl_the_sentence_says_what_to_install(environment, words, run, tmp_path) -> None:
    process = start(f"eval {run} --episodes 1 --out {tmp_path / 'new'}", **environment)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    sentence = only_sentence(said)
    for word in words:
        assert word in sentence


def interrupt(process: subprocess.Popen[str], when: Path) -> str:
    """Press Ctrl-C once a file exists; return what was said, after checking the exit code."""
    for _ in range(1200):
        if when.exists() or process.poll() is not None:
            break
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == cli.INTERRUPTED, said
    assert "Traceback" not in said
    return said


def test_ctrl_c_in_demos_saves_what_was_played(tmp_path) -> None:
    out = tmp_path / "data"
    process = start(f"demos reach --episodes 400 --workers 1 --out {out}")
    said = interrupt(process, tmp_path / "data.parts" / "recording.json")
    shards = list((tmp_path / "data.parts").glob("episodes-*"))
    saved = sum(open_dataset(shard).num_episodes for shard in shards)
    assert f"interrupted: {saved} of 400 episodes are saved in {out}.parts" in said


def test_ctrl_c_in_training_saves_and_says_how_to_go_on(data, tmp_path) -> None:
    out = tmp_path / "run"
    process = start(f"{TRAIN} --steps 4000 --dataset {data} --out {out}")
    said = interrupt(process, out / "checkpoint")
    assert "of 4000; the same command resumes" in said
    step = checkpoint.load(out)[1].step
    assert f"interrupted: saved after update {step} of 4000" in said


def test_ctrl_c_in_an_evaluation_leaves_no_figures(run, tmp_path) -> None:
    out = tmp_path / "results"
    said = interrupt(start(f"eval {run} --episodes 5000 --out {out}"), out)
    assert "interrupted" in said
    assert list(out.iterdir()) == []
