"""Practice is shown while it goes on, and goes on when nobody looks."""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.training.rl import runs
from tests.training.view import rrd
from training.commands.train_rl import parse
from training.core import loop
from training.core.metrics import read_metrics
from training.rl.experience import episode_store
from training.view import rerun_stream

RERUN = Path(sys.executable).with_name("rerun")


def practise(begun, out, watcher=None):
    """Run practice and return its figures."""
    config = replace(runs.config(), eval=replace(runs.config().eval, final_episodes=0))
    loop.run(config, runs.start(begun, out), out, Console(quiet=True), callback=watcher)
    return read_metrics(out)


@pytest.fixture(scope="module")
def shown(begun, tmp_path_factory):
    """A run, the file that shows it, and what was said."""
    place = tmp_path_factory.mktemp("live")
    said: list[str] = []
    watcher = rerun_stream.Live(str(place / "live.rrd"), said.append)
    rows = practise(begun, place / "run", watcher)
    watcher.close()
    return place, rows, said


def test_a_file_holds_rollouts_and_figures_of_every_round(shown) -> None:
    place, rows, said = shown
    path = place / "live.rrd"
    assert said == []
    ahead = 0.0
    for number in (1, 2):
        episodes = episode_store.read_iteration(
            place / "run" / "experience", episode_store.iteration_name(number - 1)
        )
        for k, episode in enumerate(episodes):
            at, _ = rrd.rows(path, f"/rollout_{k}/camera/front", "EncodedImage:blob", "rollouts")
            mine = (at >= ahead - 1e-6) & (at <= ahead + episode.time_s[-1] + 1e-6)
            np.testing.assert_allclose(at[mine], ahead + episode.time_s, atol=1e-6)
            at, helped = rrd.series(path, f"/rollout_{k}/reward/is_intervention", "rollouts")
            mine = (at >= ahead - 1e-6) & (at <= ahead + episode.time_s[-1] + 1e-6)
            assert helped[mine].sum() == 0
            assert mine.sum() == len(episode)
            at, reward_model = rrd.series(path, f"/rollout_{k}/reward/reward_model", "rollouts")
            mine = (at >= ahead - 1e-6) & (at <= ahead + episode.time_s[-1] + 1e-6)
            # The reward is the oracle's: what it says is the simulator's progress.
            np.testing.assert_allclose(
                reward_model[mine, 0], episode.progress[episode.boundary_index], atol=1e-6
            )
            _, words = rrd.rows(path, f"/rollout_{k}/outcome", "TextLog:text", "rollouts")
            assert f"iteration {number}, episode {k}: " in words[number - 1][0]
        ahead += max(float(e.time_s[-1]) for e in episodes) + 1.0
    figures = [row for row in rows if "loss" in row]
    at, loss = rrd.series(path, "/metrics/loss", "update")
    np.testing.assert_array_equal(at, [row["step"] for row in figures])
    np.testing.assert_allclose(loss[:, 0], [row["loss"] for row in figures])
    assert any("/metrics/rollout/success" in name for name in rrd.entities(path))


def test_a_viewer_that_is_not_there_is_said_once_and_changes_nothing(
    shown, begun, tmp_path
) -> None:
    place, rows, _ = shown
    said: list[str] = []
    watcher = rerun_stream.Live(f"rerun+http://127.0.0.1:{closed_port()}/proxy", said.append)
    alone = practise(begun, tmp_path / "run", watcher)
    watcher.close()
    (words,) = said
    assert "shows nothing any more" in words
    assert "Connection refused" in words
    timed = ("samples_per_s", "seconds")
    for mine, other in zip(rows, alone, strict=True):
        assert {k: v for k, v in mine.items() if not k.endswith(timed)} == {
            k: v for k, v in other.items() if not k.endswith(timed)
        }
    weights = "checkpoint/model.safetensors"
    assert (place / "run" / weights).read_bytes() == (tmp_path / "run" / weights).read_bytes()


def test_a_viewer_on_this_machine_is_sent_everything_until_it_goes_away(tmp_path) -> None:
    port = closed_port()
    kept = tmp_path / "kept.rrd"
    words = [RERUN, "--bind", "127.0.0.1", "--port", str(port), "--save", kept]
    said: list[str] = []
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    viewer = subprocess.Popen(words, start_new_session=True, **silent)
    try:
        wait_for(port)
        watcher = rerun_stream.Live(f"rerun+http://127.0.0.1:{port}/proxy", said.append)
        watcher.on_metrics(3, {"loss": 0.5})
        watcher.on_metrics(4, {"loss": 0.25})
        assert said == []
        deadline = time.monotonic() + 30
        while not kept.exists() or not sound(kept):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        time.sleep(0.5)
    finally:
        os.killpg(viewer.pid, signal.SIGKILL)  # the command, and the program that it started
        viewer.wait(timeout=20)
    wait_for(port, there=False)
    watcher.on_metrics(5, {"loss": 0.125})
    watcher.on_metrics(6, {"loss": 0.1})
    watcher.close()
    assert len(said) == 1
    at, loss = rrd.series(kept, "/metrics/loss", "update")
    assert (at.tolist(), loss[:, 0].tolist()) == ([3, 4], [0.5, 0.25])


def closed_port() -> int:
    """Return a port of this machine at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


def wait_for(port: int, *, there: bool = True) -> None:
    """Wait until somebody, or nobody, listens."""
    deadline = time.monotonic() + 30
    while listens(port) != there:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def listens(port: int) -> bool:
    """Return whether somebody does."""
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True


def sound(path: Path) -> bool:
    """Return whether something can be read."""
    return path.stat().st_size > 2000


@pytest.mark.parametrize(
    "target",
    [
        "live.rrd", "rerun+http://127.0.0.1:9876/proxy", "rerun+http://localhost:9876/proxy",
        "rerun+http://[::1]:9876/proxy", "rerun+https://viewer.example.org:443/proxy",
    ],
)  # fmt: skip
def test_files_this_machine_and_encrypted_viewers_are_shown_to(target) -> None:
    assert rerun_stream.check(target) == target


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("rerun+http://10.0.0.7:9876/proxy", "unencrypted to another machine"),
        ("rerun+http://0.0.0.0:9876/proxy", "unencrypted to another machine"),
        ("rerun+http://127.0.0.1.example.org:9876/proxy", "unencrypted to another machine"),
        ("rerun+http://127.0.0.1/proxy", "expected FILE.rrd or rerun"),
        ("rerun+http://127.0.0.1:99999/proxy", "expected FILE.rrd or rerun"),
        ("http://127.0.0.1:9876", "expected FILE.rrd or rerun"),
        ("live.mp4", "expected FILE.rrd or rerun"),
    ],
)
def test_other_places_are_refused_before_anything_begins(target, words, tmp_path) -> None:
    line = f"--task reach --policy.path a --dataset b --out {tmp_path / 'run'} --view {target}"
    with pytest.raises(ValueError, match=words):
        parse(line.split())
    assert not list(tmp_path.iterdir())


def test_a_run_that_goes_on_does_not_write_over_what_was_shown(tmp_path) -> None:
    first = tmp_path / "live.rrd"
    assert rerun_stream.free(first) == first
    first.touch()
    assert rerun_stream.free(first) == tmp_path / "live-2.rrd"
    (tmp_path / "live-2.rrd").touch()
    assert rerun_stream.free(first) == tmp_path / "live-3.rrd"
