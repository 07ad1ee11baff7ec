"""Kills a recorder at random moments and checks the files on the disk.

`python -m benchmarks.robot_bridge.recorder_study --kills 100`: a made-up arm publishes, the real
node records,
and after each SIGKILL every closed episode has to read as before and the running one has to be
repaired, with at most what its open chunk held lost.
"""

import hashlib
import itertools
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from mcap.reader import make_reader
from mcap_ros2.decoder import DecoderFactory

from benchmarks.robot_bridge import feed
from robot_bridge.recording.mcap_reader import open_bag
from robot_bridge.recording.mcap_writer import CHUNK_S
from robot_bridge.recording.recorder import CLOSED, OPEN, heal, read_index
from vla.utils import arguments

START_S = 60.0
"""Longest time until a node has started."""
SLACK_S = 1.0
"""Delay of writing a chunk on a busy machine."""


@dataclass(frozen=True, kw_only=True)
class StudyConfig:
    """Kill a recorder and check its files."""

    kills: int = 100
    """Number of SIGKILLs."""
    seed: int = 0
    """Seed of the moments."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Results of the study."""

    kills: int
    closed: int
    """Closed episodes, unchanged after the kill."""
    repaired: int
    """Running episodes that were repaired and read."""
    empty: int
    """Episodes without any bytes on the disk."""
    lost_s: float
    """Longest time between the last message of a repaired episode and the kill."""
    gaps: int
    """Joint states that are missing inside an episode: lost in transport, not on the disk."""


def main(argv: list[str]) -> int:
    """Run the study in a temporary folder; return the exit code."""
    config = arguments.read(StudyConfig, argv, "python -m benchmarks.robot_bridge.recorder_study")
    with (
        tempfile.TemporaryDirectory() as folder,
        started("benchmarks.robot_bridge.recorder_feed_node"),
    ):
        report = study(Path(folder), config.kills, config.seed)
    print(
        f"{report.kills} kills: {report.closed} closed episodes read as before, {report.repaired} "
        f"repaired, {report.empty} empty; at most {report.lost_s:.2f} s before a kill were lost, "
        f"{report.gaps} joint states were lost on the way"
    )
    return 0


def study(folder: Path, kills: int, seed: int) -> Report:
    """Record into a folder and kill the recorder at random moments; a feed has to be running.

    Raises:
        ValueError: an episode was lost or changed, or more of one than its open chunk.
    """
    rng = np.random.default_rng(seed)
    closed = repaired = empty = gaps = 0
    lost_s = 0.0
    for _ in range(kills):
        before = {entry.file for entry in read_index(folder)}
        with started("robot_bridge.nodes.recorder", "-p", f"folder:={folder}") as recorder:
            _wait_for(folder, recorder)
            time.sleep(rng.uniform(0.0, 1.5))
            recorder.kill()
            recorder.wait()
        killed_ns = time.time_ns()
        hashes = {path: _hash(path) for path in folder.glob(f"episode-*{CLOSED}")}
        running = list(folder.glob(f"episode-*{OPEN}"))
        entries = {entry.file: entry for entry in heal(folder)}
        changed = [path for path, was in hashes.items() if _hash(path) != was]
        if changed or not before <= set(entries):
            raise ValueError(f"{changed or before - set(entries)}: changed or lost by a kill")
        for path in hashes:
            if path.name not in before:
                gaps += read_through(path)[0]
                closed += 1
        for path in running:
            whole = path.with_name(path.name.removesuffix(OPEN) + CLOSED)
            if not whole.exists():
                empty += 1
                continue
            missing, last_ns = read_through(whole)
            gaps += missing
            repaired += 1
            # Before its first chunk an episode has nothing on the disk but that it began.
            begin_ns = round(1e9 * entries[whole.name].begin_s)
            lost_s = max(lost_s, (killed_ns - max(last_ns, begin_ns)) / 1e9)
    if lost_s > CHUNK_S + SLACK_S:
        raise ValueError(f"{lost_s:.2f} s were lost, expected at most {CHUNK_S + SLACK_S:g} s")
    return Report(
        kills=kills, closed=closed, repaired=repaired, empty=empty, lost_s=lost_s, gaps=gaps
    )  # fmt: skip


def read_through(path: Path) -> tuple[int, int]:
    """Return the number of joint states missing inside, and the last receive time in ns.

    Raises:
        ValueError: the file is not closed, or not all of it can be decoded, or states go back.
    """
    if not open_bag(path).closed:
        raise ValueError(f"{path}: is not closed")
    counts, last_ns = [], 0
    with path.open("rb") as file:
        reader = make_reader(file, validate_crcs=True, decoder_factories=[DecoderFactory()])
        for _, channel, message, decoded in reader.iter_decoded_messages():
            last_ns = max(last_ns, message.log_time)
            if channel.topic.endswith("joint_states"):
                counts.append(feed.count(decoded.position[0]))
    steps = [b - a for a, b in itertools.pairwise(counts)]
    if any(step < 1 for step in steps):
        raise ValueError(f"{path}: joint states go back")
    return sum(step - 1 for step in steps), last_ns


@contextmanager
def started(node: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run a node, named by its module, in a process that ends with the block."""
    line = [sys.executable, "-m", node, "--ros-args", *words]
    process = subprocess.Popen([*line, "--log-level", "warn"], start_new_session=True)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(timeout=10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(folder: Path, recorder: subprocess.Popen[bytes]) -> None:
    """Return when an episode has begun."""
    end_s = time.monotonic() + START_S
    existing = set(folder.glob("episode-*"))
    while not set(folder.glob("episode-*")) - existing:
        if recorder.poll() is not None or time.monotonic() > end_s:
            raise ValueError(f"the recorder began no episode in {START_S:g} s")
        time.sleep(0.02)


def _hash(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
