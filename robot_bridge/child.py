"""Runs the `main` of a node's module in this process, and ends with the process that started it."""

import ctypes
import importlib
import os
import signal
import sys

SET_DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl(2)."""


def main() -> int:
    """Run `python -m robot_bridge.child PARENT MODULE [ARGUMENTS]`; return the exit code."""
    parent, module, *rest = sys.argv[1:]
    if sys.platform == "linux":
        # However `vla up` ends, nothing goes on moving an arm with nobody there to stop it.
        ctypes.CDLL(None).prctl(SET_DEATH_SIGNAL, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it ended before we asked
        return 1
    sys.argv = [module, *rest]
    return int(importlib.import_module(module).main() or 0)


if __name__ == "__main__":
    sys.exit(main())
