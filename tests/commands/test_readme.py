"""Every command of the README runs, in its order, in an empty folder, with small numbers."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from packaging.requirements import Requirement

from deploy.server.client import RemotePolicy
from tests.robot_bridge import ros_graph
from tests.test_docs import README, blocks
from vla.contracts.types import Observation

SMALL = {
    "vla doctor": "",
    "vla tasks": "",
    "vla demos reach": "--episodes 6 --workers 1",
    "vla train --recipe reach": "--steps 4 --algo.batch-size 4 --eval.final-episodes 0",
    "vla eval runs/reach": "--episodes 2",
    "vla report": "",
    "vla train --recipe cue_colour": (
        "--demos.episodes 4 --steps 2 --algo.batch-size 2 --algo.states-per-episode 2 "
        "--eval.final-episodes 0"
    ),
    "vla train --recipe pick_place": (
        "--demos.episodes 2 --steps 2 --algo.batch-size 2 --eval.final-episodes 0 "
        "--policy.image-px 64 --policy.width 32 --policy.layers 1"
    ),
    "vla export": "",
    "vla verify-export": "--decisions 10 --stages 2 --episodes 0",
    "vla eval runs/reach_onnx": "--episodes 2",
    "vla reward-model train": (
        "--tasks.train reach --tasks.validation --tasks.composition --sizes.train 4 "
        "--sizes.episodes-per-task --sizes.validation 4 --sizes.test 4 --steps 4 "
        "--algo.sampler.batch-episodes 4 --algo.goal-pretrain-batch 4 --eval.final-episodes 4"
    ),
    "vla train rl --algo.type aux_bc": (
        "--episodes-per-iteration 2 --num-envs 2 --steps 2 --algo.batch-size 4 "
        "--algo.aux-batch-size 4 --algo.synthetic-frames 4 --eval.final-episodes 0"
    ),
    "vla train rl --task reach": (
        "--n-iterations 1 --algo.initial-episodes 2 --num-envs 2 --steps 2 --algo.batch-size 4 "
        "--algo.value.warmup-steps 2 --algo.value.estimator-steps 2 --eval.final-episodes 0"
    ),
    "vla reward-model eval": "--splits layout --bootstrap-samples 5",
    "vla demos pick_place": "--episodes 3 --workers 1",
    "vla label runs/mixed": "--gates.coverage 0 --gates.done-error 1 --gates.confidence-error 1",
}
"""What the commands are given beside the README's words: a later flag replaces an earlier one."""
RUNNING = ("vla ros launch", "vla serve", "vla label --review")
"""Commands that run until they are interrupted: see `while_running`."""
STALLED = tuple(
    f"latched_fault: {why}"
    for why in ("no joint states for ", "no chunk for ", "the clock of stamps jumped")
)
"""States of a safety node on a machine that stood still for a moment, or whose time was set."""
ELSEWHERE = ("make ", "apt-get ", "pip install ")
"""Commands that CI itself runs through `make`, which installs the same packages from the lock."""


def readme_lines() -> list[str]:
    """Return the README's commands; a block without a command, such as the tree, has none."""
    lines: list[str] = []
    for block in blocks(README.read_text()):
        lines += re.sub(r"\\\n\s*", " ", block).splitlines()
    words = ("vla ", "make ", "apt-get ", "pip ", "python ", "head ", "openssl ")
    return [line.split("  #")[0].strip() for line in lines if line.startswith(words)]


class Shell:
    """Runs commands in a folder as a user would."""

    def __init__(self, folder: Path) -> None:
        scripts = Path(sys.executable).parent
        self.folder = folder
        self.env = {
            **os.environ, "PATH": f"{scripts}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "ROS_DOMAIN_ID": str(ros_graph.domain()), "PYTHONUNBUFFERED": "1",
        }  # fmt: skip

    def run(self, line: str, *, timeout_s: float = 300) -> str:
        """Run a command to its successful end; return its output."""
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {line}"], cwd=self.folder, env=self.env, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=timeout_s,
        )  # fmt: skip
        assert done.returncode == 0, f"{line}: exit code {done.returncode}\n{done.stdout}"
        return done.stdout

    @contextlib.contextmanager
    def running(self, line: str, ready: str, code: int) -> Iterator[str]:
        """Run a command, yield its output once it matches `ready`, and interrupt it at the end."""
        log = self.folder / "log"
        with log.open("w") as file:
            process = subprocess.Popen(
                shlex.split(line), cwd=self.folder, env=self.env, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        try:
            end_s = time.monotonic() + 60
            while not re.search(ready, log.read_text()):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end_s, log.read_text()
                time.sleep(0.05)
            yield log.read_text()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == code, log.read_text()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def decide(policy: RemotePolicy) -> None:
    """Ask a server for one chunk."""
    robot = policy.robot
    camera, views = robot.cameras[0], len(robot.cameras)
    obs = Observation(
        images=np.zeros((1, views, camera.height_px, camera.width_px, 3), np.uint8),
        image_ok=np.ones((1, views), np.bool_), proprio=np.array([robot.home], np.float32),
        task=("reach the red ball",), time_s=np.zeros(1),
    )  # fmt: skip
    noise = np.zeros((1, *policy.noise_shape), np.float32)
    chunk, _ = policy.act(obs, policy.initial_state(1), noise)
    assert np.isfinite(chunk.values).all()


def enable_arm(shell: Shell, enable: str, status: str) -> None:
    """Enable the arm once its policy is there, and see by its status that it is.

    A machine that stalls makes the node latch at any moment, as it should: the limits are the
    README's. Such a latch alone is reset.
    """
    end_s = time.monotonic() + 120
    while True:
        with contextlib.suppress(AssertionError):  # the policy takes seconds to load
            shell.run(enable)
        state = shell.run(status)
        if re.match("holding|tracking", state):
            return
        assert time.monotonic() < end_s, state
        if state.startswith(STALLED):
            shell.run("vla safety reset")


def follow(shell: Shell, lines: list[str]) -> None:
    """Run a launch of the simulated arm with the commands that follow it, or any other command."""
    line = lines.pop(0)
    if line.startswith("vla ros launch sim_arm"):
        with shell.running(line, "safety_node", 0):
            assert lines[:2] == ["vla safety enable", "vla safety status"]
            enable, status = lines.pop(0), lines.pop(0)
            enable_arm(shell, enable, status)
    elif line.startswith("vla ros launch arm"):
        with shell.running(line, "safety_node", 0):
            pass
    elif "unix:$XDG_RUNTIME_DIR/reach" in line:
        place = f"unix:{shell.folder}/socket"
        with (
            shell.running(line.replace("unix:$XDG_RUNTIME_DIR/reach", place), "served at", 0),
            RemotePolicy(place) as policy,
        ):
            decide(policy)
    elif "--token-file" in line:
        with shell.running(line.replace(":7410", ":0"), r"served at .*:(\d+)", 0) as said:
            port = re.search(r"served at .*:(\d+)", said)
            assert port
            token = (shell.folder / "token").read_text().strip()
            authority = shell.folder / "cert.pem"
            address = f"localhost:{port[1]}"
            with RemotePolicy(address, token=token, authority=authority) as policy:
                decide(policy)
            with pytest.raises((ValueError, OSError, ssl.SSLError)):
                RemotePolicy(address, token="wrong", authority=authority)
    elif line.startswith("vla label --review"):
        with shell.running(line, r"http://\S+", 0) as said:
            url = re.search(r"http://\S+", said)
            assert url
            with urllib.request.urlopen(url[0]) as page:
                assert b"<html" in page.read()
    else:
        words = next((extra for start, extra in SMALL.items() if line.startswith(start)), None)
        if words is None:
            assert line.startswith(("head ", "openssl ")), f"no test runs: {line}"
        shell.run(f"{line} {words or ''}")


@pytest.mark.ros
@pytest.mark.timeout(900)
def test_every_command_of_the_readme_runs_in_its_order(shell: Shell) -> None:
    lines = [line for line in readme_lines() if not line.startswith(ELSEWHERE)]
    assert len(lines) > 20
    tls = shutil.which("openssl") is not None
    if not tls:
        lines = [x for x in lines if not x.startswith("openssl ") and "--certificate" not in x]
    while lines:
        follow(shell, lines)
    if not tls:
        pytest.skip("openssl is not installed: all ran but the server with a certificate")


def test_the_lock_installs_what_the_extra_of_the_readme_needs() -> None:
    (line,) = (line for line in readme_lines() if line.startswith("pip install "))
    (extra,) = re.findall(r"\.\[(\w+)\]", line)
    requirements = [Requirement(text) for text in metadata.requires("mneme-vla") or ()]
    needed = [r for r in requirements if r.marker is None or r.marker.evaluate({"extra": extra})]
    assert len(needed) > 10
    for requirement in needed:
        assert requirement.specifier.contains(metadata.version(requirement.name)), requirement
