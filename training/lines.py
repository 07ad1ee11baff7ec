"""Lines of `vla` that a study runs, each printed so that it can be run by itself."""

import subprocess
import sys

from rich.console import Console


def vla(words: list[str], console: Console) -> None:
    """Print and run `vla WORDS`.

    Raises:
        SystemExit: it failed, with its exit code; it has said why.
    """
    console.print(f"\n$ vla {' '.join(words)}", highlight=False, soft_wrap=True)
    code = subprocess.run([sys.executable, "-m", "vla.cli", *words], check=False).returncode
    if code:
        raise SystemExit(code)
