"""What tests of the commands share."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

TRAIN = (
    "train --recipe reach --algo.batch-size 4 --threads 1 --save-every 2 --eval.final-episodes 0"
)


def only_sentence(said: str) -> str:
    """Return the one sentence in what a command wrote to stderr."""
    assert "Traceback" not in said
    sentences = [line for line in said.splitlines() if line.startswith("vla: ")]
    assert len(sentences) == 1, said
    assert said.rstrip().endswith(sentences[0])
    return sentences[0]


def content(folder: Path) -> dict[str, str]:
    """Return a hash of every file under a folder."""
    files = (file for file in folder.rglob("*") if file.is_file())
    return {str(f.relative_to(folder)): hashlib.md5(f.read_bytes()).hexdigest() for f in files}


def start(line: str, **environment: str) -> subprocess.Popen[str]:
    """Start a command in a process group of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "vla.cli", *line.split()], text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **environment},
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
