"""Runs lines of `vla` as a user would, each printed before it runs: for studies."""

import signal
import subprocess
import sys

from rich.console import Console


def run(words: list[str], console: Console) -> int:
    """Print a line, run it in a process of its own and return its exit code.

    Ctrl-C reaches the line, which saves, says so and ends with its own exit code; we wait for it.
    """
    console.print(f"\n$ vla {' '.join(words)}", highlight=False, markup=False, soft_wrap=True)
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        return subprocess.run([sys.executable, "-m", "vla.cli", *words], check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)


def must(words: list[str], console: Console) -> None:
    """As `run`.

    Raises:
        SystemExit: the line failed, with its exit code; it has said why.
    """
    code = run(words, console)
    if code:
        raise SystemExit(code)
