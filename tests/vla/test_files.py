"""Outputs are held by one process at a time, and what a killed one began is found."""

import errno
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vla.data.video_writer import VideoWriter
from vla.utils import files

HOLD = """
import sys, time; from pathlib import Path; from vla.utils import files
with files.claim(Path(sys.argv[1])): print("held", flush=True); time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that writes `out`."""
    words = [sys.executable, "-c", HOLD, str(tmp_path / "out")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_an_output_belongs_to_one_process_until_that_is_killed(holder, tmp_path) -> None:
    claimed = files.claim(tmp_path / "out")
    with pytest.raises(ValueError, match=r"out: another process writes it; wait until it ends"):
        claimed.__enter__()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with files.claim(tmp_path / "out"):
        assert (tmp_path / ".out.lock").exists()
    assert list(tmp_path.iterdir()) == []


def test_what_waits_for_an_output_gets_it(holder, tmp_path) -> None:
    code = HOLD.replace("(Path(sys.argv[1]))", "(Path(sys.argv[1]), wait=True)")
    words = [sys.executable, "-c", code, str(tmp_path / "out")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as second:
        holder.kill()
        assert second.stdout.readline() == "held\n"
        with pytest.raises(ValueError, match="another process writes it"):
            files.claim(tmp_path / "out").__enter__()
        second.kill()


def test_only_leftovers_of_this_output_are_cleared(tmp_path) -> None:
    for name in (".out.12.tmp", ".out.a.7.tmp", ".other.3.tmp", "out.12.tmp"):
        (tmp_path / name).mkdir()
    files.clear_leftovers(tmp_path / "out")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        ".other.3.tmp", ".out.a.7.tmp", "out.12.tmp",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (KeyError("a"), r"f\.json: damaged \(KeyError: 'a'\); copy it again, or repair it"),
        (RecursionError("too deep"), r"f\.json: damaged \(RecursionError: too deep\)"),
        (ValueError("no digit"), r"f\.json: damaged \(no digit\)"),
        (OverflowError("too large"), r"f\.json: damaged \(OverflowError: too large\)"),
        (ValueError("f.json: no shape"), r"^f\.json: no shape$"),
    ],
)
def test_whatever_a_parser_raises_names_the_file(error: Exception, said: str) -> None:
    with pytest.raises(ValueError, match=said), files.parsing("f.json"):
        raise error


def test_errors_of_the_machine_are_none_of_the_file() -> None:
    with pytest.raises(FileNotFoundError), files.parsing("f.json"):
        Path("/no/such/file").read_bytes()
    with pytest.raises(ModuleNotFoundError), files.parsing("f.json"):
        raise ModuleNotFoundError("No module named 'x'", name="x")


def test_a_full_disk_under_a_video_is_an_error_and_no_crash() -> None:
    writer = VideoWriter(Path("/dev/full"), (64, 64, 3), 10)
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 255, (40, 64, 64, 3), np.uint8)
    with pytest.raises(OSError, match="No space left") as found:
        writer.write(pictures, len(pictures), "episode 0")
    assert (found.value.errno, found.value.filename) == (errno.ENOSPC, "/dev/full")
    with pytest.raises(OSError, match="No space left"):
        writer.close()


def test_a_full_disk_under_a_table_prints_nothing_later() -> None:
    code = """
import pyarrow as pa; from pathlib import Path; from vla.data.parquet import write_table
try: write_table(pa.table({"a": list(range(9))}), Path("/dev/full"))
except OSError as error: print(error.errno)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (f"{errno.ENOSPC}\n", "")


def test_two_folders_exchange_their_names_in_one_step(tmp_path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    if not files.exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this file system does not exchange names")
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b"]
    with pytest.raises(OSError, match="No such file"):
        files.exchange(tmp_path / "a", tmp_path / "none")
