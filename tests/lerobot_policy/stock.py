"""Stock LeRobot beside us: its commands in a process of their own, and policies for them."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from lerobot_policy_mneme import convert
from tests.fakes import liven_
from tests.training.small_policy import small_policy, write_run
from vla import checkpoint
from vla.nn.normalize import Normalizer

ROOT = Path(__file__).parents[2]
MARKER = "lerobot_policy_mneme"
CODE = (
    "import functools, importlib, inspect, json, sys\n"
    "inspect.getsource = functools.cache(inspect.getsource)\n"
    "for name, words in json.loads(sys.argv[1]):\n"
    "    sys.argv = [name, *words]\n"
    "    importlib.import_module(f'lerobot.scripts.{name}').main()\n"
)
"""Runs the commands one after the other: importing LeRobot takes longer than they do, and so does
its parser, which reads the source of every setting for its help; here, but once."""


def installed(tmp_path):
    """Return where pip's marker of the plug-in lies, whatever was installed here."""
    place = tmp_path / "site"
    marker = place / f"{MARKER}-1.dist-info"
    marker.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "launch" / "resource" / MARKER / "METADATA", marker)
    return place


def run(tmp_path, *commands):
    """Run stock commands (name, words); return the process once it has ended."""
    paths = os.pathsep.join(map(str, (ROOT, installed(tmp_path))))
    return subprocess.run(
        [sys.executable, "-c", CODE, json.dumps(commands)],
        env={**os.environ, "PYTHONPATH": paths, "HF_HOME": str(tmp_path / "hf")},
        cwd=tmp_path, capture_output=True, text=True, timeout=250, check=False,
    )  # fmt: skip


def packed(tmp_path, weights=0, by=0.08, name="packed", around_home=None):
    """Return our run and LeRobot's folder of a policy that moves a lot, or so far from home."""
    policy = small_policy()
    liven_(policy, weights, by)
    if around_home is not None:
        low, high = (
            tuple(home + sign * around_home for home in policy.robot.home) for sign in (-1, 1)
        )
        policy.statistics = replace(policy.statistics, action_low=low, action_high=high)
        policy.normalizer = Normalizer(policy.statistics)
    write_run(policy.eval(), tmp_path / f"{name}-run")
    words = [str(tmp_path / f"{name}-run"), "--out", str(tmp_path / name), "--history", "3"]
    assert convert.pack(words) == 0
    return tmp_path / f"{name}-run", tmp_path / name


def files(folder):
    """Return our three files of a checkpoint, byte for byte."""
    return {name: (checkpoint.find(folder) / name).read_bytes() for name in checkpoint.FILES}
